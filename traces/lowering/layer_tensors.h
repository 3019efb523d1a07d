// The tensors that lowering makes for the layers of a network, each when the first op needs it.
//
// Parameters, their gradients and state exist once for each layer. The other tensors belong to one
// execution of the layer, for one micro-batch or one chunk of its tokens.

#ifndef SPILLWAY_TRACES_LOWERING_LAYER_TENSORS_H_
#define SPILLWAY_TRACES_LOWERING_LAYER_TENSORS_H_

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "traces/lowering/graph.h"
#include "traces/lowering/lowered_trace.h"

namespace spillway::traces {

inline constexpr std::array kParameters{Role::kWeight, Role::kBias};

// An activation as its consumers see it: a layer's output, or a copy made by a fork.
struct Value {
  TensorId tensor{};
  std::string gradient_name;
  std::optional<TensorId> gradient;
  bool gradient_written = false;
};
using ValueId = size_t;

// One execution of a layer, as far as it has been lowered.
struct LayerExecution {
  LayerSpec spec;
  LayerId layer{};
  std::optional<LayerId> first;  // the layer of the first execution
  std::vector<ValueId> inputs;
  ValueId output = 0;
  // The layer's tensors by role, except for activations and their gradients.
  std::array<std::optional<TensorId>, kRoleNames.size()> tensors;
  LayerId fork{};
  std::vector<ValueId> copies;  // one for each consumer, if the output is forked
  size_t taken = 0;             // number of copies that consumers have taken
};

class LayerTensors {
 public:
  // `network` and `trace` outlive this object. With bf16, tensors are bfloat16 unless their layer
  // stays in float32. Executions have a batch of `batch` samples.
  LayerTensors(const Network& network, Arithmetic arithmetic, int64_t batch, LoweredTrace& trace)
      : network_(network),
        arithmetic_(arithmetic),
        batch_(batch),
        trace_(trace),
        executions_(network.size()) {}

  // Begins the next execution of the layer, whose name has `suffix` behind that of the layer. It
  // has the parameters, their gradients and the state of the latest execution, and no other tensor.
  void Restart(LayerNode node, std::string_view suffix);

  size_t size() const { return executions_.size(); }
  LayerExecution& at(LayerNode node) { return executions_[node]; }
  const LayerExecution& at(LayerNode node) const { return executions_[node]; }
  Value& value(ValueId id) { return values_[id]; }
  const Value& value(ValueId id) const { return values_[id]; }

  // The number of samples, or of tokens in a chunk.
  int64_t batch() const { return batch_; }
  void set_batch(int64_t batch) { batch_ = batch; }

  // Returns the name that the layer has in the network, without the suffix of the execution.
  const std::string& NameOf(LayerNode node) const { return network_.layer(node).name; }
  std::string SuffixOf(LayerNode node) const {
    return at(node).spec.name.substr(NameOf(node).size());
  }

  std::vector<int64_t> OutputShape(LayerNode node) const;
  // Returns the type of the layer's output, which is also that of its parameters.
  DataType OutputType(LayerNode node) const;

  ValueId AddValue(TensorId tensor, std::string gradient_name);
  // Returns the output of `input`, or the next copy of the output if it is forked.
  ValueId Take(LayerNode input);
  // Returns the gradient of a value. The first call creates it, as an alias of `alias_of` if given.
  TensorId Gradient(ValueId id, std::optional<TensorId> alias_of = std::nullopt);

  // Returns the layer's tensor of a role. The first call creates it.
  TensorId Own(LayerNode node, Role role);
  // Creates the state that one step of the layer reads.
  void OwnState(LayerNode node, const OperandList& list);
  // Appends the operands of one step of the layer, except for the gradients dx that it writes.
  void AddOperands(LayerNode node, const Op& op, const OperandList& list,
                   std::vector<TensorId>& to);

 private:
  // Returns the shape of a layer's tensor that is neither an activation nor a gradient.
  std::vector<int64_t> ShapeOf(const LayerSpec& spec, Role role) const;

  const Network& network_;
  const Arithmetic arithmetic_;
  int64_t batch_;
  LoweredTrace& trace_;
  std::vector<LayerExecution> executions_;
  std::vector<Value> values_;
};

}  // namespace spillway::traces

#endif  // SPILLWAY_TRACES_LOWERING_LAYER_TENSORS_H_
