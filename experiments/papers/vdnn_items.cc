// vDNN (Rhu et al., MICRO 2016): memory of its policies, on a Titan X.

#include <fmt/format.h>

#include "experiments/papers/vdnn_setup.h"
#include "traces/base/error.h"

namespace spillway::lab {

std::vector<PaperTable> VdnnTables(const PaperValues&) {
  PaperTable table{"Text",
                   vdnn::Names(),
                   {{{"vgg19", 256}}, {{"vgg19", 128}}, {{"vgg19", 32}}, {{"alexnet", 128}}},
                   {}};
  const auto add = [&](const char* what, const char* policy, Bytes Metrics::*metric,
                       Bytes (*besides)(const Trace&)) {
    const auto compute = [=](const Inputs& inputs) {
      const Report report = ReportOf(inputs, policy);
      SPILLWAY_CHECK(report.fits());  // memory is unlimited
      return vdnn::InUnits(report.metrics.*metric +
                           (besides ? besides(*inputs.trace()) : Bytes(0)));
    };
    table.columns.push_back({fmt::format("{} {{workload}} GB", what), "GB", OfInputs(compute)});
  };
  // The baseline is all tensors of the network-wide run and the workspace that the paper counts.
  add("base", "network-wide:algo=memory", &Metrics::peak_requested, FftBaselineWorkspace);
  add("offload all", "vdnn-all", &Metrics::offloaded, nullptr);
  add("offload conv", "vdnn-conv", &Metrics::offloaded, nullptr);
  add("all(m) max", "vdnn-all:algo=memory", &Metrics::peak_requested, nullptr);
  add("conv(m) max", "vdnn-conv:algo=memory", &Metrics::peak_requested, nullptr);
  std::vector<PaperTable> tables = vdnn::Figures();
  tables.insert(tables.begin(), table);
  for (PaperTable& each : tables) {
    each.device = "titan_x_maxwell";
    each.preset = "vdnn";
    each.request = PaperRequest::kPaperName;
  }
  return tables;
}

}  // namespace spillway::lab
