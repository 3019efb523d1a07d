#include "experiments/tools/report/sources.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <filesystem>
#include <string_view>
#include <utility>
#include <vector>

#include "experiments/output/columns.h"
#include "experiments/tools/sweep/result_store.h"
#include "traces/base/csv.h"
#include "traces/base/error.h"
#include "traces/base/file.h"
#include "traces/base/json.h"
#include "traces/base/json_writer.h"

namespace spillway::lab {
namespace {

using Kind = ReportSection::Kind;

// Returns a heading such as "Results in r.sqlite".
std::string HeadingOf(Kind kind, const std::string& path) {
  const std::string_view contents = kind == Kind::kResults      ? "Results"
                                    : kind == Kind::kValidation ? "Predictions and measurements"
                                                                : "Rows";
  return fmt::format("{} in {}", contents, std::filesystem::path(path).filename().string());
}

ReportSection ReadStore(const std::string& path) {
  const StoreKind& kind = StoreKindOf(path);
  const SweepStore store(path, SweepStore::Open::kExisting, kind);
  std::vector<ResultRow> rows;
  for (SweepStore::Entry& entry : store.Read()) rows.push_back(std::move(entry.row));
  const Kind holds = &kind == &ValidationKind() ? Kind::kValidation : Kind::kResults;
  return {holds, HeadingOf(holds, path), fmt::format("spillway sweep export {}", path),
          NestRows(RowColumns(kind, rows), rows).json};
}

Value ValueOf(const std::string& field) {
  if (field.empty()) return {};
  if (field == "true" || field == "false") return field == "true";
  double number = 0;
  const auto [end, error] = std::from_chars(field.data(), field.data() + field.size(), number);
  if (error == std::errc() && end == field.data() + field.size()) return number;
  return field;
}

Kind KindOf(const std::vector<std::string>& columns) {
  const auto has = [&](std::string_view name) { return std::ranges::count(columns, name) > 0; };
  if (has("predicted_iteration_ms") && has("measured_iteration_ms")) return Kind::kValidation;
  return has("iteration_ms") && has("policy") && has("status") ? Kind::kResults : Kind::kTable;
}

ReportSection ReadCsv(const std::string& path) {
  const std::string contents = ReadFile(path, Bytes::GiB(1));
  std::vector<std::string> columns;
  JsonWriter json(0);
  json.BeginArray();
  const auto fail = [&] { throw InputError(fmt::format("{}:1: no CSV file with a header", path)); };
  ForEachCsvLine(PlainText(contents, path), path, [&](size_t number, const auto& fields) {
    if (number == 1) {
      columns = fields;
      if (columns.size() < 2) fail();
      return;
    }
    if (fields.size() != columns.size()) {
      throw InputError(fmt::format("{}:{}: {} fields under {} columns", path, number, fields.size(),
                                   columns.size()));
    }
    json.BeginObject();
    for (size_t i = 0; i < columns.size(); ++i) PutValue(json.Key(columns[i]), ValueOf(fields[i]));
    json.EndObject();
  });
  if (columns.empty()) fail();
  const Kind kind = KindOf(columns);
  return {kind, HeadingOf(kind, path), "", json.EndArray().Take()};
}

ReportSection ReadJson(const std::string& path) {
  const std::string text = ReadFile(path, Bytes::GiB(1));
  JsonDocument json(text, path);
  ReportSection section{Kind::kTable, "", "", ""};
  bool has_table = false;
  const auto table = [&](JsonDocument::Value) { has_table = true; };
  json.ReadRoot(Required("schema",
                         [&](JsonDocument::Value value) {
                           const std::string_view schema = json.ReadString(value);
                           if (schema == "spillway.results/v1") section.kind = Kind::kResults;
                           if (schema == "spillway.validation/v1") {
                             section.kind = Kind::kValidation;
                           }
                         }),
                Optional("rows", table), Optional("row", table), Optional("stalls", SkipJson),
                Optional("log", SkipJson), Optional("out_of_memory", SkipJson),
                Optional("recorded_failure", SkipJson), Optional("totals", SkipJson),
                Optional("storages", SkipJson), Optional("peak", SkipJson),
                Optional("refused", SkipJson));
  if (!has_table) throw InputError(fmt::format("{}: has neither rows nor a row", path));
  // The page parses the document. The code above only checks that it is valid.
  section.title = HeadingOf(section.kind, path);
  section.json = text;
  return section;
}

}  // namespace

ReportSection ReadSource(const std::string& path) {
  if (path.ends_with(".sqlite")) return ReadStore(path);
  if (path.ends_with(".csv")) return ReadCsv(path);
  return ReadJson(path);
}

}  // namespace spillway::lab
