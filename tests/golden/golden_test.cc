// Compares whole reports, as text, with files: every build prints the same. With
// SPILLWAY_UPDATE_GOLDEN=1 the test writes the files anew; read the difference.

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <string>

#include "experiments/run/run.h"
#include "policies/registry.h"
#include "sim/cost/roofline.h"
#include "tests/testing/files.h"
#include "tests/testing/fixtures.h"
#include "tests/testing/networks.h"
#include "tests/testing/runs.h"
#include "traces/base/file.h"
#include "traces/lowering/lowering.h"

namespace spillway::testing {
namespace {

std::string PlacementText(const Trace& trace, const Report& report) {
  constexpr std::array kKinds{"allocate", "free", "enter", "leave"};
  std::string text;
  for (const Placement& placement : report.placements) {
    text += fmt::format("{:>3} {}{} {} [{}, {})\n", placement.commands,
                        !placement.on_device() ? "host " : "",
                        kKinds[static_cast<size_t>(placement.kind)],
                        placement.tensor == kNoTensor ? "-" : trace.tensor(placement.tensor).name,
                        placement.block.offset.count(), placement.block.end().count());
  }
  return text;
}

struct GoldenCase {
  std::string file;
  Network (*network)();
  std::string policy;
  double memory;  // a multiple of the layer bound; 0 for unlimited memory
  const char* preset = "vdnn";
};

class GoldenTest : public ::testing::TestWithParam<GoldenCase> {};

INSTANTIATE_TEST_SUITE_P(
    All, GoldenTest,
    ::testing::Values(GoldenCase{"chain_network_wide", testing::Chain, "network-wide", 0},
                      GoldenCase{"chain_vdnn_conv", testing::Chain, "vdnn-conv", 0},
                      GoldenCase{"forkjoin_vdnn_all", testing::ForkJoin, "vdnn-all:algo=memory", 2},
                      GoldenCase{"forkjoin_vdnn_dyn", testing::ForkJoin, "vdnn-dyn", 1.6},
                      GoldenCase{"chain_vdnnpp_lazy", testing::Chain,
                                 "vdnnpp:offload=all,release=lazy", 1.5},
                      GoldenCase{"forkjoin_vdnnpp_dyn", testing::ForkJoin, "vdnnpp", 1.6},
                      GoldenCase{"normalized_superneurons", testing::Normalized, "superneurons",
                                 1.3, "superneurons"}),
    [](const auto& test) { return test.param.file; });

TEST_P(GoldenTest, ReportIsAsRecorded) {
  const Device device = testing::NarrowDevice();
  const RooflineCostModel cost(device);
  const Trace trace = LowerNetwork(GetParam().network(), {4, GetParam().preset, true});
  const double bound = static_cast<double>(LayerBound(trace, device.alignment).count());
  const Bytes memory = GetParam().memory == 0
                           ? Bytes::Unlimited()
                           : Bytes(static_cast<int64_t>(bound * GetParam().memory));
  PolicyRegistry registry;
  RegisterBuiltinPolicies(registry);
  const Report report = testing::Simulate({Borrow(trace), device, Borrow(cost), memory},
                                          *registry.Make(GetParam().policy))
                            .report;
  ASSERT_TRUE(report.fits()) << report.out_of_memory->Message();
  const std::string text = fmt::format(
      "== timeline (start and end in ns, stream, what)\n{}== decisions\n{}== placements (commands "
      "issued before, what, half-open byte range)\n{}",
      testing::TimelineText(trace, report), testing::DecisionText(trace, report),
      PlacementText(trace, report));
  const std::string path =
      testing::InSource(std::string("tests/golden/") + GetParam().file + ".txt");
  if (std::getenv("SPILLWAY_UPDATE_GOLDEN") != nullptr) WriteFile(path, text);
  EXPECT_EQ(ReadFile(path), text);
}

}  // namespace
}  // namespace spillway::testing
