// Tables of results with the best row of each group first and marked, and rows that do not fit
// last.

#ifndef SPILLWAY_EXPERIMENTS_OUTPUT_RANKING_H_
#define SPILLWAY_EXPERIMENTS_OUTPUT_RANKING_H_

#include <algorithm>
#include <functional>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "experiments/output/columns.h"
#include "traces/base/units.h"

namespace spillway::lab {

// The place of a result among others.
struct Standing {
  std::optional<double> score = {};   // less is better; nullopt if the result has none
  std::optional<Bytes> missing = {};  // set if it does not fit; 0 if the amount is not known
  bool failed = false;                // the policy broke down
  std::string fits = "yes";           // the cell of a result that fits
  size_t group = 0;                   // only results of one group are compared

  // Returns the cell that says if the result fits: "yes", "+ 1.2 GiB", "no" or "failed".
  std::string Cell() const;
  // Returns true iff the result stands above the other one, which is of the same group.
  bool IsAbove(const Standing& other) const;
};

template <typename T>
using StandingOf = std::function<Standing(const T&)>;

template <typename T>
Column<T> FitsColumn(StandingOf<T> standing) {
  return {"fits", "", "", [standing](const T& item) { return standing(item).Cell(); }, "fits"};
}

// Returns the items by group, the best of each group first. Items of the same standing keep their
// order.
template <typename T>
std::vector<T> Ranked(Items<T> items, const StandingOf<T>& standing) {
  std::vector<T> ranked(items.begin(), items.end());
  std::ranges::stable_sort(
      ranked,
      [](const Standing& a, const Standing& b) {
        return a.group != b.group ? a.group < b.group : a.IsAbove(b);
      },
      standing);
  return ranked;
}

// Returns a table of the ranked items with the columns called `names`. Two columns are added to the
// given ones: "fits", and "best", which has a "*" for the best items of each group in which items
// differ. `best` says what the "*" means. REQUIRES: there are items.
template <typename T>
std::string FormatRanked(Columns<T> columns, std::span<const std::string_view> names,
                         Items<T> items, const StandingOf<T>& standing, std::string_view best,
                         size_t width) {
  const std::vector<T> ranked = Ranked<T>(items, standing);
  std::map<size_t, Standing> first, last;  // by group: its first and its last item's standing
  for (const T& item : ranked) {
    const Standing one = standing(item);
    first.emplace(one.group, one);
    last[one.group] = one;
  }
  const auto is_best = [&](const T& item) {
    const Standing one = standing(item), &top = first.at(one.group);
    return top.score && !top.missing && !top.failed && !top.IsAbove(one) &&
           top.IsAbove(last.at(one.group));
  };
  const bool marks = std::ranges::any_of(ranked, is_best);
  std::vector<std::string_view> shown(names.begin(), names.end());
  if (!marks) std::erase(shown, "best");
  columns.push_back(
      {"best", "", "", [&](const T& item) { return std::string(is_best(item) ? "*" : ""); }});
  columns.push_back(FitsColumn(standing));
  std::string text = FormatTable<T>(columns, shown, ranked, width);
  if (marks) text.append("* ").append(best) += '\n';
  return text;
}

}  // namespace spillway::lab

#endif  // SPILLWAY_EXPERIMENTS_OUTPUT_RANKING_H_
