// Prediction against measurement: one policy on the simulator and on the GPU, side by side.

#ifndef SPILLWAY_EXPERIMENTS_VALIDATE_VALIDATION_H_
#define SPILLWAY_EXPERIMENTS_VALIDATE_VALIDATION_H_

#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "experiments/output/run_result.h"
#include "experiments/run/execute.h"
#include "sim/core/cost_table.h"

namespace spillway {

struct Validation {
  Outcome predicted;
  Execution measured;
  bool decisions_equal = false;
  bool placements_equal = false;
  std::vector<std::string> violations;  // what the checker says of the measured order

  bool fits() const { return predicted.report.fits() && measured.outcome.report.fits(); }
  // Decisions, placements and so bytes and peaks agree, and nothing ran out of order.
  bool parity() const { return decisions_equal && placements_equal && violations.empty(); }
  // (predicted - measured) / measured iteration time. REQUIRES: fits().
  double error() const;
};

// Simulates, then executes with another policy object of the same kind. Throws as `Simulate` and
// `ExecuteOnCuda` do.
Validation Validate(const Setup& setup, const std::function<std::unique_ptr<Policy>()>& make_policy,
                    CudaMachine& machine, const ExecuteOptions& options);

// True if the times agree within `tolerance` (0.05 is 5 %) and `parity` holds, or if the workload
// fits on neither side.
bool Agrees(const Validation& validation, double tolerance);

struct ValidationResult : RunFacts {
  std::string allocator;
  Validation validation;
};

ValidationResult MakeValidationResult(const Setup& setup, std::string_view policy,
                                      Validation validation);

// Of `spillway validate`.
Columns<ValidationResult> ValidationColumns();

// The results for people.
std::string FormatValidation(std::span<const ValidationResult> results);

// One op or copy of the iteration.
struct ValidatedCommand {
  std::string workload, policy, memory;  // left to the caller
  std::string op;
  std::optional<std::string> tensor;
  TimelineEntry predicted, measured;
};

// In issue order. REQUIRES: validation.fits() and validation.parity().
std::vector<ValidatedCommand> CommandsOf(const Setup& setup, const Validation& validation);

Columns<ValidatedCommand> CommandColumns();

// Throws `InputError` that says what differs if the table was recorded on another GPU, with another
// cuDNN or in other arithmetic than the machine runs.
void CheckProvenance(const Provenance& provenance, const CudaMachine& machine,
                     std::string_view math);

}  // namespace spillway

#endif  // SPILLWAY_EXPERIMENTS_VALIDATE_VALIDATION_H_
