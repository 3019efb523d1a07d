// The trace of a workload at another batch size.

#ifndef SPILLWAY_EXPERIMENTS_TOOLS_FIT_OTHER_BATCH_H_
#define SPILLWAY_EXPERIMENTS_TOOLS_FIT_OTHER_BATCH_H_

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string_view>

#include "traces/trace.h"

namespace spillway {

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

}  // namespace spillway

#endif  // SPILLWAY_EXPERIMENTS_TOOLS_FIT_OTHER_BATCH_H_
