#include "experiments/tools/sweep/grid.h"

#include <fmt/format.h>
#include <toml++/toml.h>

#include <algorithm>
#include <utility>

#include "experiments/run/inputs.h"
#include "experiments/run/isolation.h"
#include "experiments/run/workload_text.h"
#include "traces/base/error.h"
#include "traces/base/file.h"
#include "traces/lowering/preset.h"
#include "traces/zoo/zoo.h"

namespace spillway::lab {
namespace {

constexpr uint64_t kMostCells = uint64_t{1} << 40;

// Returns the split values of a key, or its default. Returns an empty list if the key has neither.
// Throws `UsageError` if a list has an empty place.
std::vector<std::string> ValuesOf(const CaseKey& key, const Experiment& experiment) {
  const auto found = experiment.values.find(key.name);
  if (found == experiment.values.end()) {
    return *key.initial != 0 && key.name != std::string_view("policy")
               ? std::vector<std::string>{key.initial}
               : std::vector<std::string>();
  }
  std::vector<std::string> values =
      WithContext([&] { return SplitSpecifications(found->second); }, [&] { return key.name; });
  if (std::ranges::count(values, "") > 0) {
    throw UsageError(fmt::format("{}: {}", key.name, key.empty));
  }
  return values;
}

// An `ExperimentReader` reads the keys of an experiment file.
class ExperimentReader {
 public:
  ExperimentReader(std::string origin, Experiment& experiment)
      : origin_(std::move(origin)), experiment_(experiment) {}

  void Read(std::string_view name, const toml::node& node) {
    std::vector<std::string> names{"output"};
    if (name == "output") {
      experiment_.output = Text(name, node);
      return;
    }
    for (const CaseKey& key : CaseKeys()) {
      if (key.name == name) return ReadValues(key, node, experiment_.values[key.name]);
      names.emplace_back(key.name);
    }
    for (const WorkloadOption& option : WorkloadOptions()) {
      if (option.name != name) continue;
      Fail(node, fmt::format("{0} is part of a workload's text, as in "
                             "workload = \"WORKLOAD,{0}=VALUE\"",
                             name));
    }
    Fail(node, UnknownName("key", name, names));
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

  void ReadValues(const CaseKey& key, const toml::node& node, std::vector<std::string>& values) {
    if (key.kind == CaseKey::Kind::kFlag) {
      const toml::value<bool>* truth = node.as_boolean();
      if (truth == nullptr) Fail(node, fmt::format("{} is true or false", key.name));
      return values.emplace_back(truth->get() ? "true" : "false"), void();
    }
    const toml::array* array = node.as_array();
    if (array == nullptr) return values.push_back(Text(key.name, node));
    for (const toml::node& element : *array) values.push_back(Text(key.name, element));
  }

  const std::string origin_;
  Experiment& experiment_;
};

}  // namespace

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

Grid::Grid(const Experiment& experiment, const std::vector<std::string>& all_policies) {
  if (!experiment.values.contains("workload")) {
    throw UsageError("no workload: give NETWORK:BATCH, such as 'resnet50:{16,32,64}'");
  }
  for (const CaseKey& key : CaseKeys()) {
    std::vector<std::string> values = ValuesOf(key, experiment);
    if (key.kind == CaseKey::Kind::kTexts) {
      for (const std::string& value : values) axes_.push_back({&key, Patterns({value})});
      continue;
    }
    if (key.name == std::string_view("policy") && values.empty()) values = all_policies;
    if (!values.empty()) axes_.push_back({&key, Patterns(values)});
  }
  for (const Axis& axis : axes_) {
    if (axis.values.size() > kMostCells / size_) {
      throw UsageError("the grid has too many cells, more than 2^40");
    }
    size_ *= axis.values.size();
    const std::string_view name = axis.key->name;
    if (name == "memory" || name == "policy") group_ *= axis.values.size();
  }
}

Case Grid::at(uint64_t i) const {
  Case cell;
  std::vector<std::pair<const CaseKey*, std::string>> values;
  for (auto axis = axes_.rbegin(); axis != axes_.rend(); ++axis) {
    values.emplace_back(axis->key, axis->values.at(i % axis->values.size()));
    i /= axis->values.size();
  }
  for (auto value = values.rbegin(); value != values.rend(); ++value) {
    value->first->set(cell, value->second);
  }
  if (cell.backend != kSimulator) cell.iterations = 1;
  return cell;
}

void Grid::Check() const {
  for (const Axis& axis : axes_) {
    const std::string_view name = axis.key->name;
    for (uint64_t i = 0; i < axis.values.size(); ++i) {
      const std::string value = axis.values.at(i);
      Case cell;
      axis.key->set(cell, value);
      if (name == "workload") {
        if (!IsTraceFile(cell.workload)) ParseWorkload(cell.workload);
        if (cell.preset) FindPreset(*cell.preset);
      } else if (name == "backend" && value != kSimulator && value != "cpu") {
        throw UsageError(UnknownName("backend", value, {kSimulator, "cpu"}));
      } else if (name == "policy") {
        cell.timeout = at(0).timeout;
        cell.in_process = at(0).in_process;
        CheckPolicy(cell);
      } else if (name == "device" || name == "pool" || name == "allocator" || name == "compress") {
        LoadMachine(cell);
      }
    }
  }
}

}  // namespace spillway::lab
