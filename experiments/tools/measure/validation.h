// Prediction against measurement: one policy on the simulator and on the GPU, side by side.

#ifndef SPILLWAY_EXPERIMENTS_TOOLS_MEASURE_VALIDATION_H_
#define SPILLWAY_EXPERIMENTS_TOOLS_MEASURE_VALIDATION_H_

#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "experiments/output/run_result.h"
#include "experiments/run/resolve.h"
#include "sim/core/cost_table.h"

namespace spillway {

struct Validation {
  Outcome predicted;
  Outcome measured;  // the prediction where that does not fit
  bool decisions_equal = false;
  bool placements_equal = false;
  std::vector<std::string> violations;  // what the checker says of the measured order

  bool fits() const { return predicted.report.fits() && measured.report.fits(); }
  // Decisions, placements and so bytes and peaks agree, and nothing ran out of order.
  bool parity() const { return decisions_equal && placements_equal && violations.empty(); }
  // (predicted - measured) / measured iteration time. REQUIRES: fits().
  double error() const;
};

// Simulates, then executes with another policy object of the same kind on the setup's backend, and
// as many iterations as it says. Throws as `RunPolicy` does.
Validation Validate(const Setup& setup, const PolicyMaker& make, const BackendFactories& backends);

// What each kernel of an in-core iteration took beyond its time alone, where the same kernel had
// run before it and left caches warm, as it also has behind an op that is `Alike`: those do not
// count. At most what can lie between two kernels. 0 if it does not fit.
Duration InSequence(const Validation& in_core);

// `InSequence` of kernels with the times of the table, executed by the backend "cuda". Throws as
// `RunPolicy` does.
Duration MeasureInSequence(const CostTable& table, const Trace& trace, const Device& device,
                           const BackendFactories& backends);

struct ValidationResult : RunFacts {
  std::string allocator, memory_request;
  Validation validation;
  std::string failure;  // of a policy that did not finish its run; there is no validation then

  bool fits() const { return failure.empty() && validation.fits(); }
  // Why it does not fit, or the failure; nullopt where it fits, or was predicted to.
  std::optional<std::string> Reason() const;
};

ValidationResult MakeValidationResult(const Setup& setup, std::string_view policy,
                                      Validation validation);

// `Validate` of the policy that is named; an error of it ends in the result.
ValidationResult ValidateForRow(const Setup& setup, const std::string& policy,
                                const BackendFactories& backends);

// Of `spillway validate`, and those of them that a table for people has.
Columns<ValidationResult> ValidationColumns();
std::vector<std::string_view> ShownOfValidations();

// One op or copy of the iteration.
struct ValidatedCommand {
  std::string workload, policy, memory;  // left to the caller
  std::string op;
  std::optional<std::string> tensor;
  TimelineEntry predicted, measured;
};

// In issue order. REQUIRES: validation.fits() and validation.parity().
std::vector<ValidatedCommand> CommandsOf(const Validation& validation);

Columns<ValidatedCommand> CommandColumns();

// Throws `InputError` that says what differs if the table was recorded on another GPU, with another
// cuDNN or in other arithmetic than runs here.
void CheckProvenance(const Provenance& provenance, std::string_view gpu, std::string_view cudnn,
                     std::string_view math);

}  // namespace spillway

#endif  // SPILLWAY_EXPERIMENTS_TOOLS_MEASURE_VALIDATION_H_
