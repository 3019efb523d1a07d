// Micro-batches (u-cuDNN, Oyama et al., CLUSTER 2018): a convolution of a mini-batch done as
// several of fewer samples, one after the other in one workspace, so that a fast algorithm fits in
// little of it.

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

namespace spillway {

// Which batches a mini-batch may be divided into (u-cuDNN, section III-D); of these, those that the
// cost model answers for.
enum class MicroBatches : uint8_t { kUndivided, kPowerOfTwo, kAll };

// Of the available batches, ascending, those that a mini-batch of the last of them may be divided
// into, itself included.
std::vector<int64_t> ChooseBatches(MicroBatches batches, std::span<const int64_t> available);

// By the paper's names, in the order of the values.
inline const std::vector<std::pair<std::string, MicroBatches>> kMicroBatchNames{
    {"undivided", MicroBatches::kUndivided},
    {"powerOfTwo", MicroBatches::kPowerOfTwo},
    {"all", MicroBatches::kAll}};

inline std::string_view Name(MicroBatches batches) {
  return kMicroBatchNames[static_cast<size_t>(batches)].first;
}

// "undivided, powerOfTwo, all"
std::string ListOfMicroBatches();

// One way to run a slot of an op.
struct Division {
  Bytes workspace;               // the most that one of the parts needs
  Duration time;                 // of all parts
  std::vector<KernelRun> parts;  // the largest first
};

using Front = std::span<const Division>;  // desirable divisions of a kernel, not empty

// The fastest of those that need at most `limit`; nullptr if none does. REQUIRES: a front.
const Division* FastestWithin(Front front, Bytes limit);

// The desirable divisions of slots (u-cuDNN, section III-C1): each is faster than all that need no
// more workspace. Found by the dynamic program of section III-B once for each workspace that some
// kernel needs, and kept by the kernels of the whole batch, so that layers of one shape share them.
class DivisionFronts {
 public:
  explicit DivisionFronts(MicroBatches batches) : batches_(batches) {}

  MicroBatches batches() const { return batches_; }

  // Workspaces ascend and times descend; never empty. An op whose batch cannot be split, or that
  // has one kernel only, is undivided. The span lives as long as this. REQUIRES: the same model in
  // all calls. Throws as `CostModel::Kernels`.
  Front Of(const CostModel& cost, const Op& op, uint32_t slot);

 private:
  const MicroBatches batches_;
  // By the fastest kernel of the whole batch, that batch and the slot.
  std::map<std::tuple<const Kernel*, int64_t, uint32_t>, std::vector<Division>> known_;
};

// All kernels of a trace that have a choice of algorithms: a slot of an op each.
struct KernelFronts {
  struct Kernel {
    OpId op{};
    uint32_t slot = 0;
  };
  std::vector<Kernel> kernels;
  std::vector<Front> fronts;  // of each of them
};
KernelFronts FrontsOf(const Trace& trace, const CostModel& cost, DivisionFronts& divisions);

}  // namespace spillway

#endif  // SPILLWAY_POLICIES_KERNELS_MICRO_BATCH_H_
