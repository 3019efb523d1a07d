// A `Question` asks for the memory and time of one workload on one device, unchanged or changed.

#ifndef SPILLWAY_EXPERIMENTS_TOOLS_FIT_QUESTION_H_
#define SPILLWAY_EXPERIMENTS_TOOLS_FIT_QUESTION_H_

#include <cstddef>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "experiments/run/inputs.h"
#include "experiments/tools/fit/fit_row.h"
#include "experiments/tools/fit/pytorch_remedies.h"

namespace spillway::lab {

// Returns the workload at another batch, as the function of other_batch.h does; a network of the
// program keeps the options of its text.
BatchTrace AtBatch(const FitWorkload& workload,
                   std::span<const std::shared_ptr<const Trace>> others, int64_t batch);
// Returns the steps of a network of the program that differ in the quantity. Throws `UsageError` if
// the length is to vary of a network without one.
StepFamily FamilyOfNetwork(StepQuantity quantity, const FitWorkload& workload);

// The allocators that are tried: PyTorch's, PyTorch's with expandable segments, and pages that lie
// anywhere, which take little more than what is allocated: `spillway_torch.fit` plans that.
enum class FitAllocator : uint8_t { kUsual, kExpandable, kPages };

class Question {
 public:
  // Throws `UsageError` if the device is unknown or has no more memory than `outside`.
  Question(const FitWorkload& workload, const std::string& device, Bytes outside);

  const FitWorkload& workload() const { return workload_; }
  const Trace& trace() const { return *workload_.trace; }
  const Device& device() const { return loaded_.inputs->device(); }
  const CostModel& cost() const { return *loaded_.inputs->cost(); }
  // Returns the trace for which `cost` has times.
  const Trace& costed_trace() const { return *loaded_.inputs->trace(); }
  // Returns the case of the unchanged workload.
  const LoadedCase& loaded() const { return loaded_; }

  // Returns the same question about another trace of the workload, without the steps that ran
  // before the recorded one.
  Question About(Trace trace) const;
  Question About(const BatchTrace& at) const;

  // Returns the result of a run in the available memory.
  FitRow Try(const std::string& change, const PolicyChoice& policy, FitAllocator allocator) const;

  // Returns the result of the unchanged workload, with its memory peak.
  FitRow AsItIs() const;

  // Returns the result of a change in PyTorch. The question is about the changed trace if the
  // change has no policy. Expandable segments are used if the change begins with them, or if the
  // workload fits with them only.
  FitRow Remedied(const PyTorchRemedy& remedy) const;

  // Returns true if the trace is the one that was given, as it was recorded.
  bool IsAsGiven() const {
    return workload_.batch_source == BatchSource::kGiven && !workload_.asked.changes.any();
  }

 private:
  FitRow Predict(const std::string& change, const PolicyChoice& policy,
                 FitAllocator allocator) const;
  void BeginAsRecorded(const std::shared_ptr<const Trace>& trace, const PolicyChoice& policy,
                       FitAllocator allocator, FitRow& row) const;
  RunResult RunIn(const std::string& memory, const PolicyChoice& policy, FitAllocator allocator,
                  const std::function<void(const Outcome&)>& look) const;

  FitWorkload workload_;
  LoadedCase loaded_;
  FitRow row_;
};

// Predicts a change of PyTorch. Returns nullopt if the step cannot be changed so. `why_not` then is
// a sentence for the user, or empty if nobody would expect the change.
using FixedChange = std::function<std::optional<FitRow>(const Question&, std::string& why_not)>;

// A change of the program that makes another step, and that other changes can follow.
struct StepChange {
  PyTorchRemedy remedy;
  bool exact;  // the step computes the same numbers
  // Returns the changed step; as `FixedChange` if there is none.
  std::function<std::optional<Trace>(const Question&, std::string& why_not)> make;
};

// Returns the changes of how the processes of a recorded step share its tensors out.
std::vector<StepChange> ChangesOfSharding();
// Return the changes of a recorded step's types of numbers, of its optimizer, and of its loss. At
// most one of each can be made.
std::vector<StepChange> ChangesOfNumbers();
std::vector<StepChange> ChangesOfOptimizer(const Device& device);
std::vector<StepChange> ChangesOfLoss();

// Returns the changes to try for a workload on a device, other than another batch,
// micro-batches, and checkpoints around all or the first blocks.
std::vector<FixedChange> FixedChanges(const Question& asked);

// Returns the fastest step that `spillway_torch.fit` would make of the recorded one, and another
// row with the loss in chunks if that is faster. The planner of `spillway plan` decides which
// activations move, and which shares of the optimizer state and of the weights are on the host.
// Parameters are updated in backward where the step allows it. If no such step fits, returns how
// much memory one needs, of the device or of the host, and a row of change "weights streamed" if it
// fits where a policy has parameters outside that `spillway_torch.fit` cannot have there. Returns
// nothing if the step has no recording, or has hooks, with which `spillway plan` plans it.
// `as_it_is` is the result of the unchanged step.
std::vector<FitRow> BySpillway(const Question& one, const FitRow& as_it_is);

// Returns the results of the recorded step under torch.compile, if the trace has them: with
// PyTorch's own cut of the graphs and, if it does not fit, with the fastest cut that fits, or else
// with that of least memory.
std::vector<FitRow> ByCompiling(const Question& one, const FitRow& as_it_is);

// Returns the result of the batch of the question in micro-batches of the batch of `part`; nullopt
// if the step has no single update at its end. REQUIRES: `part` is the same recorded step at a
// batch of which that of the question is a multiple, at least twice as large.
std::optional<FitRow> Accumulated(const Question& one, const BatchTrace& part);

}  // namespace spillway::lab

#endif  // SPILLWAY_EXPERIMENTS_TOOLS_FIT_QUESTION_H_
