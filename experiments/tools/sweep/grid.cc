#include "experiments/tools/sweep/grid.h"

#include <fmt/format.h>
#include <toml++/toml.h>

#include <algorithm>
#include <utility>

#include "experiments/run/catalogue.h"
#include "policies/plugin/library.h"
#include "traces/base/error.h"
#include "traces/base/file.h"
#include "traces/lowering/preset.h"
#include "traces/zoo/zoo.h"

namespace spillway {
namespace {

constexpr uint64_t kMostCells = uint64_t{1} << 40;

// Of lists that are empty.
struct Default {
  std::vector<std::string> Experiment::*values;
  const char* text;
};
constexpr Default kDefaults[] = {
    {&Experiment::presets, "torch"},       {&Experiment::modes, "training"},
    {&Experiment::devices, "h200"},        {&Experiment::costs, "auto"},
    {&Experiment::allocators, "best-fit"}, {&Experiment::compress, ""},
    {&Experiment::backends, kSimulator},   {&Experiment::memories, ""},
};

std::vector<std::string> Split(const ExperimentList& list, const Experiment& experiment) {
  const std::vector<std::string>& given = experiment.*list.values;
  std::vector<std::string> values = list.commas ? SplitSpecifications(given) : given;
  if (std::find(values.begin(), values.end(), "") != values.end()) {
    throw UsageError(
        fmt::format("{}: '{}' has an empty place in its list", list.name, fmt::join(given, " ")));
  }
  for (const Default& other : kDefaults) {
    if (other.values == list.values && values.empty()) values.emplace_back(other.text);
  }
  return values;
}

bool IsTraceFile(std::string_view workload) {
  return workload.ends_with(".json") || workload.ends_with(".zst");
}

// One key of an experiment file.
class ExperimentReader {
 public:
  ExperimentReader(std::string origin, Experiment& experiment)
      : origin_(std::move(origin)), experiment_(experiment) {}

  void Read(std::string_view key, const toml::node& node) {
    for (const ExperimentList& list : ExperimentLists()) {
      if (key == list.name) return ReadList(key, node, experiment_.*list.values);
    }
    for (const ExperimentFlag& flag : ExperimentFlags()) {
      if (key != flag.name) continue;
      const toml::value<bool>* truth = node.as_boolean();
      if (truth == nullptr) Fail(node, fmt::format("{} is true or false", key));
      experiment_.*flag.value = truth->get();
      return;
    }
    if (key == "output") {
      experiment_.output = Text(key, node);
      return;
    }
    std::vector<std::string> keys{"output"};
    for (const ExperimentList& list : ExperimentLists()) keys.emplace_back(list.name);
    for (const ExperimentFlag& flag : ExperimentFlags()) keys.emplace_back(flag.name);
    Fail(node, UnknownName("key", key, keys));
  }

 private:
  [[noreturn]] void Fail(const toml::node& node, const std::string& message) const {
    const toml::source_position at = node.source().begin;
    throw InputError(fmt::format("{}:{}:{}: {}", origin_, at.line, at.column, message));
  }

  std::string Text(std::string_view key, const toml::node& node) const {
    const toml::value<std::string>* text = node.as_string();
    if (text == nullptr) Fail(node, fmt::format("{} is a text or an array of texts", key));
    if (text->get().empty()) Fail(node, fmt::format("{} is empty", key));
    return text->get();
  }

  void ReadList(std::string_view key, const toml::node& node, std::vector<std::string>& values) {
    const toml::array* array = node.as_array();
    if (array == nullptr) return values.push_back(Text(key, node));
    for (const toml::node& element : *array) values.push_back(Text(key, element));
  }

  const std::string origin_;
  Experiment& experiment_;
};

}  // namespace

const std::vector<ExperimentList>& ExperimentLists() {
  static const std::vector<ExperimentList> lists{
      {"workload", &Experiment::workloads, false,
       "NETWORK:BATCH or trace files; braces vary network, depth, image and batch"},
      {"preset", &Experiment::presets, true, "Memory accounting; see spillway list presets"},
      {"mode", &Experiment::modes, true, "training, inference"},
      {"device", &Experiment::devices, true,
       "Device names or files, then :key=value,... for what is different (h200:link={1,2,4})"},
      {"pool", &Experiment::pools, false,
       "Memory outside the device, as for compare; each --pool is one, braces vary it"},
      {"cost", &Experiment::costs, true, "Kernel times: auto, roofline, or cost table files"},
      {"allocator", &Experiment::allocators, true, "Device allocators"},
      {"compress", &Experiment::compress, true, "Compression of offloaded feature maps"},
      {"backend", &Experiment::backends, true,
       "sim predicts; cpu executes one iteration on real bytes, with synthetic data"},
      {"memory", &Experiment::memories, true, "Device memory, as for compare (30%,50%,12GiB)"},
      {"policy", &Experiment::policies, true,
       "NAME or PLUGIN.so:NAME, then :key=value,...; all where none is given"},
  };
  return lists;
}

const std::vector<ExperimentFlag>& ExperimentFlags() {
  static const std::vector<ExperimentFlag> flags{
      {"deterministic", &Experiment::deterministic,
       "Only kernels that give the same bits on every run"},
      {"charge-input", &Experiment::charge_input,
       "Copy the inputs to the device in each iteration"},
      {"check", &Experiment::check, "Verify every report with the independent checker"},
  };
  return flags;
}

Experiment ReadExperiment(const std::filesystem::path& path) {
  const std::string origin = path.string();
  const std::string contents = ReadFile(path, Bytes::MiB(1));
  toml::table root;
  try {
    root = toml::parse(PlainText(contents, origin), origin);
  } catch (const toml::parse_error& error) {
    const toml::source_position at = error.source().begin;
    throw InputError(fmt::format("{}:{}:{}: {}", origin, at.line, at.column, error.description()));
  }
  Experiment experiment;
  ExperimentReader reader(origin, experiment);
  for (const auto& [key, node] : root) reader.Read(key.str(), node);
  return experiment;
}

std::string Quoted(const std::string& text) {
  constexpr std::string_view kPlain =
      "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_@%+=:,./-";
  if (!text.empty() && text.find_first_not_of(kPlain) == std::string::npos) return text;
  std::string quoted = "'";
  for (const char c : text) quoted += c == '\'' ? "'\\''" : std::string(1, c);
  return quoted + "'";
}

std::string CommandOf(const Cell& cell) {
  std::string command = Quoted(cell.workload);
  const auto add = [&](std::string_view option, const std::string& value,
                       std::string_view initial) {
    if (!value.empty() && value != initial)
      command += fmt::format(" --{} {}", option, Quoted(value));
  };
  const MachineText& machine = cell.machine;
  add("preset", cell.preset, "torch");
  add("mode", cell.mode, "training");
  add("device", machine.device, "h200");
  for (const std::string& pool : machine.pools) add("pool", pool, "");
  add("cost", machine.cost, "auto");
  add("allocator", machine.allocator, "best-fit");
  add("compress", machine.compress, "");
  add("backend", machine.backend, kSimulator);
  add("memory", machine.memory, "");
  if (machine.deterministic) command += " --deterministic";
  if (machine.charge_input) command += " --charge-input";
  if (machine.check) command += " --check";
  add("policy", cell.policy, "");
  return command;
}

Grid::Grid(const Experiment& experiment, const std::vector<std::string>& all_policies)
    : deterministic_(experiment.deterministic),
      charge_input_(experiment.charge_input),
      check_(experiment.check) {
  struct Target {
    std::vector<std::string> Experiment::*values;
    std::string Cell::*text;
    std::string MachineText::*machine;
  };
  constexpr Target kTargets[] = {
      {&Experiment::workloads, &Cell::workload, nullptr},
      {&Experiment::presets, &Cell::preset, nullptr},
      {&Experiment::modes, &Cell::mode, nullptr},
      {&Experiment::devices, nullptr, &MachineText::device},
      {&Experiment::costs, nullptr, &MachineText::cost},
      {&Experiment::allocators, nullptr, &MachineText::allocator},
      {&Experiment::compress, nullptr, &MachineText::compress},
      {&Experiment::backends, nullptr, &MachineText::backend},
      {&Experiment::memories, nullptr, &MachineText::memory},
      {&Experiment::policies, &Cell::policy, nullptr},
  };
  if (experiment.workloads.empty()) {
    throw UsageError("no workload: give NETWORK:BATCH, such as 'resnet50:{16,32,64}'");
  }
  for (const ExperimentList& list : ExperimentLists()) {
    std::vector<std::string> values = Split(list, experiment);
    if (list.values == &Experiment::pools) {
      for (const std::string& pool : values) {
        axes_.push_back({nullptr, nullptr, Patterns({pool})});
      }
      continue;
    }
    if (list.values == &Experiment::policies && values.empty()) values = all_policies;
    const auto target = std::ranges::find(kTargets, list.values, &Target::values);
    axes_.push_back({target->text, target->machine, Patterns(values)});
  }
  for (const Axis& axis : axes_) {
    if (axis.values.size() > kMostCells / size_) {
      throw UsageError("the grid has too many cells, more than 2^40");
    }
    size_ *= axis.values.size();
  }
  group_ = axes_[axes_.size() - 1].values.size() * axes_[axes_.size() - 2].values.size();
}

Cell Grid::at(uint64_t i) const {
  Cell cell;
  cell.machine.deterministic = deterministic_;
  cell.machine.charge_input = charge_input_;
  cell.machine.check = check_;
  for (auto axis = axes_.rbegin(); axis != axes_.rend(); ++axis) {
    std::string value = axis->values.at(i % axis->values.size());
    i /= axis->values.size();
    if (axis->text != nullptr) {
      cell.*axis->text = std::move(value);
    } else if (axis->machine != nullptr) {
      cell.machine.*axis->machine = std::move(value);
    } else {
      cell.machine.pools.insert(cell.machine.pools.begin(), std::move(value));
    }
  }
  if (cell.machine.backend != kSimulator) cell.machine.iterations = 1;
  if (IsTraceFile(cell.workload)) cell.preset = cell.mode = "";  // the file says
  return cell;
}

void Grid::Check() const {
  MachineText plain;
  for (const Axis& axis : axes_) {
    for (uint64_t i = 0; i < axis.values.size(); ++i) {
      const std::string value = axis.values.at(i);
      if (axis.text == &Cell::workload) {
        if (!IsTraceFile(value)) ParseWorkload(value);
      } else if (axis.text == &Cell::preset) {
        FindPreset(value);
      } else if (axis.text == &Cell::mode) {
        if (value != "training" && value != "inference") {
          throw UsageError(UnknownName("mode", value, {"training", "inference"}));
        }
      } else if (axis.machine == &MachineText::backend) {
        if (value != kSimulator && value != "cpu") {
          throw UsageError(UnknownName("backend", value, {kSimulator, "cpu"}));
        }
      } else if (axis.text == &Cell::policy) {
        try {
          PolicyLibrary().Make(value);
        } catch (const PolicyError&) {  // its row will say so
        }
      } else if (axis.machine != nullptr && axis.machine != &MachineText::memory &&
                 axis.machine != &MachineText::cost) {
        MachineText machine = plain;
        machine.*axis.machine = value;
        LoadMachine(machine);
      }
    }
  }
}

}  // namespace spillway
