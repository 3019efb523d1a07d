// The trace that a lowering is making. Tensors, layers and ops are added in their final order.
//
// It knows the sizes of tensors and the slots of ops, but neither the network nor the preset.

#ifndef SPILLWAY_TRACES_LOWERING_LOWERED_TRACE_H_
#define SPILLWAY_TRACES_LOWERING_LOWERED_TRACE_H_

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "traces/ops/op_table.h"
#include "traces/trace.h"

namespace spillway::traces {

class LoweredTrace {
 public:
  // `header` is a trace without tensors, layers and ops. Matrix products have the given arithmetic.
  // An input is a part of the input of all `micro_batches`.
  LoweredTrace(Trace header, Arithmetic arithmetic, int64_t micro_batches);

  // Returns the complete trace. No other member may be called afterwards. Throws `InputError` if
  // the trace is not valid.
  Trace Take();

  const Tensor& tensor(TensorId id) const { return trace_.tensor(id); }
  int64_t Elements(TensorId id) const;

  // The tensor is an alias of `alias_of` if this is given and has the same size. Throws
  // `InputError` if the tensor would have more than 2^56 elements.
  TensorId AddTensor(std::string name, TensorKind kind, std::vector<int64_t> shape, DataType dtype,
                     std::optional<TensorId> alias_of = std::nullopt);

  // Adds an input that has one row of data for each sample or token of the micro-batch: a part of
  // the input of all micro-batches, whose name is `name`.
  TensorId AddInput(const std::string& name, const std::string& suffix, std::vector<int64_t> shape,
                    DataType dtype);

  // Adds a view of the rows [first, first + count) of a tensor that has one row for each token of
  // the micro-batch.
  TensorId AddView(TensorId id, int64_t first, int64_t count, std::string_view suffix);

  LayerId AddLayer(std::string name, OpType type);

  // Returns an op without operands that is not in the trace yet. Its name is that of the layer,
  // followed by `suffix`.
  Op MakeOp(LayerId layer, Phase phase, int64_t batch, std::string_view suffix,
            std::vector<Attribute> attributes) const;

  // Adds the op with its slots, and returns it. The reference is valid until the next call.
  Op& AddOp(Op op);

 private:
  // An input of all micro-batches, and how much of it those before the present one have.
  struct WholeInput {
    TensorId tensor{};
    Bytes taken;
  };

  Slot MakeSlot(const Op& op, const OpSlot& slot) const;
  // Returns the traffic of reading or writing every operand once.
  Bytes OperandTraffic(const Op& op) const;
  // Returns the number of outputs that do not share the storage of the first input.
  int64_t Copies(const Op& op) const;
  // Returns the part of the signature that tells the precision; it is empty for fp32.
  std::string PrecisionOf(const Op& op) const;

  Trace trace_;
  const Arithmetic arithmetic_;
  const int64_t micro_batches_;
  std::map<std::string, WholeInput> inputs_;
  std::vector<TensorId> roots_;  // `Trace::Root` of each tensor, cached for long chains
};

}  // namespace spillway::traces

#endif  // SPILLWAY_TRACES_LOWERING_LOWERED_TRACE_H_
