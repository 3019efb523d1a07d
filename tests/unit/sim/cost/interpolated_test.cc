// Tests of kernel times between recorded batches.

#include "sim/cost/interpolated.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "experiments/run/cost_source.h"
#include "experiments/run/data_files.h"
#include "experiments/run/device_specification.h"
#include "experiments/run/inputs.h"
#include "experiments/run/memory_budget.h"
#include "experiments/run/run.h"
#include "sim/cost/table_cost.h"
#include "traces/base/error.h"

namespace spillway::testing {
namespace {

using ::testing::HasSubstr;
using ::testing::StartsWith;

CostEntry Entry(const std::string& signature, int64_t batch,
                const std::vector<std::pair<std::string, int64_t>>& kernels) {
  CostEntry entry{signature, batch, {}};
  for (const auto& [algorithm, time] : kernels) {
    entry.kernels.push_back({{algorithm, Duration::Picoseconds(time), Bytes(10 * time)}, 1, 0});
  }
  return entry;
}

TEST(InterpolatedTest, KernelsOfBothBatchesLieOnALine) {
  const BatchTable below{10,
                         {"n:10",
                          {},
                          Duration::Picoseconds(4),
                          {Entry("both", 10, {{"a", 100}, {"b", 50}}), Entry("once", 1, {{"a", 7}}),
                           Entry("small", 10, {{"a", 9}})}}};
  const BatchTable above{30,
                         {"n:30",
                          {},
                          Duration::Picoseconds(8),
                          {Entry("both", 30, {{"a", 201}, {"c", 1}}), Entry("once", 1, {{"a", 8}}),
                           Entry("large", 30, {{"a", 9}}), Entry("both", 20, {{"a", 110}})}}};
  const CostTable table = *Interpolate(below, above, 15);
  EXPECT_EQ(table.in_sequence, Duration::Picoseconds(5));
  EXPECT_EQ(table.entries,
            (std::vector<CostEntry>{Entry("both", 10, {{"a", 100}, {"b", 50}}),
                                    Entry("both", 15, {{"a", 105}}), Entry("once", 1, {{"a", 7}}),
                                    Entry("small", 10, {{"a", 9}})}));
  // Times at 25 are interpolated between 20 and 30; times at 20 are as recorded.
  EXPECT_EQ(Interpolate(below, above, 25)->entries[2], [] {
    CostEntry entry = Entry("both", 25, {{"a", 156}});
    entry.kernels[0].kernel.workspace = Bytes(1555);
    return entry;
  }());
  EXPECT_EQ(Interpolate(below, above, 20)->entries[1], Entry("both", 20, {{"a", 110}}));
}

TEST(InterpolatedTest, TablesOfTwoLibrariesAreNotMixed) {
  BatchTable below{1, {}}, above{3, {}};
  EXPECT_TRUE(Interpolate(below, above, 2));
  above.table.provenance.cudnn = "9";
  EXPECT_FALSE(Interpolate(below, above, 2));
}

// Leaves out each recorded batch that lies between two others and predicts it from them.
TEST(InterpolatedTest, ABatchLeftOutIsPredictedFromThoseAround) {
  const Device device = LoadDevice("h200");
  struct Case {
    const char* network;
    int64_t below, batch, above;
  };
  const std::vector<Case> cases{
      {"vgg16", 32, 64, 128},      {"vgg16", 64, 128, 256},     {"vgg19", 64, 128, 256},
      {"alexnet", 64, 128, 256},   {"alexnet", 128, 256, 512},  {"googlenet", 32, 64, 128},
      {"googlenet", 64, 128, 256}, {"resnet50", 16, 32, 64},    {"resnet50", 32, 64, 128},
      {"densenet121", 16, 32, 64}, {"densenet121", 32, 64, 128}};
  double sum = 0, worst = 0;
  for (const auto& [network, below, batch, above] : cases) {
    const auto read = [&](int64_t recorded) {
      return BatchTable{recorded,
                        ReadCostTable(*FindDataFile(RecordedTablePath("h200", network, recorded)))};
    };
    Draft setup;
    setup.device = device;
    setup.memory = Bytes::Unlimited();
    setup.trace = std::make_shared<const Trace>(LoadTrace({fmt::format("{}:{}", network, batch)}));
    const auto iteration = [&](std::shared_ptr<const CostModel> cost) {
      setup.cost = std::move(cost);
      return Predict(Ideal(setup)).report.metrics.iteration.milliseconds();
    };
    const double exact = iteration(std::make_shared<TableCostModel>(read(batch).table, device));
    const double predicted = iteration(std::make_shared<InterpolatedCostModel>(
        *Interpolate(read(below), read(above), batch), device, "left out"));
    const double error = std::abs(predicted / exact - 1);
    EXPECT_GT(error, 0) << "this is the recorded table";
    RecordProperty(fmt::format("{}_{}", network, batch), fmt::format("{:.4f}", error));
    sum += error;
    worst = std::max(worst, error);
  }
  EXPECT_LE(sum / static_cast<double>(cases.size()), 0.03);
  EXPECT_LE(worst, 0.06);
}

TEST(InterpolatedTest, AutoInterpolatesWhereThereAreBatchesAroundAndSaysSo) {
  const Device device = LoadDevice("h200");
  const auto provenance = [&](const std::string& workload) {
    return LoadCost("auto", LoadTrace({workload}), device).model->Provenance();
  };
  EXPECT_EQ(provenance("vgg16:128").rfind("recorded on NVIDIA H200", 0), 0U);
  EXPECT_THAT(provenance("vgg16:96"),
              StartsWith("interpolated between the batches 64 and 128, recorded on NVIDIA H200"));
  EXPECT_THAT(provenance("vgg16:16"), HasSubstr("roofline"));
  EXPECT_THAT(provenance("vgg16:512"), HasSubstr("roofline"));
  EXPECT_THAT(provenance("resnet18:129"), HasSubstr("roofline"));
}

TEST(InterpolatedTest, AutoTakesATableThatCoversTheTraceAndTheRooflineForSlices) {
  const Device device = LoadDevice("h200");
  const auto provenance = [&](const std::string& workload, bool training) {
    const Trace trace = LoadTrace({.workload = workload, .training = training});
    EXPECT_EQ(FindRecordedTable(trace, device).has_value(), !training || workload != "resnet50:1");
    return LoadCost("auto", trace, device).model->Provenance();
  };
  EXPECT_THAT(provenance("resnet50:1", false), HasSubstr(", and the roofline for other slices"));
  // The table has no backward ops.
  EXPECT_THAT(provenance("resnet50:1", true), StartsWith("analytic"));
  EXPECT_THAT(provenance("vgg16:128", true), ::testing::EndsWith("fp32"));
}

}  // namespace
}  // namespace spillway::testing
