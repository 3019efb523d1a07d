// The time of a kernel of cuDNN 5 or later, computed from its geometry: the model behind the
// roofline.
//
// There are two kinds of convolution algorithms. A *matrix product* computes the convolution
// directly, as an M x N result with a reduction over D. It does 2 (M + m) (N + n) (D + d)
// operations, with N rounded up to tiles, where m, n and d are the waste for ragged tiles, filling
// and draining. It takes
//   max(operations / (efficiency * peak), bytes / DRAM) + start-up.
// A *transform* (Winograd, FFT) moves operands and result through memory to another domain,
// multiplies there, and comes back, one kernel after the other:
//   (operations there / (efficiency * peak) + bytes / (share * DRAM)) * penalty + start-up.
// So an efficiency is a fraction of the device's peak, in the operations that the algorithm does.
// The constants were fitted to tables recorded on an H200 with cuDNN 9.14 and describe the
// library's kernels, not the device; experiments/evidence/roofline reports the error.

#ifndef SPILLWAY_SIM_COST_KERNEL_TIME_H_
#define SPILLWAY_SIM_COST_KERNEL_TIME_H_

#include <string_view>

#include "sim/core/device.h"
#include "traces/base/units.h"
#include "traces/trace.h"

namespace spillway::sim {

// Converts seconds. The result is at least 0 and at most half of `Duration::Max()`, for every
// input.
Duration TimeOfSeconds(double seconds);

// Returns the time of a convolution algorithm on `batch` samples. `workspace` is the size that it
// uses; `efficiency` is the device's value for it. REQUIRES: op.type == OpType::kConv2d.
Duration ConvTime(const Device& device, const Op& op, const Slot& slot, std::string_view algorithm,
                  int64_t batch, Bytes workspace, double efficiency);

// Returns the time of any other operation; for those of transformers it is that of
// sequence_time.h. The matrix products of other linear layers use the device's efficiencies
// "linear.fwd" and "linear.bwd". All other arithmetic uses "default", as do linear layers on a
// device without the two.
Duration PlainTime(const Device& device, const Op& op, const Slot& slot, int64_t batch);

}  // namespace spillway::sim

#endif  // SPILLWAY_SIM_COST_KERNEL_TIME_H_
