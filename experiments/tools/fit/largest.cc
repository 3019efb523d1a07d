#include "experiments/tools/fit/largest.h"

#include <fmt/format.h>
#include <tbb/parallel_for.h>
#include <tbb/task_arena.h>

#include <algorithm>
#include <functional>
#include <initializer_list>
#include <iterator>
#include <map>
#include <memory>
#include <string_view>
#include <utility>

#include "experiments/output/wrap.h"
#include "experiments/tools/fit/fit.h"
#include "traces/base/error.h"
#include "traces/blocks.h"

namespace spillway::lab {
namespace {

using RowAt = std::function<std::optional<FitRow>(int64_t value)>;

// Searches for the largest value that fits, from a first guess on.
class Search {
 public:
  Search(const RowAt& row_at, int64_t guess) : row_at_(row_at), guess_(guess) {}

  // Returns nullopt if the change cannot be made.
  std::optional<Largest> Run() {
    for (int64_t value = guess_; above_ - below_ > 1; value = NextGuess()) {
      bisects_ = !bisects_;
      try {
        std::optional<FitRow> row = row_at_(value);
        if (!row) return std::nullopt;
        (row->status == FitStatus::kNot ? above_ : below_) = value;
        rows_.emplace(value, *std::move(row));
      } catch (const InputError&) {  // the step is larger than a trace can be
        if (value <= guess_) throw;
        above_ = value;
      }
    }
    Largest largest;
    largest.value = below_;
    largest.row = rows_.at(std::max<int64_t>(below_, 1));
    if (const auto next = rows_.find(above_); next != rows_.end()) largest.next = next->second;
    return largest;
  }

 private:
  // Returns a value between those that are known to fit and not to fit: in turns where the reserved
  // memory would reach the available memory if it were proportional, and half-way, or twice the
  // largest value.
  int64_t NextGuess() const {
    int64_t guess = below_ + (above_ - below_) / 2;
    if (above_ > kLargestValue) guess = 2 * below_;
    if (!bisects_ && rows_.size() > 1) guess = OnLine();
    return std::clamp(guess, below_ + 1, above_ - 1);
  }

  // Returns the value at which the line through the two results that are nearest to the limit
  // reaches the available memory.
  int64_t OnLine() const {
    auto high = rows_.lower_bound(above_);
    if (high == rows_.end()) --high;
    if (high == rows_.begin()) ++high;
    const auto low = std::prev(high);
    const auto reserved = [](const FitRow& row) {
      return static_cast<double>(row.metrics.peak_reserved.count());
    };
    const double rise = (reserved(high->second) - reserved(low->second)) /
                        static_cast<double>(high->first - low->first);
    const double room =
        static_cast<double>(low->second.available().count()) - reserved(low->second);
    if (rise <= 0) return above_;
    return low->first + static_cast<int64_t>(std::clamp(room / rise, -1e6, 1e6));
  }

  const RowAt& row_at_;
  const int64_t guess_;
  int64_t below_ = 0, above_ = kLargestValue + 1;  // fits, does not fit
  std::map<int64_t, FitRow> rows_;
  bool bisects_ = true;  // alternates
};

// Returns the changes to search for, the unchanged workload first.
std::vector<FixedChange> ChangesOf(const Question& asked, StepQuantity quantity) {
  const Trace& trace = asked.trace();
  std::vector<FixedChange> changes{
      [](const Question& one, std::string&) -> std::optional<FitRow> { return one.AsItIs(); }};
  std::ranges::move(FixedChanges(asked), std::back_inserter(changes));
  if (!trace.recording || !trace.training) return changes;
  if (const std::vector<std::string> blocks = BlocksInOrder(trace); !blocks.empty()) {
    changes.emplace_back([blocks](const Question& one, std::string&) -> std::optional<FitRow> {
      return one.Remedied(Checkpoint(blocks, blocks.size()));
    });
  }
  if (quantity != StepQuantity::kBatch && trace.batch > 1) {
    changes.emplace_back([](const Question& one, std::string&) {
      const auto given = std::make_shared<const Trace>(one.trace());
      return Accumulated(one, AtBatch(given, {}, 1));
    });
  }
  return changes;
}

}  // namespace

std::vector<Largest> FindLargest(const Question& one, const StepFamily& family,
                                 const FitOptions& options) {
  const std::vector<FixedChange> changes = ChangesOf(one, family.quantity());
  std::vector<std::optional<Largest>> found(changes.size());
  tbb::task_arena arena(options.jobs > 0 ? options.jobs : tbb::task_arena::automatic);
  arena.execute([&] {
    tbb::parallel_for(size_t{0}, changes.size(), [&](size_t i) {
      const RowAt row_at = [&](int64_t value) {
        std::string why_not;
        return changes[i](one.About(family.At(value)), why_not);
      };
      try {
        found[i] = Search(row_at, std::min(family.value(), kLargestValue)).Run();
      } catch (const Error&) {
        if (i == 0) throw;  // else the change cannot be predicted
      }
    });
  });
  std::vector<Largest> results;
  for (std::optional<Largest>& result : found) {
    if (!result) continue;
    result->quantity = family.quantity();
    results.push_back(*std::move(result));
  }
  std::stable_sort(results.begin() + 1, results.end(),
                   [](const Largest& a, const Largest& b) { return a.value > b.value; });
  return results;
}

Columns<Largest> LargestColumns() {
  Columns<Largest> columns;
  const auto add_of_row = [&](std::initializer_list<std::string_view> names) {
    for (const Column<FitRow>& column : FitColumns()) {
      if (std::ranges::find(names, column.name) == names.end()) continue;
      Column<Largest>& added = columns.emplace_back(
          column.name, column.unit, column.help, [](const Largest&) { return 0; }, column.header);
      added.type = column.type;
      added.get = [get = column.get](const Largest& largest) { return get(largest.row); };
    }
  };
  add_of_row({"workload", "network", "device", "memory_bytes", "outside_bytes", "change"});
  columns.emplace_back("vary", "", "batch or length",
                       [](const Largest& largest) { return Name(largest.quantity); });
  columns.emplace_back(
      "limit", "1", "the largest value that fits; none if 1 does not, of which the row then is",
      [](const Largest& largest) { return When(largest.value > 0, largest.value); }, "largest");
  add_of_row({"batch", "batch_source", "policy", "allocator", "status", "peak_requested_bytes",
              "peak_allocated_bytes", "peak_reserved_bytes", "margin_bytes", "iteration_ms",
              "samples_per_second", "arithmetic", "reason", "remedy", "python"});
  columns.emplace_back(
      "next", "1", "the value after it, which does not fit",
      [](const Largest& largest) { return When(largest.next.has_value(), largest.value + 1); },
      "next");
  columns.emplace_back(
      "next_reserved_bytes", "B", "the bytes that it takes from the device",
      [](const Largest& largest) {
        return largest.next ? std::optional(largest.next->metrics.peak_reserved) : std::nullopt;
      },
      "reserves");
  columns.emplace_back("next_reason", "", "why it does not fit", [](const Largest& largest) {
    return largest.next ? IfAny(largest.next->reason) : std::nullopt;
  });
  return columns;
}

std::string FormatLargest(const std::vector<Largest>& results, size_t width) {
  constexpr std::string_view kColumns[] = {"remedy",
                                           "limit",
                                           "next",
                                           "iteration_ms",
                                           "samples_per_second",
                                           "peak_allocated_bytes",
                                           "peak_reserved_bytes"};
  std::string text = "Sizes are in GiB.\n";
  for (size_t begin = 0, end = 0; begin < results.size(); begin = end) {
    const FitRow& first = results[begin].row;
    std::vector<Largest> group;
    while (end < results.size() && results[end].row.workload == first.workload &&
           results[end].row.device == first.device) {
      group.push_back(results[end++]);
      FitRow& row = group.back().row;
      if (row.remedy.empty()) row.remedy = "as it is";
    }
    text +=
        "\n" +
        Wrapped(fmt::format("The largest {} of {} on {} with {}:", Name(results[begin].quantity),
                            first.workload.substr(first.workload.rfind('/') + 1), first.device,
                            FormatBytes(first.available()))) +
        "\n";
    text += FormatTable<Largest>(LargestColumns(), kColumns, group, width);
  }
  text +=
      "\n" + Wrapped(
                 "The largest value is predicted to fit, and the next one not to. Where more is "
                 "reserved than there is, it fits because the allocator gives cached memory "
                 "back.");
  if (std::ranges::any_of(results, [](const Largest& largest) {
        return largest.quantity == StepQuantity::kBatch &&
               largest.row.batch_source == BatchSource::kScaled;
      })) {
    text += Wrapped(
        "A scaled batch is an estimate from one recording. Give a second recording of another "
        "batch to interpolate.");
  }
  return text;
}

}  // namespace spillway::lab
