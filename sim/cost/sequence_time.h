// The time of a kernel of a transformer, computed from its geometry: matrix products on sequences,
// fused attention, and kernels that pass over their operands.
//
// An M x N *product* with a reduction over D takes
//   max(2 (M + m) (N + n) (D + d) / (efficiency * peak), bytes / DRAM) + start-up,
// where m, n and d are the waste for ragged tiles, filling and draining. cuBLASLt's fast kernels
// read 16 bytes at once, so that the alignment of the rows in memory chooses the efficiency. A
// float32 operand of a product of shorter numbers is converted first, by a pass over it; the
// gradient of a bias is a pass over the gradient of the output.
// *Attention* has the operations of its two products, with both sequences rounded up to tiles, in
// which a causal mask saves only whole tiles. Backward has 2.5 times as many.
// A *pass* takes bytes / (share * DRAM) + start-up. Its share says how often the kernel reads its
// operands, and whether arithmetic or memory is the limit.
// The constants describe the kernels of this project, of cuBLASLt and of cuDNN, not the device.
// They were fitted to the tables of transformers in traces/recorded/h200, and those of products and
// attention also to traces/recorded/operators/h200.json.zst. experiments/evidence/roofline reports
// the errors.

#ifndef SPILLWAY_SIM_COST_SEQUENCE_TIME_H_
#define SPILLWAY_SIM_COST_SEQUENCE_TIME_H_

#include <optional>
#include <string>

#include "sim/core/device.h"
#include "traces/trace.h"

namespace spillway::sim {

// Returns the key of `Device::efficiency` for the products of an op, or for its fused attention.
// Returns an empty string for an op without either.
std::string SequenceKey(const Device& device, const Op& op, const Slot& slot);

// Returns the seconds of an op of a transformer. Returns nullopt for an op of an imported program,
// and for an op of float32 that networks of images also have.
std::optional<double> SequenceSeconds(const Device& device, const Op& op, const Slot& slot,
                                      int64_t batch);

}  // namespace spillway::sim

#endif  // SPILLWAY_SIM_COST_SEQUENCE_TIME_H_
