#include "experiments/evidence/roofline/errors.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdio>
#include <filesystem>
#include <set>
#include <span>
#include <tuple>
#include <utility>

#include "experiments/run/cost_source.h"
#include "experiments/run/data_files.h"
#include "experiments/run/device_specification.h"
#include "experiments/run/inputs.h"
#include "experiments/run/workload_text.h"
#include "sim/cost/roofline.h"
#include "sim/cost/sequence_time.h"
#include "sim/cost/table_cost.h"
#include "traces/base/error.h"
#include "traces/ops/op_table.h"

namespace spillway::lab {
namespace {

// The presets under which operations are recorded.
constexpr std::array kPresets{"torch", "vdnn"};

std::span<const char* const> PresetsOf(RecordedKind kind) {
  return std::span(kPresets).first(kind == RecordedKind::kImages ? 2 : 1);
}

double Quantile(std::vector<double> values, double share) {
  if (values.empty()) return 0;
  std::sort(values.begin(), values.end());
  const auto last = static_cast<double>(values.size() - 1);
  return values[static_cast<size_t>(std::llround(share * last))];
}

double LogRatio(double a, double b) { return std::abs(std::log(a / b)); }

const Kernel* FindKernel(std::span<const Kernel> kernels, const std::string& algorithm) {
  const auto found = std::find_if(kernels.begin(), kernels.end(),
                                  [&](const Kernel& k) { return k.algorithm == algorithm; });
  return found == kernels.end() ? nullptr : &*found;
}

double MeanTimeError(const std::vector<const Sample*>& samples, const CostModel& model) {
  double sum = 0;
  for (const Sample* sample : samples) {
    const Kernel* kernel = FindKernel(model.Kernels(sample->op, sample->slot, sample->batch),
                                      sample->recorded.algorithm);
    if (kernel != nullptr) sum += LogRatio(kernel->time.seconds(), sample->recorded.time.seconds());
  }
  return sum / static_cast<double>(samples.size());
}

}  // namespace

std::string ErrorKeyOf(const Device& device, const Op& op, size_t slot,
                       const std::string& algorithm) {
  const Slot& call = op.slots[slot];
  if (RowOf(op.type).algorithms) return call.name + "." + algorithm;
  if (std::string key = SequenceKey(device, op, call); !key.empty()) return key;
  const bool bf16 = call.signature.find(" bf16") != std::string::npos;
  return call.signature.substr(0, call.signature.find(' ')) + (bf16 ? " bf16" : "");
}

namespace {

// Returns true iff the table is of a network with convolutions in fp32.
bool HasConvolutions(const std::filesystem::path& table) {
  return std::ranges::any_of(ReadCostTable(table).entries, [](const CostEntry& entry) {
    return entry.signature.starts_with("conv2d") &&
           entry.signature.find(" bf16") == std::string::npos;
  });
}

}  // namespace

std::vector<std::string> RecordedWorkloads(const std::string& device, RecordedKind kind) {
  // The path of the device file leads to the directory of the tables.
  std::vector<std::string> names;
  const auto directory = FindDataFile(std::filesystem::path("sim/devices") / (device + ".toml"));
  if (!directory) return names;
  const std::filesystem::path tables =
      directory->parent_path().parent_path().parent_path() / "traces/recorded" / device;
  std::error_code ignored;
  for (const auto& entry : std::filesystem::directory_iterator(tables, ignored)) {
    std::string name = entry.path().filename();
    if (!name.ends_with(".json.zst") || name.ends_with("-1.json.zst")) continue;
    const bool images = kind == RecordedKind::kImages;
    if (HasConvolutions(entry.path()) != images) continue;
    name.resize(name.size() - std::string_view(".json.zst").size());
    name[name.rfind('-')] = ':';
    if (!images) {
      const size_t bf16 = name.find("-bf16:");
      if (bf16 != name.npos) name.erase(bf16, std::string_view("-bf16").size());
      name +=
          bf16 == name.npos ? ",attention=math,optimizer=adamw" : ",optimizer=adamw,precision=bf16";
    }
    names.push_back(std::move(name));
  }
  std::sort(names.begin(), names.end());
  return names;
}

Trace LoadRecorded(const std::string& workload, const std::string& preset) {
  Case asked;
  asked.preset = preset;
  return LoadTrace(WithWorkload(std::move(asked), workload));
}

std::vector<Sample> RecordedSamples(const std::vector<std::string>& workloads,
                                    const std::string& device, RecordedKind kind) {
  const Device specification = LoadDevice(device);
  std::vector<Sample> samples;
  std::set<std::pair<std::string, int64_t>> seen;
  for (const std::string& workload : workloads) {
    std::map<std::pair<std::string, int64_t>, CostEntry> entries;
    for (const char* preset : PresetsOf(kind)) {
      const Trace trace = LoadRecorded(workload, preset);
      if (entries.empty()) {
        const auto path = FindDataFile(RecordedTablePath(device, trace));
        if (!path) {
          throw InputError(fmt::format("no table of '{}' is recorded for '{}'", workload, device));
        }
        CostTable table = ReadCostTable(*path);
        for (CostEntry& entry : table.entries) {
          for (RecordedKernel& recorded : entry.kernels) {
            if (kind == RecordedKind::kTransformers) recorded.kernel.time += table.in_sequence;
          }
          std::pair key{entry.signature, entry.batch};
          entries.emplace(std::move(key), std::move(entry));
        }
      }
      for (const Op& op : trace.ops) {
        for (size_t slot = 0; slot < op.slots.size(); ++slot) {
          const std::pair key{op.slots[slot].signature, op.batch};
          const auto entry = entries.find(key);
          if (entry == entries.end() || !seen.insert(key).second) continue;
          for (const RecordedKernel& recorded : entry->second.kernels) {
            Kernel kernel = recorded.kernel;
            const bool convolution = RowOf(op.type).algorithms;
            if (!convolution) kernel.algorithm = "default";
            samples.push_back({op, slot, op.batch,
                               ErrorKeyOf(specification, op, slot, kernel.algorithm), kernel});
            if (!convolution) break;
          }
        }
      }
    }
  }
  return samples;
}

std::map<std::string, ErrorSummary> SummarizeErrors(const std::vector<Sample>& samples,
                                                    const CostModel& model) {
  constexpr double kLeastWorkspace = 1 << 20;
  struct Errors {
    ErrorSummary summary;
    std::vector<double> time;
    std::vector<double> workspace;
  };
  std::map<std::string, Errors> by_key;
  for (const Sample& sample : samples) {
    Errors& errors = by_key[sample.key];
    const Kernel* kernel =
        FindKernel(model.Kernels(sample.op, sample.slot, sample.batch), sample.recorded.algorithm);
    if (kernel == nullptr) {
      ++errors.summary.missing;
      continue;
    }
    errors.time.push_back(LogRatio(kernel->time.seconds(), sample.recorded.time.seconds()));
    if (kernel->workspace == sample.recorded.workspace) ++errors.summary.exact;
    const double ours = static_cast<double>(kernel->workspace.count());
    const double recorded = static_cast<double>(sample.recorded.workspace.count());
    if (std::max(ours, recorded) >= kLeastWorkspace) {
      errors.workspace.push_back(
          LogRatio(std::max(ours, kLeastWorkspace), std::max(recorded, kLeastWorkspace)));
    }
  }
  std::map<std::string, ErrorSummary> summaries;
  for (auto& [key, errors] : by_key) {
    ErrorSummary& summary = summaries[key];
    summary = errors.summary;
    summary.samples = errors.time.size();
    summary.workspaces = errors.workspace.size();
    summary.time_median = Quantile(errors.time, 0.5);
    summary.time_p90 = Quantile(errors.time, 0.9);
    summary.workspace_median = Quantile(errors.workspace, 0.5);
    summary.workspace_p90 = Quantile(errors.workspace, 0.9);
  }
  return summaries;
}

Duration FastestIteration(const Trace& trace, const CostModel& cost) {
  Duration total;
  for (const Op& op : trace.ops) {
    for (size_t slot = 0; slot < op.slots.size(); ++slot) {
      total += cost.Kernels(op, slot, op.batch).front().time;
    }
  }
  return total;
}

Device FitEfficiencies(const Device& device, const std::vector<Sample>& samples) {
  constexpr double kLeast = 0.02;
  constexpr double kMost = 2;
  constexpr int kSteps = 240;
  std::map<std::string, std::vector<const Sample*>> by_key;
  for (const Sample& sample : samples) by_key[sample.key].push_back(&sample);
  Device fitted = device;
  for (auto& [key, efficiency] : fitted.efficiency) {
    const auto found = by_key.find(key);
    if (found == by_key.end()) continue;
    double least = INFINITY;
    for (int step = 0; step <= kSteps; ++step) {
      const double candidate =
          std::stod(fmt::format("{:.3g}", kLeast * std::pow(kMost / kLeast, 1.0 * step / kSteps)));
      // The other efficiencies do not affect the kernels of this key.
      Device trial = device;
      trial.efficiency[key] = candidate;
      const double error = MeanTimeError(found->second, RooflineCostModel(trial));
      if (error < least) {
        least = error;
        efficiency = candidate;
      }
    }
  }
  return fitted;
}

}  // namespace spillway::lab
