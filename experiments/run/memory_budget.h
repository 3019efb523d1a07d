// Converts the device memory that a user asks for into bytes.

#ifndef SPILLWAY_EXPERIMENTS_RUN_MEMORY_BUDGET_H_
#define SPILLWAY_EXPERIMENTS_RUN_MEMORY_BUDGET_H_

#include <optional>
#include <string>
#include <string_view>
#include <variant>

#include "experiments/run/prepared.h"
#include "sim/core/report.h"
#include "traces/base/units.h"

namespace spillway::lab {

// A `MemoryBudget` is the amount of device memory that a run may use.
class MemoryBudget {
 public:
  // A point on the line from `LayerBound` (0 %) to the memory that the ideal run reserves (100 %).
  struct Percentage {
    double percent = 0;
  };

  // Parses a size ("12GiB"), "unlimited", "N%", or a built-in policy ("vdnn-conv"). A policy stands
  // for the memory that it needs, at most the device's memory. Throws `UsageError` for any other
  // text.
  MemoryBudget(std::string_view text);  // NOLINT(google-explicit-constructor)
  MemoryBudget(const std::string& text) : MemoryBudget(std::string_view(text)) {}
  MemoryBudget(const char* text) : MemoryBudget(std::string_view(text)) {}

  // Returns the text that the constructor was given.
  const std::string& text() const { return text_; }
  // Returns the size, or nullptr if it depends on the workload.
  const Bytes* bytes() const { return std::get_if<Bytes>(&budget_); }
  // Returns the budget in bytes for the trace, device and arena of `run`, whose memory is ignored.
  // `ideal` is the report of `Ideal(run)`. If it is needed and nullptr, the ideal run is simulated.
  Bytes In(const Draft& run, const Report* ideal = nullptr) const;

 private:
  std::string text_;
  std::variant<Bytes, Percentage, PolicyChoice> budget_;
};

// Returns the ideal run, to which the slowdown of every other run refers. It has the same trace and
// device, unlimited memory and the fastest algorithms, and moves no tensors.
Draft Ideal(const Draft& run);

// Returns the memory that the run's policy needs with the run's arena. The memory of `run` is
// ignored. The search is that of vDNN++ (section IV-B). It starts at the most bytes that the policy
// holds with unlimited memory. Each step adds the bytes that the failed request lacked, until the
// run fits. Returns nullopt if a pool outside the device is too small.
std::optional<Bytes> NeededMemory(const Draft& run);

}  // namespace spillway::lab

#endif  // SPILLWAY_EXPERIMENTS_RUN_MEMORY_BUDGET_H_
