// Compares a prediction with a measurement: the same policy runs on the simulator and on the GPU.

#ifndef SPILLWAY_EXPERIMENTS_TOOLS_MEASURE_VALIDATION_H_
#define SPILLWAY_EXPERIMENTS_TOOLS_MEASURE_VALIDATION_H_

#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "experiments/output/run_result.h"
#include "experiments/run/run.h"
#include "sim/core/cost_table.h"

namespace spillway::lab {

struct Validation {
  Outcome predicted;
  Outcome measured;  // a copy of `predicted` if the prediction does not fit
  bool decisions_equal = false;
  bool placements_equal = false;
  std::vector<std::string> violations;  // found by the checker in the measured order

  bool fits() const { return predicted.report.fits() && measured.report.fits(); }
  // Returns true iff decisions and placements agree, and nothing ran out of order. Copied bytes and
  // memory peaks then agree, too.
  bool parity() const { return decisions_equal && placements_equal && violations.empty(); }
  // Returns (predicted - measured) / measured iteration time. REQUIRES: fits().
  double error() const;
};

// Simulates the run, then executes it on its backend with a new policy object, for as many
// iterations as the run has. Throws the errors of `Run`.
Validation Validate(const Prepared& prepared, const BackendFactories& backends);

// Returns the mean time by which a kernel of an in-core iteration exceeds its time alone. Measured
// alone, a kernel follows itself and finds warm caches. It also finds them warm behind an op that
// is `Alike`, so that the kernels of such ops do not count. The result is between 0 and 5 us, the
// longest time that can lie between two kernels. Returns 0 if the validation does not fit.
Duration InSequence(const Validation& in_core);

// Returns `InSequence` for the trace, predicted with the times of the table and executed by the
// backend "cuda". Throws the errors of `Run`.
Duration MeasureInSequence(const CostTable& table, const Trace& trace, const Device& device,
                           const BackendFactories& backends);

struct ValidationResult : RowCase {
  std::string allocator;
  Validation validation;
  std::string failure;  // why the policy failed; if not empty, `validation` is not set

  bool fits() const { return failure.empty() && validation.fits(); }
  // Returns the failure, or why the prediction does not fit; nullopt if the prediction fits.
  std::optional<std::string> Reason() const;
};

ValidationResult MakeValidationResult(const Case& asked, const Inputs& inputs,
                                      Validation validation);

// Validates the case on its backend. If `change` is given, it first modifies the device. A
// `PolicyError` or `UsageError` does not propagate: the result has its text as `failure`.
ValidationResult ValidateForRow(const Case& asked, const Inputs& inputs,
                                const BackendFactories& backends,
                                const std::function<void(Device&)>& change = {});

// Returns the result as bytes for another process, and the result whose bytes these are. `given` is
// the trace of its inputs.
std::string SaveValidation(const ValidationResult& result,
                           const std::shared_ptr<const Trace>& given);
ValidationResult LoadValidation(std::string bytes, const std::shared_ptr<const Trace>& given);

// Returns the columns of `spillway validate`.
Columns<ValidationResult> ValidationColumns();
// Returns the names of the columns that a table for people shows.
std::vector<std::string_view> ShownOfValidations();

// A `ValidatedCommand` is one op or copy of the iteration.
struct ValidatedCommand {
  std::string workload, policy, memory;  // set by the caller
  std::string op;
  std::optional<std::string> tensor;
  TimelineEntry predicted, measured;
};

// Returns the commands in issue order. REQUIRES: validation.fits() and validation.parity().
std::vector<ValidatedCommand> CommandsOf(const Validation& validation);

Columns<ValidatedCommand> CommandColumns();

// Checks that a table was recorded with the GPU, the cuDNN version and the arithmetic of this
// machine. Throws an `InputError` that names the first difference.
void CheckProvenance(const Provenance& provenance, std::string_view gpu, std::string_view cudnn,
                     std::string_view math);

}  // namespace spillway::lab

#endif  // SPILLWAY_EXPERIMENTS_TOOLS_MEASURE_VALIDATION_H_
