// What the parts of the library share.

#pragma once

#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/core/Tensor.h>
#include <ATen/core/grad_mode.h>
#include <ATen/core/ivalue.h>

#include <cstddef>
#include <cstdint>
#include <vector>

namespace spillway_torch {

// ---- recompute_chains.cc ----

struct Program;  // the operators of a chain

// Operators of the library run below autograd and autocast.
struct Guards {
  at::NoGradGuard no_grad;
  at::AutoDispatchBelowADInplaceOrView below_autograd;
  c10::impl::ExcludeDispatchKeyGuard no_autocast{c10::autocast_dispatch_keyset};
};

// Returns a tensor that lies in the storage of `base` as the placeholder lies in its own; `base` if
// it lies so.
at::Tensor View(const at::Tensor& base, const at::Tensor& place);

// Returns in how many storages a run of the chain has tensors.
size_t StoragesOf(const Program& program);

// One run of a chain, which lives longer. It runs under guards.
class ChainRun {
 public:
  // Takes a tensor in each storage that the chain reads from outside, in order.
  ChainRun(const Program& program, std::vector<at::Tensor> sources);

  // Runs the operators before `end` that have not run. Returns false if one made another layout
  // than in the recorded step.
  bool Advance(size_t end);

  // Returns a tensor in the storage of the value; an undefined one, which is None in Python, if it
  // was not made.
  const at::Tensor& Value() const;

  // Returns how many operators have run.
  size_t Done() const { return done_; }

 private:
  const Program& program_;
  size_t done_ = 0;
  std::vector<at::Tensor> values_;  // by slot
  std::vector<c10::IValue> stack_;
};

// ---- compare_steps.cc ----

class Hashes;

// How a saved tensor is compared.
enum class Saved : int64_t {
  kLayout,  // only how it lies in memory
  kMade,    // and how it was made
  kAgain,   // the same, of one that was saved before
};

// Learns the hash of a saved tensor in a step that is equal to the recorded one.
void LearnSaved(Hashes& hashes, const at::Tensor& saved, int64_t position, Saved kind);

// Returns whether a saved tensor has the hash that was learned.
bool IsAsLearned(const Hashes& hashes, const at::Tensor& saved, int64_t position, Saved kind);

// While it lives, nothing that the thread does counts as an operator of its step.
class Unwatched {
 public:
  Unwatched();
  ~Unwatched();
  Unwatched(const Unwatched&) = delete;

 private:
  int before_ = 0;  // what the watch saw
};

// Returns the tensor without its graph, with the same version counter.
at::Tensor Detached(const at::Tensor& tensor);

}  // namespace spillway_torch
