// The trace of a workload at another batch, or at another length of its data.

#ifndef SPILLWAY_EXPERIMENTS_CHANGES_OTHER_BATCH_H_
#define SPILLWAY_EXPERIMENTS_CHANGES_OTHER_BATCH_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string_view>
#include <utility>

#include "traces/trace.h"

namespace spillway::lab {

// Returns true iff the traces are recordings of the same ops on the same device. If their networks
// have different names, they also have to train parameters of the same shapes.
bool AreOfOneProgram(const Trace& one, const Trace& other);

// How a trace of another batch was made.
enum class BatchSource : uint8_t {
  kGiven,         // the trace is the user's
  kLowered,       // the network of the program was lowered at that batch
  kInterpolated,  // linearly between two recordings of the same ops
  kScaled,        // everything that is proportional to the batch was scaled
};
// Returns "given", "lowered", "interpolated" or "scaled".
std::string_view Name(BatchSource source);

struct BatchTrace {
  std::shared_ptr<const Trace> trace;
  BatchSource source = BatchSource::kGiven;
};

// Returns `trace` at another batch, made in the most exact way that is possible: lowered, if the
// trace is that of a network of the program; interpolated, if one of `others` is a recording of the
// same ops at a third batch; else scaled. REQUIRES: batch > 0.
BatchTrace AtBatch(const std::shared_ptr<const Trace>& trace,
                   std::span<const std::shared_ptr<const Trace>> others, int64_t batch);

// Returns the trace with all sizes, times and work scaled that are proportional to the batch.
//
// Data of the step, and tensors that ops compute from them, are proportional if one of their
// dimensions is a multiple of the batch. Parameters, their gradients, optimizer state, and tensors
// with one number per channel are not. Recorded workspaces of ops on proportional tensors count as
// proportional. Their kernel times are proportional to the operations, or to the traffic if they
// have none; the host's times and gaps do not change. The new recording has no measured step and
// peaks.
Trace ScaledToBatch(const Trace& trace, int64_t batch);

// Returns the trace whose sizes, times and work lie on the line through those of `one` and `other`,
// or nullopt if these are not recordings of the same ops on the same device at different batches.
std::optional<Trace> InterpolatedToBatch(const Trace& one, const Trace& other, int64_t batch);

// A number in which the steps of one program differ.
enum class StepQuantity : uint8_t {
  kBatch,
  kLength,  // an extent of the data other than the batch: tokens, or the side of an image
};
// Returns "batch" or "length".
std::string_view Name(StepQuantity quantity);

// The steps of one program with all values of a quantity.
class StepFamily {
 public:
  // Returns the family of `one`, and of `other` unless it is null. The value of a length is the
  // extent of the first of the step's data that differs. Throws `UsageError`, with the names of the
  // two, if lengths are to vary and there is no other trace; if the two do not run the same ops on
  // the same device; if the quantity is equal in both; or if their data differ in anything else.
  StepFamily(StepQuantity quantity, std::shared_ptr<const Trace> one, std::string_view name,
             std::shared_ptr<const Trace> other = nullptr, std::string_view other_name = {});

  // Returns the family of the steps that `at` returns, which is called with positive values.
  StepFamily(StepQuantity quantity, int64_t value, std::function<BatchTrace(int64_t)> at)
      : quantity_(quantity), at_(std::move(at)), at_one_(value) {}

  StepQuantity quantity() const { return quantity_; }
  int64_t value() const { return at_one_; }  // of the first trace
  // Returns the step with the value. Between and beyond two lengths, a tensor has the product of
  // the extents of its shape, each of which is on a line. Work and times that grow faster than the
  // length have a part that grows with its square. REQUIRES: value > 0.
  BatchTrace At(int64_t value) const;

 private:
  StepQuantity quantity_;
  std::function<BatchTrace(int64_t)> at_;  // empty: from the traces
  std::shared_ptr<const Trace> one_, other_;
  int64_t at_one_ = 0, at_other_ = 0;
};

}  // namespace spillway::lab

#endif  // SPILLWAY_EXPERIMENTS_CHANGES_OTHER_BATCH_H_
