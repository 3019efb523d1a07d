// A trace: the device-independent program of one iteration, its tensors and the ops that use them.
//
// Ops are listed in execution order. An op is one layer's forward or backward step, or one
// parameter update: the granularity at which the policies of the literature decide. A trace holds
// no addresses, and no times other than recorded costs; a cost model and an allocator supply them.
// Values of this type are plain data: build one with `LowerNetwork` or read one with `ReadTrace`,
// then treat it as immutable.

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

namespace spillway::traces {

enum class TensorKind : uint8_t {
  kInput,              // arrives from outside before the iteration: images, labels
  kParameter,          // weights and biases; live across iterations
  kActivation,         // written by a forward op
  kGradient,           // gradient of an activation
  kParameterGradient,  // gradient of a parameter
  kOptimizerState,     // momentum, running statistics; lives across iterations
  kScratch,            // private to the ops that list it, contents undefined at the start
};

// Convert between an enumerator and its spelling in trace files. The parsers return nullopt for an
// unknown name.
std::string_view Name(TensorKind kind);
std::optional<TensorKind> ParseTensorKind(std::string_view name);
std::optional<OpType> ParseOpType(std::string_view name);
std::optional<Phase> ParsePhase(std::string_view name);
std::optional<DataType> ParseDataType(std::string_view name);
std::optional<Arithmetic> ParseArithmetic(std::string_view name);
// Return all spellings in the order of the enumerators.
std::span<const std::string_view> TensorKindNames();
std::span<const std::string_view> OpTypeNames();
std::span<const std::string_view> PhaseNames();

struct Tensor {
  std::string name;  // unique in the trace
  TensorKind kind = TensorKind::kActivation;
  std::vector<int64_t> shape;  // elements per dimension, outermost first (NCHW)
  Bytes size;
  // The tensor whose storage this tensor shares, starting at its byte `offset`: the whole tensor
  // for an in-place op, a piece for a view. Residency, liveness and all policy verbs act on the
  // storage, whose name is the root of the alias chain.
  std::optional<TensorId> alias_of{};
  // A tensor of the same kind that no op uses: an input, a parameter or optimizer state. This
  // tensor has its own storage, which starts with the bytes of that tensor from `offset` on.
  // Example: a slice of weights.
  std::optional<TensorId> part_of{};
  Bytes offset{};  // in the tensor that `alias_of` or `part_of` names; otherwise 0
  // Set if a recorded program kept the storage beyond its last use: the op after which the program
  // released it. Only the policy `as-recorded` keeps the storage for as long.
  std::optional<OpId> held_until{};
  // Set if the recorded program allocated the storage before its first iteration: the index in
  // `Recording::requests`.
  std::optional<uint32_t> request{};
  DataType dtype = DataType::kFloat32;
  // False if the recorded program cannot do without the storage between two uses, because others
  // than autograd refer to it. No policy can then offload or evict it. A trace that is read and has
  // `Trace::saved` gives the default of `Trace::MovableByDefault`.
  bool movable = true;
  // The lane of the program from whose memory PyTorch's allocator takes the storage: it has pools
  // for each stream.
  uint8_t lane = 0;

  bool operator==(const Tensor&) const = default;
};

struct Layer {
  std::string name;
  OpType type = OpType::kOther;

  bool operator==(const Layer&) const = default;
};

// A request that a program made before its first iteration, such as for a weight or while it drew
// the weight's initial values.
struct SetupRequest {
  Bytes size;
  // The number of requests that had been made when the memory was given back; nullopt if the first
  // iteration began with it.
  std::optional<uint32_t> freed{};
  uint8_t lane = 0;  // as `Tensor::lane`

  bool operator==(const SetupRequest&) const = default;
};

// The program and the device on which the costs of a recorded trace were measured.
struct Recording {
  std::string framework;  // "PyTorch 2.11.0"
  std::string device;     // the GPU as its driver calls it, "NVIDIA H200"; empty: no GPU, no times
  Duration step;          // one iteration under the profiler
  Duration plain_step;    // one iteration without the profiler; 0: not measured
  Bytes allocated;        // peak bytes allocated by the framework's allocator in the iteration
  Bytes reserved;         // peak bytes reserved by it, including earlier iterations; 0: not known
  std::vector<SetupRequest> requests{};  // in their order; empty: not known
  // True if the host's times of the ops were assumed after the trace was read, not measured.
  bool host_assumed = false;

  bool operator==(const Recording&) const = default;
};

// A tensor that the recorded program's autograd kept for backward. A position is the number of ops
// of the trace that had run, so the op at this index comes next.
struct KeptForBackward {
  TensorId tensor{};
  uint32_t packed = 0;               // the position at which autograd saved the tensor
  std::vector<uint32_t> unpacked{};  // the positions at which backward took it, ascending

  bool operator==(const KeptForBackward&) const = default;
};

// A place between two ops where the hooks of autograd run: with `packed` tensors that it saves,
// then with `unpacked` tensors that backward reads. A program can move storages only there.
struct HookPlace {
  uint32_t at = 0;  // the number of ops of the trace that have run
  uint32_t packed = 0;
  uint32_t unpacked = 0;

  bool operator==(const HookPlace&) const = default;
};

// The recorded program's own means of carrying decisions out, in the hooks of autograd. Times are
// the host's.
struct StepHooks {
  std::vector<HookPlace> places;  // in the order of the program
  Duration pack;                  // the time of a hook that gets a saved tensor
  Duration unpack;                // the time of a hook that gives it back
  // The moves that the program can make: to start a copy to the host, to start a copy back, and to
  // give a storage up that is recomputed. nullopt: it cannot.
  std::optional<Duration> offload{};
  std::optional<Duration> prefetch{};
  std::optional<Duration> evict{};
  // To start a copy, in either direction, of optimizer state that only updates use: it can be on
  // the host between them.
  std::optional<Duration> state{};
  Bandwidth copies;        // the rate of a copy beside ops, in each direction; 0: not measured
  double beside_copy = 0;  // the part of a copy's time by which the ops beside it take longer

  bool operator==(const StepHooks&) const = default;
};

// What the recorded step takes under torch.compile, for one choice of what its graphs save.
struct CompiledCut {
  // The most that the graphs take at once, beside parameters, optimizer state and the step's data.
  Bytes memory;
  int64_t flops = 0;    // of the products of the graphs
  Bytes traffic;        // of their other kernels
  int64_t kernels = 0;  // of both kinds

  bool operator==(const CompiledCut&) const = default;
};

struct Trace {
  std::string name;     // "vgg19:256"
  std::string network;  // "vgg19"
  int64_t batch = 1;
  std::string preset;  // accounting preset of the lowering; see lowering/preset.h
  bool training = true;
  std::vector<Layer> layers;  // in forward order
  std::vector<Tensor> tensors;
  std::vector<Op> ops;                   // in execution order
  std::optional<Recording> recording{};  // set iff recorded from a framework's program
  // In the order of packing; empty if it is not known. A trace with other ops than the recorded
  // ones has none, unless it has hooks.
  std::vector<KeptForBackward> saved{};
  std::optional<StepHooks> hooks{};  // set iff the recorded program can carry decisions out
  // PyTorch's own cut first, then others that take less memory each; empty if it is not known. A
  // trace with other ops than the recorded ones has none.
  std::vector<CompiledCut> compiled{};

  const Tensor& tensor(TensorId id) const { return tensors[Index(id)]; }
  const Op& op(OpId id) const { return ops[Index(id)]; }
  const Layer& layer(LayerId id) const { return layers[Index(id)]; }
  // Returns the tensor at the end of the alias chain, which names the storage.
  TensorId Root(TensorId id) const;
  // Returns the byte of its storage at which the tensor begins.
  Bytes OffsetInStorage(TensorId id) const;

  // Returns for each tensor whether it has parts. A tensor with parts has no storage, and no op
  // uses it.
  std::vector<bool> Wholes() const;

  // Returns for each tensor whether a policy may offload or evict its storage unless the trace says
  // otherwise: if `saved` is known, only a storage that autograd saved. Parameters, their gradients
  // and optimizer state are never autograd's, and may be moved.
  std::vector<bool> MovableByDefault() const;

  // Throws an `InputError` that names the first bad layer, tensor or op if one of these holds:
  // - A name is empty or occurs twice, an id is out of range, or a batch is under 1.
  // - The size of a tensor is negative, or an alias is cyclic or reaches beyond its root.
  // - A part reaches beyond its whole, is of another kind, or an op uses the whole.
  // - An op has no slots, or reads a tensor that no op has written.
  // - A lane is not below `kMaxLanes`, or an op waits for one of its own lane, or one behind it.
  // - An attribute is not finite or occurs twice.
  // - A storage is held until an op before its last use.
  // - A saved tensor is packed or unpacked behind the last op, unpacked before it is packed, or
  //   packed or unpacked twice at one position, or `saved` is not in the order of packing.
  // - A place of hooks lies behind the last op, before the one before it, or has no hook.
  // - A cut of the compiled step takes as much memory as the one before it, or has no kernel.
  // - A recorded cost is negative, missing in a recorded trace, or present in another trace.
  // - The sizes, the flops or the traffic of the whole trace, or the elements of one tensor, exceed
  //   2^60. Sums that a reader forms do not overflow below this limit.
  void Validate() const;

  bool operator==(const Trace&) const = default;
};

// Returns the arithmetic of the trace's matrix products, in the order of `Arithmetic`: "fp32", or
// "fp32+bf16". Returns "fp32" if the trace has no products.
std::string ArithmeticOf(const Trace& trace);

// Corrects `Op::after` in a trace whose ops come from another one, and still have its numbers.
// places: by op of that trace, where it or what stands for it is now.
void MoveWaits(std::span<const OpId> places, Trace& trace);

}  // namespace spillway::traces

#endif  // SPILLWAY_TRACES_TRACE_H_
