// Micro-batches (u-cuDNN, Oyama et al., CLUSTER 2018): a convolution of a mini-batch runs as
// several convolutions of fewer samples, one after the other in one workspace, so that a fast
// algorithm fits in a small workspace.

#ifndef SPILLWAY_POLICIES_KERNELS_MICRO_BATCH_H_
#define SPILLWAY_POLICIES_KERNELS_MICRO_BATCH_H_

#include <cstddef>
#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <tuple>
#include <utility>
#include <vector>

#include "sim/core/backend.h"
#include "sim/core/cost_model.h"
#include "traces/base/units.h"
#include "traces/trace.h"

namespace spillway::policies {

// The sizes into which a mini-batch may be divided (u-cuDNN, section III-D). Only sizes that the
// cost model has kernels for are used.
enum class MicroBatches : uint8_t { kUndivided, kPowerOfTwo, kAll };

// Returns the available batches into which a mini-batch may be divided. `available` ascends, and
// its last entry is the mini-batch itself. The result always has the mini-batch.
std::vector<int64_t> ChooseBatches(MicroBatches batches, std::span<const int64_t> available);

// The paper's names, in the order of the values.
inline const std::vector<std::pair<std::string, MicroBatches>> kMicroBatchNames{
    {"undivided", MicroBatches::kUndivided},
    {"powerOfTwo", MicroBatches::kPowerOfTwo},
    {"all", MicroBatches::kAll}};

inline std::string_view Name(MicroBatches batches) {
  return kMicroBatchNames[static_cast<size_t>(batches)].first;
}

// Returns "undivided, powerOfTwo, all".
std::string ListOfMicroBatches();

// One way to run a slot of an op.
struct Division {
  Bytes workspace;               // the largest workspace of a part
  Duration time;                 // the sum over the parts
  std::vector<KernelRun> parts;  // the largest batch first
};

using Front = std::span<const Division>;  // desirable divisions of a kernel, not empty

// Returns the fastest division of the front whose workspace is at most `limit`, or nullptr if there
// is none.
const Division* FastestWithin(Front front, Bytes limit);

// The desirable divisions of slots (u-cuDNN, section III-C1): each is faster than all divisions
// that need no more workspace. The dynamic program of section III-B finds them, once for each
// workspace that some kernel needs. The result is cached by the kernels of the whole batch, so that
// layers of the same shape share it.
class DivisionFronts {
 public:
  explicit DivisionFronts(MicroBatches batches) : batches_(batches) {}

  MicroBatches batches() const { return batches_; }

  // Returns the desirable divisions of a slot, with ascending workspaces and descending times;
  // never empty. An op whose batch cannot be split, or that has no choice of algorithms, has
  // undivided ones only. The span lives as long as this object. REQUIRES: all calls have the same
  // cost model. Throws as `CostModel::Kernels`.
  Front Of(const CostModel& cost, const Op& op, uint32_t slot);

 private:
  const MicroBatches batches_;
  // By the fastest kernel on the whole batch, the batch and the slot.
  std::map<std::tuple<const Kernel*, int64_t, uint32_t>, std::vector<Division>> known_;
};

// All kernels of a trace that have a choice of algorithms. Each kernel is a slot of an op.
struct KernelFronts {
  struct Kernel {
    OpId op{};
    uint32_t slot = 0;
  };
  std::vector<Kernel> kernels;
  std::vector<Front> fronts;  // by kernel
};
KernelFronts FrontsOf(const Trace& trace, const CostModel& cost, DivisionFronts& divisions);

}  // namespace spillway::policies

#endif  // SPILLWAY_POLICIES_KERNELS_MICRO_BATCH_H_
