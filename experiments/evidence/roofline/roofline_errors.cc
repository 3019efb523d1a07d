// Prints the errors of the analytic model of a device against its recorded tables, as CSV.
//
//   roofline_errors [--transformers] [--fit | --hold-out NETWORK] [DEVICE]
//
// The tables are those of networks with convolutions, or with --transformers the others. --fit
// prints the efficiencies that fit best instead. --hold-out fits the efficiencies on all other
// networks and prints the errors for NETWORK, at all lengths. DEVICE is h200 by default.

#include <fmt/format.h>

#include <cmath>
#include <cstdio>
#include <exception>
#include <string>
#include <vector>

#include "experiments/evidence/roofline/errors.h"
#include "experiments/run/cost_source.h"
#include "experiments/run/device_specification.h"
#include "experiments/run/inputs.h"
#include "sim/cost/roofline.h"
#include "sim/cost/table_cost.h"
#include "traces/base/error.h"

namespace spillway::lab {
namespace {

void PrintErrors(const std::vector<std::string>& workloads, const std::vector<Sample>& samples,
                 const Device& device) {
  const RooflineCostModel model(device);
  fmt::print(
      "kernels,samples,missing,time_median,time_p90,workspaces,workspace_exact,workspace_median,"
      "workspace_p90\n");
  for (const auto& [key, errors] : SummarizeErrors(samples, model)) {
    fmt::print("{},{},{},{:.3f},{:.3f},{},{},{:.3f},{:.3f}\n", key, errors.samples, errors.missing,
               errors.time_median, errors.time_p90, errors.workspaces, errors.exact,
               errors.workspace_median, errors.workspace_p90);
  }
  fmt::print("\nworkload,recorded_ms,predicted_ms,ratio\n");
  for (const std::string& workload : workloads) {
    const Trace trace = LoadRecorded(workload);
    const auto recorded = LoadCost("auto", trace, device).model;
    const double truth = FastestIteration(trace, *recorded).seconds() * 1e3;
    const double ours = FastestIteration(trace, model).seconds() * 1e3;
    fmt::print("{},{:.2f},{:.2f},{:.3f}\n",
               workload.find(',') == workload.npos ? workload : '"' + workload + '"', truth, ours,
               ours / truth);
  }
}

int Main(const std::vector<std::string>& args) {
  bool fit = false;
  RecordedKind kind = RecordedKind::kImages;
  std::string held_out;
  std::string name = "h200";
  for (size_t i = 0; i < args.size(); ++i) {
    if (args[i] == "--fit") {
      fit = true;
    } else if (args[i] == "--transformers") {
      kind = RecordedKind::kTransformers;
    } else if (args[i] == "--hold-out" && i + 1 < args.size()) {
      held_out = args[++i];
    } else if (args[i].starts_with("-")) {
      throw UsageError(
          "usage: roofline_errors [--transformers] [--fit | --hold-out NETWORK] [DEVICE]");
    } else {
      name = args[i];
    }
  }
  Device device = LoadDevice(name);
  std::vector<std::string> all = RecordedWorkloads(device.name, kind);
  std::vector<std::string> judged;
  std::vector<std::string> others;
  for (std::string& workload : all) {
    const bool held = workload.substr(0, workload.find_first_of("@:")) == held_out;
    (held_out.empty() || held ? judged : others).push_back(std::move(workload));
  }
  if (judged.empty()) throw UsageError(fmt::format("no such workload is recorded for '{}'", name));
  const std::vector<Sample> samples = RecordedSamples(judged, device.name, kind);
  if (!held_out.empty())
    device = FitEfficiencies(device, RecordedSamples(others, device.name, kind));
  if (!fit) {
    PrintErrors(judged, samples, device);
    return 0;
  }
  fmt::print("efficiency,value\n");
  for (const auto& [key, value] : FitEfficiencies(device, samples).efficiency) {
    fmt::print("{},{}\n", key, value);
  }
  return 0;
}

}  // namespace
}  // namespace spillway::lab

int main(int argc, char** argv) {
  try {
    return spillway::lab::Main({argv + 1, argv + argc});
  } catch (const spillway::lab::UsageError& error) {
    fmt::print(stderr, "roofline_errors: {}\n", error.what());
    return 2;
  } catch (const spillway::lab::InputError& error) {
    fmt::print(stderr, "roofline_errors: {}\n", error.what());
    return 3;
  }
}
