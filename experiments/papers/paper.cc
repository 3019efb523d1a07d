#include "experiments/papers/paper.h"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <charconv>
#include <cmath>
#include <utility>

#include "experiments/run/run.h"
#include "traces/base/error.h"

namespace spillway::lab {
namespace {

// Returns the text in lower case, without the ignored characters.
std::string Plain(std::string_view text, std::string_view ignored) {
  std::string plain;
  for (const char c : text) {
    if (ignored.find(c) != std::string_view::npos) continue;
    plain += static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  }
  return plain;
}

struct Filling {
  std::string_view hole;  // "{workload}"
  std::string_view text;
};

// Returns true if the pattern can make the text, and then appends the text in each of its holes.
// Only the text of a workload may have blanks.
bool Match(std::string_view pattern, std::string_view text, std::vector<Filling>& fillings) {
  const size_t open = pattern.find('{');
  if (open == std::string_view::npos) return pattern == text;
  if (!text.starts_with(pattern.substr(0, open))) return false;
  text.remove_prefix(open);
  const size_t close = pattern.find('}') + 1;
  const std::string_view hole = pattern.substr(open, close - open);
  const size_t longest = hole == "{workload}" ? text.size() : std::min(text.find(' '), text.size());
  for (size_t size = longest; size > 0; --size) {
    fillings.push_back({hole, text.substr(0, size)});
    if (Match(pattern.substr(close), text.substr(size), fillings)) return true;
    fillings.pop_back();
  }
  return false;
}

// Returns the number as a count in [1, kLargestBatch]; 0 if it is none.
int64_t CountOf(double number) {
  const bool counts = number == std::floor(number) && number >= 1 && number <= kLargestBatch;
  return counts ? static_cast<int64_t>(number) : 0;
}

// Sets the row's value for a hole. Returns false if the text is no such value.
bool Fill(const PaperNames& names, const Filling& filling, PaperRow& row) {
  if (filling.hole == "{workload}") {
    const auto workload = names.Read(filling.text);
    if (workload) row.workload = *workload;
    return workload.has_value();
  }
  if (filling.hole == "{layer}" || filling.hole == "{device}") {
    (filling.hole == "{layer}" ? row.layer : row.device) = filling.text;
    return true;
  }
  const auto number = ReadNumber(filling.text);
  if (!number) return false;
  row.number = *number;
  if (filling.hole == "{number}") return true;
  int64_t& count = filling.hole == "{batch}" ? row.workload.batch : row.step;
  count = CountOf(*number);
  return count > 0;
}

}  // namespace

Computed ReadNumber(std::string_view text) {
  double value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size()) return std::nullopt;
  return value;
}

const PaperValue* FindValue(const PaperValues& values, std::string_view paper,
                            std::string_view item) {
  const auto found = std::ranges::find_if(
      values, [&](const PaperValue& value) { return value.paper == paper && value.item == item; });
  return found == values.end() ? nullptr : &*found;
}

Computed PrintedNumber(const PaperValues& values, std::string_view paper, std::string_view item) {
  const PaperValue* value = FindValue(values, paper, item);
  return value ? value->printed : std::nullopt;
}

int64_t PaperNames::UsualBatch(std::string_view network) const {
  for (const Network& known : networks) {
    if (known.zoo == network && known.batch > 0) return known.batch;
  }
  return batch;
}

std::optional<Workload> PaperNames::Read(std::string_view text) const {
  // A number in parentheses is a batch; the blocks of resnet(3,4,6,3) are not a number.
  std::optional<double> own;
  const size_t open = text.rfind('(');
  if (open != std::string_view::npos && text.ends_with(')')) {
    own = ReadNumber(text.substr(open + 1, text.size() - open - 2));
    if (own) text = text.substr(0, open);
  }
  std::string network = Plain(text, ignored);
  for (const Network& known : networks) {
    if (Plain(known.paper, ignored) != network) continue;
    network = known.zoo;
    break;
  }
  const double count = own.value_or(static_cast<double>(UsualBatch(network)));
  if (count == 0) return std::nullopt;
  try {
    return ParseWorkload(fmt::format("{}:{}", network, count));
  } catch (const UsageError&) {
    return std::nullopt;
  }
}

std::string PaperNames::Write(const Workload& workload) const {
  const auto known = std::find_if(networks.begin(), networks.end(), [&](const Network& network) {
    return network.zoo == workload.network;
  });
  const std::string_view network = known != networks.end() ? known->paper : workload.network;
  return workload.batch == UsualBatch(workload.network)
             ? std::string(network)
             : fmt::format("{}({})", network, workload.batch);
}

std::vector<PaperRow> Rows(const std::vector<Workload>& workloads,
                           const std::vector<double>& numbers,
                           const std::vector<std::string>& layers) {
  std::vector<PaperRow> rows;
  for (const Workload& workload : workloads) {
    for (const double number : numbers) {
      for (const std::string& layer : layers) rows.push_back({workload, number, layer});
    }
  }
  return rows;
}

std::string PaperKey::Format() const {
  return fmt::format(
      fmt::runtime(column->pattern), fmt::arg("workload", table->names.Write(row.workload)),
      fmt::arg("batch", row.workload.batch), fmt::arg("number", row.number),
      fmt::arg("step", row.step), fmt::arg("layer", row.layer), fmt::arg("device", row.device));
}

bool PaperKey::OnPapersGpu() const {
  return row.device == table->device && row.asked.cost.roofline();
}

Bytes WorkspaceOf(const Inputs& inputs, const Op& op) {
  Bytes workspace;
  for (size_t slot = 0; slot < op.slots.size(); ++slot) {
    workspace = std::max(workspace, inputs.cost()->Kernels(op, slot, op.batch).front().workspace);
  }
  return workspace;
}

Report ReportOf(Draft run, const std::string& policy) {
  run.policy = policy;
  return Predict(run).report;
}

Report ReportOf(const Inputs& inputs, const std::string& policy, Bytes memory,
                const std::string& allocator) {
  Draft run = inputs.DraftOf({});
  run.memory = memory;
  run.arena = allocator;
  return ReportOf(std::move(run), policy);
}

std::optional<PaperRow> RowOf(const PaperTable& table, const PaperColumn& column,
                              std::string_view item) {
  std::vector<Filling> fillings;
  if (!Match(column.pattern, item, fillings)) return std::nullopt;
  if (fillings.empty()) return table.rows.at(0);
  PaperRow row;
  const bool filled = std::all_of(fillings.begin(), fillings.end(), [&](const Filling& filling) {
    return Fill(table.names, filling, row);
  });
  return filled && (!column.accepts || column.accepts(row)) ? std::optional(row) : std::nullopt;
}

}  // namespace spillway::lab
