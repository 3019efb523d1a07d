// The papers' printed numbers, computed again by running the policies that they describe.
//
// An item is named as in experiments/papers/paper-values.csv, which holds what was printed and
// how strong the evidence is; the papers' tables (paper.h) name and compute it. Nothing is fitted
// to an item: one preset per paper gives all of its numbers, and the same kind of item for a
// network or batch that the paper does not print is computed likewise.

#ifndef SPILLWAY_EXPERIMENTS_PAPERS_REPRODUCE_H_
#define SPILLWAY_EXPERIMENTS_PAPERS_REPRODUCE_H_

#include <filesystem>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "experiments/output/columns.h"
#include "experiments/papers/paper.h"

namespace spillway {

struct PaperItem {
  PaperValue value;
  std::optional<PaperKey> key = std::nullopt;  // nullopt: no table has it
};

struct Reproduction {
  PaperItem item;
  // Rounded as the paper prints it; unrounded where it prints nothing. nullopt: not computed by
  // this version.
  Computed ours;
  Computed ours_exact;  // before rounding
  Computed rel_error;   // (ours - printed) / printed
  bool judged = false;
  bool passes = true;
};

// Reads the list of printed values (CSV with the header paper,item,workload,unit,printed,evidence).
// Throws `InputError` with path and line.
PaperValues ReadPaperValues(const std::filesystem::path& path);

// What `request` names: "all", a paper, a table or figure ("Tab2", "superneurons-Tab2"), an item,
// or one of a table's kind that is not in the list, such as "base VGG-16(32) GB". Throws
// `UsageError` if it is none of these. On another `machine` than the papers' these are other items,
// of which nothing is printed, and those that do not depend on it are left out.
std::vector<PaperItem> SelectItems(const PaperValues& printed, const std::string& request,
                                   const std::optional<PaperMachine>& machine = std::nullopt);

// A table or figure of a paper, as it is asked for: "vdnn-Fig1".
struct PaperSheet {
  std::string name;
  std::vector<PaperItem> items;
};

// The tables and figures that `request` names: "all", a paper, or one of them. Otherwise as
// `SelectItems`.
std::vector<PaperSheet> SelectSheets(const PaperValues& printed, const std::string& request,
                                     const std::optional<PaperMachine>& machine = std::nullopt);

Reproduction Reproduce(const PaperItem& item);

// All of them at once, in their order. `done` is told each, from several threads.
std::vector<Reproduction> Reproduce(const std::vector<PaperItem>& items,
                                    const std::function<void(const PaperItem&)>& done);

Columns<Reproduction> ReproductionColumns();

// What became of the items of one paper and strength of evidence.
struct PaperTotal {
  std::string paper;
  std::string evidence;  // empty: of what the paper does not print
  int64_t agree = 0;
  int64_t miss = 0;
  int64_t shown = 0;  // not judged
  int64_t not_computed = 0;
};

// In the order of their first items.
std::vector<PaperTotal> TotalsOf(const std::vector<Reproduction>& results);

Columns<PaperTotal> TotalColumns();

}  // namespace spillway

#endif  // SPILLWAY_EXPERIMENTS_PAPERS_REPRODUCE_H_
