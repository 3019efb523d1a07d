// A trace: the device-independent program of one iteration, its tensors and the ops that use them.
//
// Ops are listed in execution order. An op is one layer's forward or backward step, or one
// parameter update: the granularity at which all the policies of the literature decide. A trace
// holds no times and no addresses; those come from a cost model and an allocator. Values of this
// type are plain data: build one with `LowerNetwork`, read one with `ReadTrace`, then treat it as
// immutable.

#ifndef SPILLWAY_TRACES_TRACE_H_
#define SPILLWAY_TRACES_TRACE_H_

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "traces/base/units.h"
#include "traces/ops/op.h"

namespace spillway {

enum class TensorKind : uint8_t {
  kInput,              // arrives from outside before the iteration: images, labels
  kParameter,          // weights and biases; live across iterations
  kActivation,         // written by a forward op
  kGradient,           // gradient of an activation
  kParameterGradient,  // gradient of a parameter
  kOptimizerState,     // momentum, running statistics; lives across iterations
  kScratch,            // private to the ops that list it, contents undefined at the start
};

// The spelling of an enumerator in trace files, and back. The parsers return nullopt for an unknown
// name.
std::string_view Name(TensorKind kind);
std::optional<TensorKind> ParseTensorKind(std::string_view name);
std::optional<OpType> ParseOpType(std::string_view name);
std::optional<Phase> ParsePhase(std::string_view name);
// All the spellings, in the order of the enumerators.
std::span<const std::string_view> TensorKindNames();
std::span<const std::string_view> OpTypeNames();
std::span<const std::string_view> PhaseNames();

struct Tensor {
  std::string name;  // unique in the trace
  TensorKind kind = TensorKind::kActivation;
  std::vector<int64_t> shape;  // elements per dimension, outermost first (NCHW)
  Bytes size;
  // The tensor whose storage this one shares, from its byte `offset` on: the whole of it for
  // in-place operation, or a view. Residency, liveness and all policy verbs act on the storage,
  // which is named by the root of the alias chain.
  std::optional<TensorId> alias_of{};
  // The tensor of the same kind, a parameter or optimizer state that no op uses, whose bytes from
  // `offset` on are what this one starts with, in a storage of its own: a slice of weights.
  std::optional<TensorId> part_of{};
  Bytes offset{};  // in the tensor that `alias_of` or `part_of` names; else 0
  // Where a framework's program kept the storage beyond its last use: the op after which it gave it
  // back. Only the policy `as-recorded` holds on to it for as long.
  std::optional<OpId> held_until{};

  bool operator==(const Tensor&) const = default;
};

struct Layer {
  std::string name;
  OpType type = OpType::kOther;

  bool operator==(const Layer&) const = default;
};

// Where the costs of a recorded trace come from.
struct Recording {
  std::string framework;  // "PyTorch 2.11.0"
  std::string device;     // the GPU as its driver calls it, "NVIDIA H200"; empty: no GPU, no times
  Duration step;          // one iteration under the profiler
  Duration plain_step;    // without it; 0 if it was not measured
  Bytes allocated;        // the most that the framework's allocator gave out in the iteration
  Bytes reserved;         // and the most that it held, iterations before included; 0: not known

  bool operator==(const Recording&) const = default;
};

struct Trace {
  std::string name;     // "vgg19:256"
  std::string network;  // "vgg19"
  int64_t batch = 1;
  std::string preset;  // accounting preset that the lowering used; see lowering/preset.h
  bool training = true;
  std::vector<Layer> layers;  // in forward order
  std::vector<Tensor> tensors;
  std::vector<Op> ops;                   // in execution order
  std::optional<Recording> recording{};  // of a framework's program; nullopt for a lowered network

  const Tensor& tensor(TensorId id) const { return tensors[Index(id)]; }
  const Op& op(OpId id) const { return ops[Index(id)]; }
  const Layer& layer(LayerId id) const { return layers[Index(id)]; }
  // The tensor at the end of the alias chain: the name of the storage.
  TensorId Root(TensorId id) const;
  // Where the tensor begins in its storage.
  Bytes OffsetInStorage(TensorId id) const;

  // By tensor: whether others are parts of it. It holds nothing then, and no op uses it.
  std::vector<bool> Wholes() const;

  // Throws `InputError` that names the first bad layer, tensor or op: an empty or duplicate name,
  // an id out of range, a negative size, an alias that is cyclic or reaches beyond its root, a
  // part of what has no such bytes or is used itself, an op without slots, a batch under 1, an
  // attribute that is not finite or stands twice, an op that reads a tensor which nothing has
  // written, a storage given back before its last use, or a recorded cost that is negative or
  // stands in a trace without a recording, or lacks in one. The sums over the whole trace of sizes,
  // flops and traffic, and the elements of each tensor, are at most 2^60 each, so that no sum of a
  // reader overflows.
  void Validate() const;

  bool operator==(const Trace&) const = default;
};

}  // namespace spillway

#endif  // SPILLWAY_TRACES_TRACE_H_
