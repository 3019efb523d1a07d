// The papers' printed numbers, computed again by running the policies that the papers describe.
//
// experiments/papers/paper-values.csv names the items and holds the printed numbers and the
// strength of their evidence; the papers' tables (paper.h) compute the items. Nothing is fitted to
// an item: one preset per paper gives all of its numbers. Items of networks and batches that the
// paper does not print are computed by the same functions.

#ifndef SPILLWAY_EXPERIMENTS_PAPERS_REPRODUCE_H_
#define SPILLWAY_EXPERIMENTS_PAPERS_REPRODUCE_H_

#include <filesystem>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "experiments/output/columns.h"
#include "experiments/papers/paper.h"

namespace spillway::lab {

struct PaperItem {
  PaperValue value;
  std::optional<PaperKey> key = std::nullopt;  // nullopt: no table has the item
};

struct Reproduction {
  PaperItem item;
  // Our number, rounded as the paper prints it, or unrounded if it prints none. nullopt: not
  // computed, or the workload does not fit.
  Computed ours;
  Computed ours_exact;  // before rounding
  Computed rel_error;   // (ours - printed) / printed; nullopt if the paper prints none or 0
  bool judged = false;
  bool passes = true;
};

// Reads the list of printed values, a CSV with the header
// paper,item,workload,unit,printed,evidence. Throws `InputError`, with path and line, if a line
// lacks a field or `printed` is not a number.
PaperValues ReadPaperValues(const std::filesystem::path& path);

// Returns the items that `request` names: "all", a paper, a table or figure ("Tab2",
// "superneurons-Tab2"), an item of the list, or an item that a table can compute although the list
// lacks it, such as "base VGG-16(32) GB". With `on`, the items are computed on its device and with
// its kernel times. No paper prints these numbers, and items that do not depend on the device are
// left out. Throws `UsageError` if `request` names nothing, or nothing that depends on the device.
std::vector<PaperItem> SelectItems(const PaperValues& printed, const std::string& request,
                                   const std::optional<Case>& on = std::nullopt);

// A table or figure of a paper.
struct PaperSheet {
  std::string name;  // "vdnn-Fig1"
  std::vector<PaperItem> items;
};

// Returns the tables and figures that `request` names: "all", a paper, or a table or figure.
// `on` and errors are as in `SelectItems`.
std::vector<PaperSheet> SelectSheets(const PaperValues& printed, const std::string& request,
                                     const std::optional<Case>& on = std::nullopt);

// Computes and judges an item.
Reproduction Reproduce(const PaperItem& item);

// Computes all items in parallel and returns them in their order. Several threads call `done` with
// each item that is computed.
std::vector<Reproduction> Reproduce(const std::vector<PaperItem>& items,
                                    const std::function<void(const PaperItem&)>& done);

Columns<Reproduction> ReproductionColumns();

// Numbers of items of one paper and strength of evidence, by outcome.
struct PaperTotal {
  std::string paper;
  std::string evidence;  // empty: the paper does not print the items
  int64_t agree = 0;
  int64_t miss = 0;
  int64_t shown = 0;  // not judged
  int64_t far = 0;    // the part of `shown` that is off by more than 25 % of the printed number
  int64_t not_computed = 0;
};

// Returns the totals in the order in which their first items appear.
std::vector<PaperTotal> TotalsOf(const std::vector<Reproduction>& results);

Columns<PaperTotal> TotalColumns();

}  // namespace spillway::lab

#endif  // SPILLWAY_EXPERIMENTS_PAPERS_REPRODUCE_H_
