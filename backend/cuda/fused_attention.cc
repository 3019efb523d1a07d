#include "backend/cuda/fused_attention.h"

#include <fmt/format.h>

#include "traces/base/error.h"
#include "traces/ops/op_table.h"

namespace spillway::cuda {
namespace {

using enum Role;

constexpr std::string_view kAtomic = "atomic";

void RequireBf16(const Op& op, bool bf16) {
  if (bf16) return;
  throw InputError(
      fmt::format("op '{}' (attention): the CUDA backend computes it in bfloat16 only; "
                  "attention in float32 needs a matrix of scores (attention=math)",
                  op.name));
}

AttentionShape ShapeOf(const Op& op, int64_t batch) {
  AttentionShape shape;
  shape.batch = batch;
  shape.rows = op.IntAttribute("rows", 1);
  shape.heads = op.IntAttribute("heads", 1);
  shape.kv_heads = op.IntAttribute("kv_heads", 1, shape.heads);
  shape.head_dim = op.IntAttribute("head_dim", 1);
  shape.causal = op.Flag("causal");
  return shape;
}

}  // namespace

AttentionLibrary& FusedAttention::Library(bool deterministic) {
  std::unique_ptr<AttentionLibrary>& library = libraries_[deterministic ? 1 : 0];
  if (!library) library = std::make_unique<AttentionLibrary>(deterministic);
  library->SetStream(stream_);
  return *library;
}

void FusedAttention::SetStream(cudaStream_t stream) { stream_ = stream; }

std::vector<Candidate> FusedAttention::Candidates(const Op& op, size_t slot, int64_t batch,
                                                  const OperandTypes& types) {
  RequireBf16(op, !types.inputs.empty() && IsBf16(op, types.inputs.front()));
  const AttentionShape shape = ShapeOf(op, batch);
  const Activity activity{op.name, op.slots[slot].name, {}};
  if (op.phase == Phase::kForward) {
    return {{"default", Library(true).ForwardWorkspace(shape, op.Flag("training"), activity)}};
  }
  return {{"deterministic", Library(true).BackwardWorkspace(shape, activity), true},
          {std::string(kAtomic), Library(false).BackwardWorkspace(shape, activity), false}};
}

void FusedAttention::Run(const Op& op, const SlotLaunch& launch, const Operands& operands,
                         SpareWorkspace& spare, const Activity& activity) {
  const AttentionShape shape = ShapeOf(op, launch.batch);
  const int64_t queries = shape.rows * shape.heads * shape.head_dim;
  const int64_t keys = shape.rows * shape.kv_heads * shape.head_dim;
  const auto read = [&](Role role, int64_t elements) {
    const ConstElements operand = operands.Read(role, elements);
    RequireBf16(op, operand.bf16);
    return operand.bytes();
  };
  const auto write = [&](Role role, int64_t elements) {
    const Elements operand = operands.Write(role, elements);
    RequireBf16(op, operand.bf16);
    return operand.bytes();
  };
  const std::byte *q = read(kX, queries), *k = read(kX2, keys), *v = read(kX3, keys);
  const int64_t sums = shape.heads * shape.rows;
  AttentionLibrary& library = Library(launch.algorithm != kAtomic);
  const Bytes needed = op.phase == Phase::kForward
                           ? library.ForwardWorkspace(shape, op.Flag("training"), activity)
                           : library.BackwardWorkspace(shape, activity);
  const DeviceRange& workspace = spare.AtLeast(needed, launch.workspace);
  if (op.phase == Phase::kForward) {
    float* log_sum_exp = op.Flag("training") ? operands.Output(kLogSumExp, sums) : nullptr;
    library.Forward(shape, q, k, v, write(kY, queries), log_sum_exp, workspace, activity);
    return;
  }
  for (size_t i = 0; i < launch.outputs.size(); ++i) {
    if (!op.Accumulates(i)) continue;
    throw InputError(
        fmt::format("op '{}' (attention): the CUDA backend cannot add to a gradient "
                    "that another op has begun",
                    op.name));
  }
  library.Backward(shape, q, k, v, read(kY, queries), read(kDy, queries),
                   operands.Input(kLogSumExp, sums), write(kDx, queries), write(kDx2, keys),
                   write(kDx3, keys), workspace, activity);
}

}  // namespace spillway::cuda
