#include "experiments/tools/sweep/validations.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <optional>
#include <utility>

#include "experiments/run/inputs.h"
#include "traces/base/error.h"
#include "traces/base/sha256.h"
#include "traces/format.h"

namespace spillway::lab {
namespace {

const Value& ValueIn(const ResultRow& row, std::string_view name) {
  const Columns<ResultRow>& columns = ValidationKind().columns;
  const auto column = std::ranges::find(columns, name, &Column<ResultRow>::name);
  return row[static_cast<size_t>(column - columns.begin())];
}

}  // namespace

void RunValidations(const Grid& grid, const Shard& shard, SweepStore* store,
                    const ValidationRun& run) {
  Fingerprints fingerprints;
  std::shared_ptr<const Trace> trace;
  std::string sha256;  // hash of the trace in its file format
  std::string last;    // the workload of `trace`, with preset and mode
  for (uint64_t i = 0; i < grid.size(); ++i) {
    if (!shard.Has(grid, i)) continue;
    const Case cell = grid.at(i);
    CellProvenance from = fingerprints.ProvenanceOf(cell);
    const std::string key = fingerprints.KeyOf(cell, from, run.options + "\n" + run.machine);
    if (const auto row = store != nullptr ? store->RowOf(key) : std::nullopt) {
      run.finished(cell, *row, true);
      continue;
    }
    const ResultRow row = RowOf(WithContext(
        [&] {
          if (const std::string workload = from.trace.name; !trace || workload != last) {
            trace = std::make_shared<const Trace>(LoadTrace(cell));
            sha256 = Sha256(FormatTrace(*trace));
            last = workload;
          }
          return run.measure(i, cell, trace);
        },
        [&] { return CommandOf(cell); }));
    if (store != nullptr) {
      from.trace.sha256 = sha256;
      from.program = fmt::format("{} on {}", run.program, run.machine);
      store->Put(key, CommandOf(cell) + run.options, row, std::move(from));
      store->Commit();
    }
    run.finished(cell, row, false);
  }
}

std::optional<std::string> FailureOf(const ResultRow& row) {
  if (ValueIn(row, "status") != Value("failed")) return std::nullopt;
  return fmt::format("{}: {}", std::get<std::string>(ValueIn(row, "workload")),
                     std::get<std::string>(ValueIn(row, "reason")));
}

bool Agrees(const ResultRow& row, double tolerance) {
  const auto value = [&](std::string_view name) { return ValueIn(row, name); };
  if (value("status") == Value("oom")) return value("reason") != Value();
  return value("status") == Value("ok") && value("decisions_equal") == Value(true) &&
         value("placements_equal") == Value(true) && value("violations") == Value(int64_t{0}) &&
         std::abs(std::get<double>(value("error"))) <= tolerance;
}

}  // namespace spillway::lab
