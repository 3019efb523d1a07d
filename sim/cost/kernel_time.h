// How long a kernel of cuDNN 5 or later takes, from its geometry: the model behind the roofline.
//
// Two kinds of convolution algorithms. A *matrix product* computes the convolution directly, as an
// M x N result with a reduction over D; it does 2 (M + m) (N + n) (D + d) operations, N rounded up
// to tiles, where m, n and d are what it wastes on ragged tiles, filling and draining, and takes
//   max(operations / (efficiency * peak), bytes / DRAM) + start-up.
// A *transform* (Winograd, FFT) moves operands and result through memory to another domain,
// multiplies there, and comes back, one kernel after the other:
//   (operations there / (efficiency * peak) + bytes / (share * DRAM)) * penalty + start-up.
// So an efficiency is a fraction of the device's peak, in the operations that the algorithm does.
// The constants were fitted to tables recorded on an H200 with cuDNN 9.14 and stand for the
// library's kernels, not for the device; experiments/evidence/roofline says how well.

#ifndef SPILLWAY_SIM_COST_KERNEL_TIME_H_
#define SPILLWAY_SIM_COST_KERNEL_TIME_H_

#include <string_view>

#include "sim/core/device.h"
#include "traces/base/units.h"
#include "traces/trace.h"

namespace spillway {

// At least 0 and at most half of `Duration::Max()`, whatever the formulas make of an input.
Duration TimeOfSeconds(double seconds);

// Time of a convolution algorithm on `batch` samples. `workspace` is what it uses; `efficiency` is
// the device's for it. REQUIRES: op.type == OpType::kConv2d.
Duration ConvTime(const Device& device, const Op& op, const Slot& slot, std::string_view algorithm,
                  int64_t batch, Bytes workspace, double efficiency);

// Time of any other operation. Efficiencies "linear.fwd" and "linear.bwd" of the device count for
// the matrix products of linear layers; "default" counts for the arithmetic of all others and of
// those where the device lists none.
Duration PlainTime(const Device& device, const Op& op, const Slot& slot, int64_t batch);

}  // namespace spillway

#endif  // SPILLWAY_SIM_COST_KERNEL_TIME_H_
