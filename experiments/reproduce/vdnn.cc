// vDNN (Rhu et al., MICRO 2016): memory of its policies, on a Titan X.

#include <fmt/format.h>

#include "experiments/reproduce/paper.h"
#include "experiments/reproduce/scene.h"
#include "traces/base/error.h"
#include "traces/lowering/lowering.h"

namespace spillway {

std::vector<PaperTable> VdnnTables(const PaperValues&) {
  const Counting& counting = FindPreset("vdnn").counting;
  // Its VGG-16 is configuration E.
  PaperTable table{"", {.networks = {{"VGG-16", "vgg19"}}, .ignored = "- "}, {}, {}};
  const auto add = [&](const char* what, const char* policy, Bytes Metrics::*metric,
                       Bytes (*besides)(const Trace&)) {
    const auto compute = [=, unit = counting.bytes_per_unit](const PaperRow& row) {
      const Scene scene(row.workload, "vdnn", "titan_x_maxwell");
      const Report report = scene.Run(policy);
      SPILLWAY_CHECK(report.fits());  // memory is unlimited
      const Bytes bytes = report.metrics.*metric + (besides ? besides(scene.trace) : Bytes(0));
      return static_cast<double>(bytes.count()) / static_cast<double>(unit.count());
    };
    table.columns.push_back(
        {fmt::format("{} {{workload}} GB", what), "GB", compute, counting.round_down});
  };
  // All tensors of the network-wide run, and the workspace that the paper counts.
  add("base", "network-wide:algo=memory", &Metrics::peak_requested, FftBaselineWorkspace);
  add("offload all", "vdnn-all", &Metrics::offloaded, nullptr);
  add("offload conv", "vdnn-conv", &Metrics::offloaded, nullptr);
  add("all(m) max", "vdnn-all:algo=memory", &Metrics::peak_requested, nullptr);
  add("conv(m) max", "vdnn-conv:algo=memory", &Metrics::peak_requested, nullptr);
  return {table};
}

}  // namespace spillway
