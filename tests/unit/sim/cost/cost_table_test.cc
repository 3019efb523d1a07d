#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>
#include <string>
#include <vector>

#include "sim/cost/table_cost.h"
#include "tests/testing/files.h"
#include "traces/base/file.h"

namespace spillway::testing {
namespace {

using ::spillway::testing::InputErrorOf;
using ::spillway::testing::TemporaryDirectory;
using ::testing::HasSubstr;
using ::testing::StartsWith;

// Entries and kernels are not in the order that reading must give them.
constexpr std::string_view kTable = R"({
"format": "spillway-cost-table", "version": 1, "workload": "vgg16:64",
"provenance": {"gpu": "NVIDIA H200", "driver": "580", "cuda": "13.0", "cudnn": "9.14",
 "math": "fp32", "date": "2026-01-01T00:00:00Z", "tool": "spillway 0.1.0"},
"entries": [
{"signature": "conv", "batch": 64, "kernels": [
 {"algorithm": "gemm", "time_ps": 30, "workspace": 0, "deterministic": true, "repeats": 9, "spread": 0.25},
 {"algorithm": "tiles", "time_ps": 20, "workspace": 7, "deterministic": false, "repeats": 9, "spread": 0},
 {"algorithm": "y", "time_ps": 20, "workspace": 5, "deterministic": true, "repeats": 9, "spread": 0},
 {"algorithm": "x", "time_ps": 20, "workspace": 5, "deterministic": true, "repeats": 9, "spread": 0}]},
{"signature": "conv", "batch": 16, "kernels": [
 {"algorithm": "gemm", "time_ps": 9, "workspace": 0, "deterministic": true, "repeats": 9, "spread": 0}]},
{"signature": "add", "batch": 64, "kernels": [
 {"algorithm": "default", "time_ps": 1, "workspace": 0, "deterministic": true, "repeats": 9, "spread": 0}]}]})";

std::string ErrorOfEdit(std::string_view from, std::string_view to) {
  std::string text(kTable);
  const size_t at = text.find(from);
  EXPECT_NE(at, std::string::npos) << from;
  text.replace(at, from.size(), to);
  return InputErrorOf([&] { ParseCostTable(text, "t.json"); });
}

Device SomeDevice() {
  Device device;
  device.h2d = {{1'000'000'000}, Duration::Microseconds(10)};
  device.d2h = {{2'000'000'000}, Duration::Microseconds(3)};
  return device;
}

Op OpWith(const std::string& signature) {
  Op op;
  op.name = "op";
  op.batch = 64;
  op.slots = {{"other", "nothing", 0, {}}, {"fwd", signature, 0, {}}};
  return op;
}

TEST(CostTableTest, ReadsAndSorts) {
  const CostTable table = ParseCostTable(kTable, "t.json");
  EXPECT_EQ(table.workload, "vgg16:64");
  EXPECT_EQ(table.provenance.gpu, "NVIDIA H200");
  EXPECT_EQ(table.provenance.driver, "580");
  EXPECT_EQ(table.provenance.cuda, "13.0");
  EXPECT_EQ(table.provenance.cudnn, "9.14");
  EXPECT_EQ(table.provenance.math, "fp32");
  EXPECT_EQ(table.provenance.date, "2026-01-01T00:00:00Z");
  EXPECT_EQ(table.provenance.tool, "spillway 0.1.0");
  ASSERT_EQ(table.entries.size(), 3);
  EXPECT_EQ(table.entries[0].signature, "add");
  EXPECT_EQ(table.entries[1].batch, 16);
  const CostEntry& entry = table.entries[2];
  EXPECT_EQ(entry.batch, 64);
  ASSERT_EQ(entry.kernels.size(), 4);
  EXPECT_EQ(entry.kernels[0].kernel.algorithm, "x");
  EXPECT_EQ(entry.kernels[1].kernel.algorithm, "y");
  EXPECT_EQ(entry.kernels[2].kernel.algorithm, "tiles");
  EXPECT_FALSE(entry.kernels[2].kernel.deterministic);
  EXPECT_EQ(entry.kernels[2].kernel.workspace, Bytes(7));
  EXPECT_EQ(entry.kernels[3].kernel.algorithm, "gemm");
  EXPECT_EQ(entry.kernels[3].kernel.time, Duration::Picoseconds(30));
  EXPECT_EQ(entry.kernels[3].repeats, 9);
  EXPECT_EQ(entry.kernels[3].spread, 0.25);
}

TEST(CostTableTest, RoundTripsToIdenticalBytes) {
  const TemporaryDirectory directory;
  const CostTable table = ParseCostTable(kTable, "t.json");
  const std::string text = FormatCostTable(table);
  EXPECT_EQ(FormatCostTable(ParseCostTable(text, "t.json")), text);
  for (const char* name : {"t.json", "t.json.zst"}) {
    WriteCostTable(table, directory / name);
    EXPECT_EQ(FormatCostTable(ReadCostTable(directory / name)), text);
  }
}

TEST(CostTableTest, WritingDoesNotDependOnTheOrder) {
  CostTable table = ParseCostTable(kTable, "t.json");
  const std::string text = FormatCostTable(table);
  std::swap(table.entries[0], table.entries[2]);
  std::swap(table.entries[0].kernels[0], table.entries[0].kernels[3]);
  EXPECT_EQ(FormatCostTable(table), text);
}

TEST(CostTableTest, ExampleOfSpecificationRoundTripsToItsOwnBytes) {
  const std::string text = ReadFile(testing::InSource("traces/FORMAT.md"));
  const size_t begin = text.rfind("```json\n") + 8;
  const std::string example = text.substr(begin, text.find("```", begin) - begin);
  EXPECT_EQ(FormatCostTable(ParseCostTable(example, "FORMAT.md")), example);
}

TEST(CostTableTest, WriterRefusesWhatCouldNotBeReadBack) {
  CostTable table = ParseCostTable(kTable, "t.json");
  table.entries[0].kernels[0].kernel.time = Duration();
  EXPECT_THAT(InputErrorOf([&] { FormatCostTable(table); }), StartsWith("cost table 'vgg16:64':"));
  table = ParseCostTable(kTable, "t.json");
  table.entries[0].kernels[0].spread = std::numeric_limits<double>::quiet_NaN();
  EXPECT_THROW(FormatCostTable(table), InputError);
  table = ParseCostTable(kTable, "t.json");
  table.entries[0].kernels.clear();
  EXPECT_THROW(FormatCostTable(table), InputError);
}

TEST(CostTableTest, EmptyTable) {
  CostTable table;
  table.workload = "nothing";
  const std::string text = FormatCostTable(table);
  EXPECT_EQ(FormatCostTable(ParseCostTable(text, "t.json")), text);
}

TEST(CostTableTest, ErrorsNameFileAndElement) {
  EXPECT_EQ(ErrorOfEdit("\"time_ps\": 30", "\"time_ps\": 0"),
            "t.json:7:35: entries[0].kernels[0].time_ps: expected an integer from 1 to "
            "1000000000000000, got '0'");
  EXPECT_THAT(ErrorOfEdit("\"time_ps\": 30", "\"time_ps\": 1000000000000001"),
              HasSubstr("got '1000000000000001'"));
  EXPECT_THAT(ErrorOfEdit("\"time_ps\": 30", "\"time_ps\": -30"), HasSubstr("got '-30'"));
  EXPECT_THAT(ErrorOfEdit("\"time_ps\": 30", "\"time_ps\": 30.5"), HasSubstr("got '30.5'"));
  EXPECT_EQ(ErrorOfEdit("\"time_ps\": 30", "\"time\": 30"),
            "t.json:7:24: entries[0].kernels[0]: unknown key 'time'; did you mean 'time_ps'? "
            "(valid: algorithm, "
            "time_ps, workspace, deterministic, repeats, spread)");
  EXPECT_EQ(ErrorOfEdit("\"spread\": 0.25", "\"spread\": -0.25"),
            "t.json:7:102: entries[0].kernels[0].spread: expected a number from 0, got a negative "
            "one");
  EXPECT_EQ(ErrorOfEdit(", \"spread\": 0.25", ""),
            "t.json:7:2: entries[0].kernels[0]: the key 'spread' is missing");
  EXPECT_EQ(
      ErrorOfEdit("\"algorithm\": \"y\"", "\"algorithm\": \"gemm\""),
      "t.json:9:16: entries[0].kernels[2].algorithm: algorithm 'gemm' is in this entry already");
  EXPECT_EQ(ErrorOfEdit("\"batch\": 16", "\"batch\": 64"),
            "t.json:11:1: entries[1]: 'conv' at batch 64 is in this table already");
  EXPECT_THAT(ErrorOfEdit("\"batch\": 16", "\"batch\": 0"),
              StartsWith("t.json:11:32: entries[1].batch: expected an integer from 1"));
  EXPECT_EQ(ErrorOfEdit("\"kernels\": [",
                        "\"kernels\": []}, {\"signature\": \"x\", \"batch\": 1, "
                        "\"kernels\": ["),
            "t.json:6:47: entries[0].kernels: the list of kernels is empty");
  EXPECT_THAT(ErrorOfEdit("\"workspace\": 0", "\"workspace\": -1"),
              HasSubstr("entries[0].kernels[0].workspace: expected an integer from 0"));
  EXPECT_EQ(ErrorOfEdit("\"math\": \"fp32\", ", ""),
            "t.json:3:15: provenance: the key 'math' is missing");
  EXPECT_EQ(ErrorOfEdit("\"version\": 1", "\"version\": 2"),
            "t.json:2:45: version: unsupported version 2; this program reads version 1");
  EXPECT_THAT(ErrorOfEdit("spillway-cost-table", "spillway-trace"),
              HasSubstr("expected \"spillway-cost-table\", got \"spillway-trace\""));
}

TEST(CostTableTest, EveryTruncationIsAnInputError) {
  for (size_t size = 0; size < kTable.size(); ++size) {
    EXPECT_THROW(ParseCostTable(kTable.substr(0, size), "t.json"), InputError) << size;
  }
}

TEST(TableCostModelTest, FindsKernelsOfSignatureAndBatch) {
  const TableCostModel model(ParseCostTable(kTable, "t.json"), SomeDevice());
  const auto kernels = model.Kernels(OpWith("conv"), 1, 64);
  ASSERT_EQ(kernels.size(), 4);
  EXPECT_EQ(kernels[0].algorithm, "x");
  EXPECT_EQ(kernels[3].algorithm, "gemm");
  // The span stays valid as long as the model lives.
  EXPECT_EQ(model.Kernels(OpWith("conv"), 1, 64).data(), kernels.data());
}

TEST(TableCostModelTest, MicroBatchIsAnEntryOfItsOwn) {
  const TableCostModel model(ParseCostTable(kTable, "t.json"), SomeDevice());
  const auto kernels = model.Kernels(OpWith("conv"), 1, 16);
  ASSERT_EQ(kernels.size(), 1);
  EXPECT_EQ(kernels[0].time, Duration::Picoseconds(9));
}

TEST(TableCostModelTest, KernelsTakeLongerInASequence) {
  std::string text(kTable);
  text.replace(text.find("\"entries\""), 0, "\"in_sequence_ps\": 4, ");
  const CostTable table = ParseCostTable(text, "t.json");
  EXPECT_EQ(table.in_sequence, Duration::Picoseconds(4));
  EXPECT_EQ(ParseCostTable(FormatCostTable(table), "t.json"), table);
  const TableCostModel model(table, SomeDevice());
  EXPECT_EQ(model.Kernels(OpWith("conv"), 1, 16)[0].time, Duration::Picoseconds(13));
  EXPECT_THAT(ErrorOfEdit("\"entries\"", "\"in_sequence_ps\": -1, \"entries\""),
              ::testing::HasSubstr("in_sequence_ps"));
}

TEST(TableCostModelTest, MissingEntryNamesWhatThereIs) {
  const TableCostModel model(ParseCostTable(kTable, "t.json"), SomeDevice());
  EXPECT_EQ(InputErrorOf([&] { model.Kernels(OpWith("conv"), 1, 32); }),
            "no cost for op 'op': 'conv' at batch 32 is not in the table recorded on NVIDIA H200, "
            "cuDNN 9.14, fp32 (recorded batches: 16, 64); record it with `spillway record`");
  EXPECT_EQ(InputErrorOf([&] { model.Kernels(OpWith("pool"), 1, 64); }),
            "no cost for op 'op': 'pool' at batch 64 is not in the table recorded on NVIDIA H200, "
            "cuDNN 9.14, fp32 (nor at any other batch); record it with `spillway record`");
}

TEST(TableCostModelTest, WhatItLacksCanTakeTheRooflinesTime) {
  const TableCostModel model(ParseCostTable(kTable, "t.json"), SomeDevice(),
                             TableCostModel::Missing::kRoofline);
  EXPECT_EQ(model.Kernels(OpWith("conv"), 1, 16)[0].time, Duration::Picoseconds(9));
  const RooflineCostModel roofline(SomeDevice());
  const auto slice = model.Kernels(OpWith("pool"), 1, 64);
  ASSERT_FALSE(slice.empty());
  EXPECT_EQ(slice[0], roofline.Kernels(OpWith("pool"), 1, 64)[0]);
  EXPECT_THAT(model.Provenance(), HasSubstr("and the roofline for other slices"));
}

TEST(TableCostModelTest, CopyTimeIsLatencyPlusTransfer) {
  const TableCostModel model(ParseCostTable(kTable, "t.json"), SomeDevice());
  EXPECT_EQ(model.CopyTime(Direction::kToDevice, Bytes(0)), Duration::Microseconds(10));
  EXPECT_EQ(model.CopyTime(Direction::kToDevice, Bytes(1'000'000)), Duration::Microseconds(1010));
  EXPECT_EQ(model.CopyTime(Direction::kToHost, Bytes(1'000'000)), Duration::Microseconds(503));
}

TEST(TableCostModelTest, FirstOfSeveralTablesCounts) {
  const CostTable first = ParseCostTable(kTable, "t.json");
  CostTable second = first;
  second.entries[0].kernels[0].kernel.time = Duration::Picoseconds(1000);
  second.entries[1].batch = 8;
  const TableCostModel model(std::vector{first, second}, SomeDevice());
  EXPECT_EQ(model.Kernels(OpWith("add"), 1, 64)[0].time, Duration::Picoseconds(1));
  EXPECT_EQ(model.Kernels(OpWith("conv"), 1, 64).size(), 4);
  EXPECT_EQ(model.Kernels(OpWith("conv"), 1, 16).size(), 1);
  EXPECT_EQ(model.Kernels(OpWith("conv"), 1, 8).size(), 1);
}

TEST(TableCostModelTest, RefusesTablesOfDifferentOrigin) {
  const CostTable first = ParseCostTable(kTable, "t.json");
  CostTable second = first;
  second.workload = "vgg19:64";
  second.provenance.math = "tf32";
  EXPECT_EQ(InputErrorOf([&] {
              TableCostModel(std::vector{first, second}, SomeDevice());
            }),
            "cost tables 'vgg16:64' and 'vgg19:64' cannot be used together: math is 'fp32' in one, "
            "'tf32' in the other");
  second.provenance.math = "fp32";
  second.provenance.driver = "581";
  EXPECT_NO_THROW(TableCostModel(std::vector{first, second}, SomeDevice()));
  EXPECT_THROW(TableCostModel(std::vector<CostTable>{}, SomeDevice()), InputError);
}

TEST(TableCostModelTest, SortsTablesThatWereBuiltByHand) {
  CostTable table = ParseCostTable(kTable, "t.json");
  std::swap(table.entries[2].kernels[0], table.entries[2].kernels[3]);
  const TableCostModel model(table, SomeDevice());
  EXPECT_EQ(model.Kernels(OpWith("conv"), 1, 64)[0].algorithm, "x");
}

}  // namespace
}  // namespace spillway::testing
