#include "sim/cost/records/benchmark_store.h"

#include <SQLiteCpp/SQLiteCpp.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <thread>

#include "tests/testing/files.h"

namespace spillway::testing {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

// Returns a table with entries for batches 1 to `count`. The entry for batch n has n kernels.
CostTable SomeTable(int64_t count, const std::string& tool = "spillway 1") {
  CostTable table;
  table.workload = "net:8";
  table.provenance = {"ACME", "1.2", "13.0", "9.14.0", "fp32", "2026-01-01T00:00:00Z", tool};
  for (int64_t batch = 1; batch <= count; ++batch) {
    CostEntry entry{"conv2d.fwd in=3x8x8 groups=3", batch, {}};
    for (int64_t i = 1; i <= batch; ++i) {
      entry.kernels.push_back(
          {{"algo_" + std::to_string(i), Duration::Picoseconds(i * batch), Bytes(512 * i), i != 2},
           10,
           1.0 / static_cast<double>(3 * i)});
    }
    table.entries.push_back(entry);
  }
  return table;
}

TEST(BenchmarkStoreTest, GivesBackWhatWasPut) {
  const TemporaryDirectory directory;
  CostTable table = SomeTable(3);
  table.in_sequence = Duration::Picoseconds(7);
  const KernelLibrary library = LibraryOf(table.provenance);
  {
    BenchmarkStore store(directory / "s.sqlite");
    EXPECT_EQ(store.Gpu(), std::nullopt);
    EXPECT_EQ(store.Put(table), 3);
  }
  BenchmarkStore store(directory / "s.sqlite");
  EXPECT_EQ(store.Gpu(), "ACME");
  for (const CostEntry& entry : table.entries) {
    const auto found = store.Find(library, entry.signature, entry.batch);
    ASSERT_TRUE(found);
    EXPECT_EQ(found->entry, entry);
    EXPECT_EQ(found->provenance, table.provenance);
  }
  EXPECT_THAT(store.Batches(library, table.entries[0].signature), ElementsAre(1, 2, 3));
  EXPECT_EQ(store.InSequence(library, "net:8"), Duration::Picoseconds(7));
  ASSERT_EQ(store.Holdings().size(), 1u);
  EXPECT_EQ(store.Holdings()[0].kernels, 6);
  EXPECT_EQ(store.Find(library, "conv2d.fwd in=3x8x8 groups=1", 1), std::nullopt);
  EXPECT_EQ(store.InSequence(library, "net:4"), std::nullopt);
}

// An entry keeps its first measurement. Entries of another library are separate.
TEST(BenchmarkStoreTest, TheFirstMeasurementStays) {
  const TemporaryDirectory directory;
  BenchmarkStore store(directory / "s.sqlite");
  store.Put(SomeTable(1, "first"));
  EXPECT_EQ(store.Put(SomeTable(2, "second")), 1);
  CostTable other = SomeTable(1, "third");
  other.provenance.cudnn = "9.20.0";
  EXPECT_EQ(store.Put(other), 1);
  const auto tool_of = [&](const std::string& cudnn, int64_t batch) {
    return store.Find({"fp32", cudnn}, "conv2d.fwd in=3x8x8 groups=3", batch)->provenance.tool;
  };
  EXPECT_EQ(tool_of("9.14.0", 1), "first");
  EXPECT_EQ(tool_of("9.14.0", 2), "second");
  EXPECT_EQ(tool_of("9.20.0", 1), "third");
  EXPECT_EQ(store.Holdings().size(), 2u);
}

TEST(BenchmarkStoreTest, AnotherGpuIsRefusedAndChangesNothing) {
  const TemporaryDirectory directory;
  BenchmarkStore store(directory / "s.sqlite");
  store.Put(SomeTable(1));
  CostTable other = SomeTable(3);
  other.provenance.gpu = "Umbrella";
  EXPECT_THAT(InputErrorOf([&] { store.Put(other); }),
              HasSubstr("s.sqlite: holds measurements of ACME, not of Umbrella"));
  EXPECT_EQ(store.Holdings()[0].entries, 1);
}

// Each writer opens a store that does not exist yet and adds one table at a time.
TEST(BenchmarkStoreTest, SeveralWritersLoseNothing) {
  const TemporaryDirectory directory;
  constexpr int64_t kEntries = 24;
  std::vector<std::thread> writers;
  std::vector<int64_t> added(4);
  for (size_t writer = 0; writer < added.size(); ++writer) {
    writers.emplace_back([&, writer] {
      BenchmarkStore store(directory / "s.sqlite");
      const CostTable table = SomeTable(kEntries, std::to_string(writer));
      for (const CostEntry& entry : table.entries) {
        added[writer] += store.Put({table.workload, table.provenance, {}, {entry}});
      }
    });
  }
  for (std::thread& writer : writers) writer.join();
  EXPECT_EQ(added[0] + added[1] + added[2] + added[3], kEntries);
  BenchmarkStore store(directory / "s.sqlite");
  for (const CostEntry& entry : SomeTable(kEntries).entries) {
    EXPECT_EQ(store.Find({"fp32", "9.14.0"}, entry.signature, entry.batch)->entry, entry);
  }
}

TEST(BenchmarkStoreTest, WhatIsHeldByAnotherProcessIsSaid) {
  const TemporaryDirectory directory;
  const auto path = directory / "s.sqlite";
  BenchmarkStore store(path, {.patience = Duration::Milliseconds(20)});
  SQLite::Database other(path.string(), SQLite::OPEN_READWRITE);
  other.exec("BEGIN EXCLUSIVE");
  EXPECT_THAT(InputErrorOf([&] { store.Put(SomeTable(1)); }),
              HasSubstr("s.sqlite: another process has held the file for 20"));
  other.exec("COMMIT");
  EXPECT_EQ(store.Put(SomeTable(1)), 1);
}

TEST(BenchmarkStoreTest, OtherFilesAreRefusedAndLeftAsTheyAre) {
  const TemporaryDirectory directory;
  const auto path = directory / "s.sqlite";
  const auto refused = [&](const std::string& why) {
    const std::string before = testing::ReadRaw(path);
    EXPECT_THAT(InputErrorOf([&] { BenchmarkStore store(path); }), HasSubstr("s.sqlite: " + why));
    EXPECT_EQ(testing::ReadRaw(path), before);
  };
  testing::WriteRaw(path, std::string(2000, '{'));
  refused("is not a benchmark store");
  std::filesystem::remove(path);
  SQLite::Database(path.string(), SQLite::OPEN_READWRITE | SQLite::OPEN_CREATE)
      .exec("CREATE TABLE other (x)");
  refused("is a database of another program");
  std::filesystem::remove(path);
  BenchmarkStore{path};
  SQLite::Database(path.string(), SQLite::OPEN_READWRITE).exec("PRAGMA user_version = 2");
  refused("is a benchmark store of version 2 (valid: 1)");
  std::filesystem::remove(path);
  EXPECT_THAT(InputErrorOf([&] { BenchmarkStore store(path, {.create = false}); }),
              HasSubstr("no such benchmark store"));
  EXPECT_THAT(InputErrorOf([&] { BenchmarkStore store(directory / "no/s.sqlite"); }),
              HasSubstr("unable to open"));
  EXPECT_EQ(directory.CountFiles(), 0u);
}

// The file is damaged by overwriting pages or by cutting off its end.
TEST(BenchmarkStoreTest, DamageIsSaid) {
  const TemporaryDirectory directory;
  const auto path = directory / "s.sqlite";
  BenchmarkStore(path).Put(SomeTable(40));
  const std::string whole = testing::ReadRaw(path);
  const auto read_all = [&] {
    BenchmarkStore store(path);
    for (const CostEntry& entry : SomeTable(40).entries) {
      static_cast<void>(store.Find({"fp32", "9.14.0"}, entry.signature, entry.batch));
    }
  };
  std::string overwritten = whole;
  std::fill(overwritten.begin() + 4096, overwritten.end(), '\x7f');
  testing::WriteRaw(path, overwritten);
  EXPECT_THAT(InputErrorOf(read_all), HasSubstr("s.sqlite: is damaged and was left unchanged"));
  testing::WriteRaw(path, whole.substr(0, whole.size() / 2));
  EXPECT_THAT(InputErrorOf(read_all), HasSubstr("s.sqlite: is damaged and was left unchanged"));
  EXPECT_EQ(testing::ReadRaw(path), whole.substr(0, whole.size() / 2));
}

}  // namespace
}  // namespace spillway::testing
