#include "experiments/output/result_row.h"

#include <fmt/format.h>

#include <algorithm>
#include <memory>
#include <utility>

#include "traces/base/csv.h"
#include "traces/base/error.h"
#include "traces/base/json.h"

namespace spillway {
namespace {

struct JsonValue {
  std::string operator()(std::monostate) const { return "null"; }
  std::string operator()(int64_t value) const { return fmt::format("{}", value); }
  std::string operator()(double value) const { return fmt::format("{}", value); }
  std::string operator()(bool value) const { return value ? "true" : "false"; }
  std::string operator()(const std::string& value) const {
    std::string text;
    AppendJsonString(text, value);
    return text;
  }
  std::string operator()(const NestedRows& rows) const {
    std::string text = "[";
    for (const Row& row : *rows) {
      text += text.size() == 1 ? "{" : ", {";
      for (const Column& column : row) {
        if (&column != &row.front()) text += ", ";
        text += fmt::format("\"{}\": {}", column.name, std::visit(*this, column.value));
      }
      text += "}";
    }
    return text + "]";
  }
};

struct CsvValue {
  std::string operator()(std::monostate) const { return ""; }
  std::string operator()(const std::string& value) const { return CsvField(value); }
  template <typename T>
  std::string operator()(T value) const {
    return JsonValue()(value);
  }
};

const Value& Find(const Row& row, std::string_view name) {
  for (const Column& column : row) {
    if (column.name == name) return column.value;
  }
  SPILLWAY_CHECK(!"a column of that name");
  return row.front().value;
}

// A cell of the comparison: a number in the given scale, or a dash.
std::string Cell(const Row& row, std::string_view name, double scale, int digits) {
  const Value& value = Find(row, name);
  if (const auto* number = std::get_if<double>(&value)) {
    return fmt::format("{:.{}f}", *number / scale, digits);
  }
  if (const auto* number = std::get_if<int64_t>(&value)) {
    return fmt::format("{:.{}f}", static_cast<double>(*number) / scale, digits);
  }
  return "-";
}

bool LooksNumeric(const std::string& text) {
  return !text.empty() && text.find_first_not_of("0123456789.-+x%e") == std::string::npos;
}

// The columns of a run with compression; what is pinned is less than the host pool then.
void AddCompression(const Setup& setup, const Outcome& outcome, Row& row) {
  const std::optional<CompressionSummary>& summary = outcome.compression;
  const auto bytes = [&](Bytes CompressionSummary::*size) -> Value {
    return summary ? Value(((*summary).*size).count()) : Value();
  };
  const auto time = [&](Duration CompressionTimes::*duration) -> Value {
    return summary && summary->times ? Value(((*summary->times).*duration).milliseconds())
                                     : Value();
  };
  if (summary) {
    for (Column& column : row) {
      if (column.name == "pinned_peak_bytes") column.value = summary->pinned_peak.count();
      if (column.name == "pinning_ms") {
        column.value = setup.device.host_malloc.At(summary->pinned_peak).milliseconds();
      }
    }
  }
  const bool predicted = summary && summary->baseline;
  row.push_back({"compressed_storages", summary ? Value(summary->storages) : Value()});
  row.push_back({"staging_bytes", bytes(&CompressionSummary::staging)});
  row.push_back({"pageable_peak_bytes", bytes(&CompressionSummary::pageable_peak)});
  row.push_back({"plain_pinned_peak_bytes", bytes(&CompressionSummary::plain_peak)});
  row.push_back({"saved_bytes", summary ? Value(summary->saved().count()) : Value()});
  row.push_back({"compress_ms", time(&CompressionTimes::compress)});
  row.push_back({"decompress_ms", time(&CompressionTimes::decompress)});
  row.push_back({"wait_staging_ms", time(&CompressionTimes::staging)});
  row.push_back({"wait_contents_ms", time(&CompressionTimes::contents)});
  row.push_back(
      {"plain_iteration_ms", predicted ? Value(summary->baseline->milliseconds()) : Value()});
  row.push_back(
      {"compression_hides", summary && summary->hides ? Value(*summary->hides) : Value()});
  std::vector<Row> storages;
  if (summary) {
    for (const OffloadedStorage& storage : summary->offloaded) {
      storages.push_back(
          {{"tensor", outcome.trace->tensor(storage.storage).name},
           {"bytes", storage.size.count()},
           {"density", storage.density ? Value(*storage.density) : Value()},
           {"compressed", storage.compressed},
           {"compressed_bytes", storage.held ? Value(storage.held->count()) : Value()}});
    }
  }
  row.push_back(
      {"offloaded_storages", std::make_shared<const std::vector<Row>>(std::move(storages))});
}

}  // namespace

Row MakeResultRow(const Setup& setup, std::string_view policy, std::string_view backend,
                  const Outcome& outcome, const Report& ideal) {
  const Report& report = outcome.report;
  const Trace& trace = *outcome.trace;
  const bool fits = report.fits();
  const Metrics& metrics = report.metrics;
  const Stalls& stalls = metrics.stalls;
  const auto milliseconds = [&](Duration time) -> Value {
    return fits ? Value(time.milliseconds()) : Value();
  };
  const auto bytes = [&](Bytes size) -> Value { return fits ? Value(size.count()) : Value(); };
  const auto ratio = [&](double numerator, double denominator) -> Value {
    return fits && denominator > 0 ? Value(numerator / denominator) : Value();
  };
  const Duration time_bound = std::max(report.bounds.compute, report.bounds.copy);
  Row row{
      {"workload", trace.name},
      {"network", trace.network},
      {"batch", trace.batch},
      {"device", setup.device.name},
      {"memory_bytes", setup.memory == Bytes::Unlimited() ? Value() : Value(setup.memory.count())},
      {"policy", std::string(policy)},
      {"allocator", outcome.allocator},
      {"backend", std::string(backend)},
      {"status", std::string(fits ? "ok" : "oom")},
      {"iteration_ms", milliseconds(metrics.iteration)},
      {"compute_ms", milliseconds(metrics.compute)},
      {"stall_ms", milliseconds(stalls.total())},
      {"peak_requested_bytes", bytes(metrics.peak_requested)},
      {"peak_allocated_bytes", bytes(metrics.peak_allocated)},
      {"peak_reserved_bytes", bytes(metrics.peak_reserved)},
      {"avg_requested_bytes", bytes(metrics.average_requested)},
      {"offloaded_bytes", bytes(metrics.offloaded)},
      {"prefetched_bytes", bytes(metrics.prefetched)},
      {"recomputed_ops", fits ? Value(metrics.recomputed_ops) : Value()},
      {"recompute_ms", milliseconds(metrics.recompute)},
      {"pinned_peak_bytes", bytes(metrics.pinned_peak)},
      {"slowdown", ratio(metrics.iteration.milliseconds(), ideal.metrics.iteration.milliseconds())},
      {"stall_fetch_ms", milliseconds(stalls.fetch)},
      {"stall_fence_ms", milliseconds(stalls.fence)},
      {"stall_memory_ms", milliseconds(stalls.memory)},
      {"stall_launch_ms", milliseconds(stalls.launch)},
      {"stall_drain_ms", milliseconds(stalls.drain)},
      {"avg_allocated_bytes", bytes(metrics.average_allocated)},
      {"avg_reserved_bytes", bytes(metrics.average_reserved)},
      {"fragmentation", fits ? Value(metrics.fragmentation()) : Value()},
      {"bound_compute_ms", milliseconds(report.bounds.compute)},
      {"bound_copy_ms", milliseconds(report.bounds.copy)},
      {"bound_layer_bytes", report.bounds.layer.count()},
      {"time_over_bound", ratio(metrics.iteration.milliseconds(), time_bound.milliseconds())},
      {"memory_over_bound", ratio(static_cast<double>(metrics.peak_allocated.count()),
                                  static_cast<double>(report.bounds.layer.count()))},
      {"iterations", fits ? Value(int64_t{report.iterations}) : Value()},
      {"steady", fits ? Value(report.steady) : Value()},
      {"shortest_iteration_ms", milliseconds(report.shortest)},
      {"longest_iteration_ms", milliseconds(report.longest)},
      {"pinning_ms", milliseconds(report.pinning)},
      {"preset", trace.preset},
      {"mode", std::string(trace.training ? "training" : "inference")},
      {"cost", setup.cost->Provenance()},
      {"reason", fits ? Value() : Value(report.out_of_memory->Message())},
  };
  if (setup.compression) AddCompression(setup, outcome, row);
  return row;
}

std::string FormatCsv(const std::vector<Row>& rows) {
  std::string text;
  const auto add_line = [&](const Row& row, auto field) {
    std::string line;
    for (const Column& column : row) {
      if (std::holds_alternative<NestedRows>(column.value)) continue;
      if (!line.empty() || &column != &row.front()) line += ',';
      line += field(column);
    }
    text += line + "\r\n";
  };
  if (rows.empty()) return text;
  add_line(rows.front(), [](const Column& column) { return column.name; });
  for (const Row& row : rows) {
    add_line(row, [](const Column& column) { return std::visit(CsvValue(), column.value); });
  }
  return text;
}

std::string FormatJsonValue(const Value& value) { return std::visit(JsonValue(), value); }

std::string FormatJson(const std::vector<Row>& rows, std::string_view schema) {
  std::string text = fmt::format("{{\n  \"schema\": \"{}\",\n  \"rows\": [", schema);
  for (size_t i = 0; i < rows.size(); ++i) {
    text += i == 0 ? "\n    {" : ",\n    {";
    for (size_t j = 0; j < rows[i].size(); ++j) {
      text += fmt::format("{}\n      \"{}\": {}", j == 0 ? "" : ",", rows[i][j].name,
                          std::visit(JsonValue(), rows[i][j].value));
    }
    text += "\n    }";
  }
  return text + (rows.empty() ? "]\n}\n" : "\n  ]\n}\n");
}

std::string FormatTable(const std::vector<std::vector<std::string>>& cells) {
  std::vector<size_t> widths;
  for (const auto& row : cells) {
    widths.resize(std::max(widths.size(), row.size()));
    for (size_t i = 0; i < row.size(); ++i) widths[i] = std::max(widths[i], row[i].size());
  }
  std::vector<bool> right(widths.size(), true);
  for (size_t r = 1; r < cells.size(); ++r) {
    for (size_t i = 0; i < cells[r].size(); ++i) {
      if (!LooksNumeric(cells[r][i])) right[i] = false;
    }
  }
  std::string text;
  for (const auto& row : cells) {
    std::string line;
    for (size_t i = 0; i < row.size(); ++i) {
      if (i > 0) line += "  ";
      line += right[i] ? fmt::format("{:>{}}", row[i], widths[i])
                       : fmt::format("{:<{}}", row[i], widths[i]);
    }
    line.erase(line.find_last_not_of(' ') + 1);
    text += line + "\n";
  }
  return text;
}

std::string FormatComparison(const std::vector<Row>& rows) {
  constexpr double kGiB = 1073741824.0;
  std::vector<std::vector<std::string>> cells{{"policy", "status", "time ms", "slowdown",
                                               "peak GiB", "avg GiB", "out GiB", "in GiB",
                                               "stall ms", "fetch", "fence", "memory", "launch",
                                               "drain", "x time bound", "x memory bound"}};
  for (const Row& row : rows) {
    cells.push_back({std::get<std::string>(Find(row, "policy")),
                     std::get<std::string>(Find(row, "status")), Cell(row, "iteration_ms", 1, 1),
                     Cell(row, "slowdown", 1, 3), Cell(row, "peak_allocated_bytes", kGiB, 2),
                     Cell(row, "avg_allocated_bytes", kGiB, 2),
                     Cell(row, "offloaded_bytes", kGiB, 2), Cell(row, "prefetched_bytes", kGiB, 2),
                     Cell(row, "stall_ms", 1, 1), Cell(row, "stall_fetch_ms", 1, 1),
                     Cell(row, "stall_fence_ms", 1, 1), Cell(row, "stall_memory_ms", 1, 1),
                     Cell(row, "stall_launch_ms", 1, 1), Cell(row, "stall_drain_ms", 1, 1),
                     Cell(row, "time_over_bound", 1, 3), Cell(row, "memory_over_bound", 1, 3)});
  }
  return FormatTable(cells);
}

std::string FormatCompression(const std::vector<Row>& rows) {
  constexpr double kGiB = 1073741824.0;
  std::vector<std::vector<std::string>> cells{
      {"policy", "compressed", "pinned GiB", "was GiB", "pageable GiB", "saved GiB", "compress ms",
       "decompress ms", "waits out", "waits in", "was ms", "hidden"}};
  for (const Row& row : rows) {
    const bool compresses = std::any_of(row.begin(), row.end(), [](const Column& column) {
      return column.name == "compressed_storages";
    });
    if (!compresses) continue;
    const auto* const hides = std::get_if<bool>(&Find(row, "compression_hides"));
    cells.push_back(
        {std::get<std::string>(Find(row, "policy")), Cell(row, "compressed_storages", 1, 0),
         Cell(row, "pinned_peak_bytes", kGiB, 3), Cell(row, "plain_pinned_peak_bytes", kGiB, 3),
         Cell(row, "pageable_peak_bytes", kGiB, 3), Cell(row, "saved_bytes", kGiB, 3),
         Cell(row, "compress_ms", 1, 1), Cell(row, "decompress_ms", 1, 1),
         Cell(row, "wait_staging_ms", 1, 1), Cell(row, "wait_contents_ms", 1, 1),
         Cell(row, "plain_iteration_ms", 1, 1),
         hides == nullptr ? "-"
         : *hides         ? "yes"
                          : "no"});
  }
  return cells.size() == 1 ? std::string() : FormatTable(cells);
}

}  // namespace spillway
