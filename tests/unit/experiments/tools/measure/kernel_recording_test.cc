// Tests of CostRecording without a GPU: the test supplies the measurements.

#include "experiments/tools/measure/kernel_recording.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/testing/files.h"
#include "tests/testing/networks.h"
#include "traces/base/error.h"
#include "traces/lowering/lowering.h"

namespace spillway::testing {
namespace {

using ::testing::HasSubstr;
using ::testing::UnorderedElementsAre;

const KernelLibrary kLibrary{"fp32", "9.14.0"};

// Made-up GPUs. An entry takes as many microseconds as its batch, and each measurement is noted.
class FakeGpus {
 public:
  MeasureKernels Measure() {
    return
        [this](const Trace& trace, const std::set<EntryKey>& wanted, int device, const auto& done) {
          for (const EntryKey& key : wanted) {
            EXPECT_TRUE(NeededEntries({&trace, 1}, std::vector<int64_t>{key.second}).contains(key));
            {
              const std::lock_guard lock(mutex);
              if (measured.size() == fail_after) throw Error("out of memory");
              measured.push_back(key);
              used.insert(device);
            }
            done({"ACME", "1", "13.0", "9.14.0", "fp32", "2026-01-01", "test"},
                 {key.first,
                  key.second,
                  {{{"a", Duration::Microseconds(key.second), Bytes()}, 5, 0.1}}});
          }
        };
  }

  std::mutex mutex;
  std::vector<EntryKey> measured;
  std::set<int> used;
  size_t fail_after = SIZE_MAX;
};

std::vector<Trace> Traces(int64_t batch) {
  std::vector<Trace> traces;
  for (const char* preset : {"torch", "vdnn"}) {
    traces.push_back(LowerNetwork(testing::Chain(), {batch, preset, true}));
  }
  return traces;
}

std::vector<EntryKey> KeysOf(const CostTable& table) {
  std::vector<EntryKey> keys;
  for (const CostEntry& entry : table.entries) keys.emplace_back(entry.signature, entry.batch);
  return keys;
}

TEST(RecordingTest, MeasuresEachEntryOnceOnSomeGpu) {
  FakeGpus gpus;
  CostRecording recording({"ACME", kLibrary, {0, 3}, nullptr}, gpus.Measure());
  const std::vector<Trace> traces = Traces(8);
  const std::vector<int64_t> micro{1, 2, 4, 8};
  const CostTable table = recording.Table("chain:8", traces, micro);
  const std::set<EntryKey> needed = NeededEntries(traces, micro);
  EXPECT_GT(needed.size(), NeededEntries(traces, {}).size());  // convolutions are divided
  EXPECT_EQ(KeysOf(table), std::vector<EntryKey>(needed.begin(), needed.end()));
  EXPECT_THAT(gpus.measured, ::testing::UnorderedElementsAreArray(needed));
  EXPECT_THAT(gpus.used, UnorderedElementsAre(0, 3));
  EXPECT_EQ(table.provenance.gpu, "ACME");
  EXPECT_EQ(recording.Table("chain:8", traces, micro), table);
  EXPECT_EQ(gpus.measured.size(), needed.size());
}

TEST(RecordingTest, WhatAStoreHoldsIsNotMeasured) {
  const testing::TemporaryDirectory directory;
  const auto store = std::make_shared<BenchmarkStore>(directory / "s.sqlite");
  const std::vector<Trace> traces = Traces(8);
  FakeGpus first, second;
  const std::vector<int64_t> micro{4};
  const CostTable table = CostRecording({"ACME", kLibrary, {0}, store}, first.Measure())
                              .Table("chain:8", traces, micro);
  EXPECT_EQ(CostRecording({"ACME", kLibrary, {0}, store}, second.Measure())
                .Table("chain:8", traces, micro),
            table);
  EXPECT_TRUE(second.measured.empty());
  EXPECT_EQ(TableFromStore(*store, kLibrary, "chain:8", traces), table);
  EXPECT_THAT(testing::InputErrorOf([&] {
                static_cast<void>(TableFromStore(*store, kLibrary, "chain:16", Traces(16)));
              }),
              HasSubstr("s.sqlite: lacks "));
  EXPECT_THAT(testing::InputErrorOf([&] {
                CostRecording({"Umbrella", kLibrary, {0}, store}, second.Measure());
              }),
              HasSubstr("holds measurements of ACME, not of Umbrella"));
}

// The fourth kernel does not fit. The first three are in the store and are not measured again.
TEST(RecordingTest, AFailureLosesNothingThatWasMeasured) {
  const testing::TemporaryDirectory directory;
  const auto store = std::make_shared<BenchmarkStore>(directory / "s.sqlite");
  const std::vector<Trace> traces = Traces(8);
  FakeGpus gpus;
  gpus.fail_after = 3;
  EXPECT_THROW(CostRecording({"ACME", kLibrary, {0}, store}, gpus.Measure()).Table("c", traces, {}),
               Error);
  EXPECT_EQ(store->Holdings().at(0).entries, 3);
  FakeGpus again;
  CostRecording({"ACME", kLibrary, {0}, store}, again.Measure()).Table("c", traces, {});
  EXPECT_EQ(again.measured.size(), NeededEntries(traces, {}).size() - 3);
}

// Another process has measured the entry meanwhile, and both tables use its time.
TEST(RecordingTest, OneStoreGivesOneAnswer) {
  const testing::TemporaryDirectory directory;
  const auto store = std::make_shared<BenchmarkStore>(directory / "s.sqlite");
  const std::vector<Trace> traces = Traces(8);
  FakeGpus gpus;
  const auto measure = [&](const Trace& trace, const std::set<EntryKey>& wanted, int device,
                           const auto& done) {
    CostTable other{"", {"ACME", "1", "13.0", "9.14.0", "fp32", "2025", "other"}, {}, {}};
    for (const EntryKey& key : wanted) {
      other.entries.push_back(
          {key.first, key.second, {{{"b", Duration::Microseconds(99), Bytes()}, 5, 0.1}}});
    }
    BenchmarkStore(directory / "s.sqlite").Put(other);
    gpus.Measure()(trace, wanted, device, done);
  };
  const CostTable table =
      CostRecording({"ACME", kLibrary, {0}, store}, measure).Table("chain:8", traces, {});
  for (const CostEntry& entry : table.entries) EXPECT_EQ(entry.kernels[0].kernel.algorithm, "b");
}

TEST(RecordingTest, TablesOfThisMachineAreKept) {
  FakeGpus gpus;
  const std::vector<Trace> traces = Traces(8);
  CostTable table =
      CostRecording({"ACME", kLibrary, {0}, nullptr}, gpus.Measure()).Table("chain:8", traces, {});
  FakeGpus none;
  CostRecording recording({"ACME", kLibrary, {0}, nullptr}, none.Measure());
  recording.Keep(table, "t.json");
  EXPECT_EQ(recording.Table("chain:8", traces, {}), table);
  EXPECT_TRUE(none.measured.empty());
  CostTable both = CostRecording({"ACME", kLibrary, {0}, nullptr}, gpus.Measure())
                       .Table("chain:8", traces, std::vector<int64_t>{4});
  const CostTable more = both;
  EXPECT_GT(more.entries.size(), table.entries.size());
  both.entries.erase(both.entries.begin(), both.entries.begin() + 3);
  AddMissing(more, both);
  EXPECT_EQ(both, more);
  table.provenance.math = "tf32";
  EXPECT_EQ(testing::InputErrorOf([&] { recording.Keep(table, "t.json"); }),
            "t.json: recorded on ACME, cuDNN 9.14.0, tf32; this is ACME, cuDNN 9.14.0, fp32");
}

}  // namespace
}  // namespace spillway::testing
