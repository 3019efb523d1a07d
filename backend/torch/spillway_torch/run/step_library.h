// The library keeps tensors, operators and the watch of a step here, which its parts share.

#pragma once

#include <devices.h>  // of this folder

#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/grad_mode.h>
#include <ATen/core/ivalue.h>
#include <c10/util/SmallVector.h>
#include <c10/util/flat_hash_map.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace spillway_torch {

using at::Tensor;
using Numbers = c10::SmallVector<size_t, 4>;

// Operators of the library run below autograd and autocast.
struct Guards {
  at::NoGradGuard no_grad;
  at::AutoDispatchBelowADInplaceOrView below_autograd;
  c10::impl::ExcludeDispatchKeyGuard no_autocast{c10::autocast_dispatch_keyset};
};

// How a tensor lies in its storage.
struct Place {
  c10::SmallVector<int64_t, 5> sizes;
  c10::SmallVector<int64_t, 5> strides;
  int64_t offset;
  caffe2::TypeMeta dtype;
};

Place PlaceOf(const Tensor& tensor);

// Returns a tensor that lies at a place in the storage of `base`; `base` if it lies there.
Tensor View(const Tensor& base, const Place& place);

// Returns the tensor without its graph, with the same version counter.
Tensor Detached(const Tensor& tensor);

uint32_t VersionOf(const Tensor& tensor);

// Returns whether the tensor is an ordinary one, whose values are the bytes of its storage.
bool IsOrdinary(const Tensor& tensor);

// ---- watch.cc: the operators of a step that plans recompute ----

// A tensor among the arguments of an operator.
struct Operand {
  enum class Kind : int64_t {
    kMade,     // it lies in a storage of a planned operator, which so many operators had written
    kSaved,    // the same, in a storage that autograd saves, maybe later
    kHeld,     // it exists outside of the step, and does not change until backward has run
    kCopied,   // the same, but it is small, and may change
    kScratch,  // the operator writes statistics to it, which move once for each step
  };
  Kind kind;
  size_t storage;
  int64_t writes;

  bool IsInStep() const { return kind == Kind::kMade || kind == Kind::kSaved; }
};

// An operator of the recorded step, which steps under the plan run, too. A watch knows it
// again by its place in the sequence of operators and by the storages that it reads; sizes, numbers
// and all other arguments are those of each step.
struct PlannedOp {
  c10::OperatorHandle op;
  // What PyTorch runs in the place of the operator where no dispatch mode is active, as in
  // `linear`.
  std::optional<c10::OperatorHandle> in_place;
  std::string name;            // for messages
  size_t position;             // saved tensors before it
  size_t turn;                 // such operators, with the same tensors, between those
  std::vector<Operand> reads;  // each tensor among its arguments, in order
  std::vector<std::pair<size_t, size_t>> made;  // results by index, and their new storages
  bool random;                                  // it draws random numbers
};

// The operators that make a storage again.
struct Chain {
  std::vector<size_t> ops;     // planned ones, in order
  Numbers sources;             // storages that exist before
  std::vector<Numbers> freed;  // for each operator, the storages that nothing reads behind it
  size_t target;               // the storage that they make
  int64_t writes;              // operators that have written to it then
};

struct Ops {
  // Parts of the step are compiled: they must not see a watch, or torch.compile makes other code.
  // So the watch sleeps where no planned operator is coming.
  bool compiled = false;
  size_t storages = 0;
  std::vector<PlannedOp> all = {};
  std::vector<Numbers> at = {};  // by position
  // By position: those that may begin there, because autograd saves what they read first.
  std::vector<Numbers> coming = {};
};

// Switches of PyTorch that choose among kernels.
class Settings {
 public:
  static Settings Now();
  void Apply() const;
  bool operator==(const Settings&) const = default;

 private:
  std::array<int, 11> values_ = {};
};

// One step of a thread. The planned operators are known again while they run, and the watch keeps
// their arguments, so that they can run again.
class Watch {
 public:
  // on_write: is given a storage of the step before an operator writes to it.
  Watch(const Ops& ops, Device& device, std::function<void(size_t)> on_write);
  Watch(const Watch&) = delete;
  ~Watch();

  // Starts and ends to watch the operators that this thread runs.
  void Begin();
  void End();

  // From now on, operators run behind so many saved tensors.
  void Reach(size_t position);

  // Notes that a tensor in a storage of the plan is saved, with so many writes behind it. Nothing
  // that reads the storage is recomputed if it is another one than operators have read.
  void Note(size_t storage, const Tensor& tensor, int64_t writes);

  // Returns why the chain cannot make the storage of a tensor that is saved now; empty if it can.
  std::string Lacks(const Chain& chain, const Tensor& tensor) const;

  // Runs the operators of a chain again and returns a tensor in the storage that they make. It runs
  // under guards. `sources` are tensors in the storages that they read from outside.
  //
  // Throws std::runtime_error if a tensor was changed since, or an operator made another layout.
  Tensor Recompute(const Chain& chain, const std::vector<Tensor>& sources);

  // Handles an operator of the step; `run` runs it.
  template <typename Run>
  void Handle(const c10::OperatorHandle& op, torch::jit::Stack& stack, Run run);

 private:
  // An argument; tensors are apart.
  struct Argument {
    enum class Kind { kSame, kTensor, kTensors, kOptionalTensors } kind;
    c10::IValue value;
    c10::SmallVector<bool, 2> given;  // which items of a list are tensors
  };

  struct Held {
    Tensor tensor;
    uint32_t version;
  };

  // What an operator of the chain ran with in this step.
  struct Ran {
    bool seen = false;
    std::optional<c10::OperatorHandle> op;
    size_t others = 0;  // such operators, with the same tensors, that ran before
    std::vector<Argument> arguments;
    std::vector<Place> places;  // of the tensors, in order
    std::vector<Held> held;     // those tensors, if they are held
    std::vector<Place> made;
    c10::Device device = at::kCPU;
    bool gradient = false;  // whether it was enabled: some operators keep more for a backward then
    Settings settings;
    RandomState before, after;
  };

  // A storage of the plan, in this step.
  struct Known {
    c10::StorageImpl* storage = nullptr;
    int64_t writes = 0;
    std::optional<uint32_t> version = {};  // where an operator read it, unless it was written since
    bool other = false;                    // it is not what the recorded step shows
  };

  using Tensors = c10::SmallVector<const Tensor*, 8>;

  bool Fits(const PlannedOp& planned, const Tensors& tensors) const;
  void Keep(const PlannedOp& planned, Ran& ran, const torch::jit::Stack& stack, size_t count,
            const Tensors& tensors);
  void Bind(size_t storage, c10::StorageImpl* impl, int64_t writes);
  void Attend();
  void RunAgain(const PlannedOp& planned, const Ran& ran, std::vector<Tensor>& values);

  const Ops& ops_;
  Device& device_;
  const std::function<void(size_t)> on_write_;
  size_t position_ = 0;
  std::vector<Ran> ran_;
  std::vector<Known> known_;
  std::vector<Tensor> values_;  // by storage, for `Recompute`, between whose calls it holds nothing
  ska::flat_hash_map<c10::StorageImpl*, size_t> numbers_;
};

// While it lives, nothing that the thread does counts as an operator of its step.
class Unwatched {
 public:
  Unwatched() = default;

 private:
  c10::impl::ExcludeDispatchKeyGuard below_{c10::DispatchKey::Fake};
};

}  // namespace spillway_torch
