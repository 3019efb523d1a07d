// What a paper prints, and what computes it again.

#ifndef SPILLWAY_EXPERIMENTS_REPRODUCE_ITEM_H_
#define SPILLWAY_EXPERIMENTS_REPRODUCE_ITEM_H_

#include <functional>
#include <optional>
#include <string>

namespace spillway {

// A printed number. `evidence`: "=" must agree to the printed digits, "c" within 1 %, "~" within 2
// %; "f" (a fit) and "x" (not explained) are shown and not judged.
struct PaperValue {
  std::string paper;
  std::string item;
  std::string workload;
  std::string unit;
  std::string printed;  // as printed, "4.8"; empty if the paper does not print it
  std::string evidence;
};

// An item that can be computed.
struct ComputableItem {
  std::string name;
  std::string workload;
  std::string unit;
  bool round_down = false;  // as the paper prints it; else rounded
  std::string evidence;     // "x" where it rests on what the paper does not say
  // nullopt where the workload does not fit on the paper's GPU.
  std::function<std::optional<double>()> compute;
};

}  // namespace spillway

#endif  // SPILLWAY_EXPERIMENTS_REPRODUCE_ITEM_H_
