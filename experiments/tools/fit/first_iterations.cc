#include "experiments/tools/fit/first_iterations.h"

#include <algorithm>
#include <optional>
#include <vector>

#include "traces/liveness.h"

namespace spillway::lab {
namespace {

class Recorder {
 public:
  explicit Recorder(const Trace& trace)
      : trace_(trace), liveness_(trace), ends_(trace.ops.size()), blocks_(trace.tensors.size()) {
    for (size_t i = 0; i < trace.tensors.size(); ++i) {
      const auto id = static_cast<TensorId>(i);
      const Tensor& tensor = trace.tensor(id);
      if (tensor.alias_of || Stays(tensor.kind)) continue;
      const std::optional<OpId> end = tensor.held_until ? tensor.held_until : liveness_.LastUse(id);
      if (end) ends_[Index(*end)].push_back(id);
    }
  }

  AllocationLog Run(int iterations) {
    SetUp();
    for (size_t i = 0; i < trace_.tensors.size(); ++i) {
      const auto id = static_cast<TensorId>(i);
      const Tensor& tensor = trace_.tensor(id);
      if (!tensor.alias_of && Stays(tensor.kind) && !IsMadeInStep(id)) Allocate(id);
    }
    for (int i = 0; i < iterations; ++i) RunOnce();
    return std::move(log_);
  }

 private:
  static bool Stays(TensorKind kind) {
    return kind == TensorKind::kParameter || kind == TensorKind::kOptimizerState;
  }
  // Returns true iff the first iteration allocates the tensor: optimizer state, such as momentum,
  // whose first use is an op of the update phase or only writes it, as for a library's workspace.
  bool IsMadeInStep(TensorId id) const {
    const std::optional<OpId> first = liveness_.FirstUse(id);
    if (trace_.tensor(id).kind != TensorKind::kOptimizerState || !first) return false;
    const Op& op = trace_.op(*first);
    return op.phase == Phase::kUpdate || std::ranges::count(op.inputs, id) == 0;
  }

  // Repeats the requests before the first iteration. A tensor is as large as it is now, and
  // is not requested if a change has taken it out of the memory.
  void SetUp() {
    const std::vector<SetupRequest>& requests = trace_.recording->requests;
    std::vector<std::optional<TensorId>> tensors(requests.size());
    for (size_t i = 0; i < trace_.tensors.size(); ++i) {
      const auto id = static_cast<TensorId>(i);
      if (const auto request = trace_.tensor(id).request) tensors[*request] = id;
    }
    std::vector<std::vector<uint32_t>> freed(requests.size() + 1);  // by number of requests made
    for (size_t i = 0; i < requests.size(); ++i) {
      for (const uint32_t block : freed[i]) log_.Free(block);
      if (tensors[i]) {
        if (trace_.tensor(*tensors[i]).size > Bytes()) Allocate(*tensors[i]);
        continue;
      }
      if (requests[i].size == Bytes()) continue;  // a change of the program saves it
      const uint32_t block = log_.Allocate(requests[i].size, Hint::kLow, requests[i].lane);
      if (requests[i].freed) freed[*requests[i].freed].push_back(block);
    }
    for (const uint32_t block : freed.back()) log_.Free(block);
  }

  void Allocate(TensorId id) {
    const Tensor& tensor = trace_.tensor(id);
    if (blocks_[Index(id)]) return;
    blocks_[Index(id)] = log_.Allocate(tensor.size, Hint::kLow, tensor.lane);
  }

  void RunOnce() {
    for (size_t i = 0; i < trace_.ops.size(); ++i) {
      const auto op = static_cast<OpId>(i);
      for (const TensorId storage : liveness_.Storages(op)) Allocate(storage);
      if (const Bytes workspace = trace_.op(op).recorded->workspace; workspace > Bytes(0)) {
        log_.Free(log_.Allocate(workspace, Hint::kLow, trace_.op(op).lane));
      }
      for (const TensorId storage : ends_[i]) {
        if (!blocks_[Index(storage)]) continue;
        log_.Free(*blocks_[Index(storage)]);
        blocks_[Index(storage)].reset();
      }
    }
  }

  const Trace& trace_;
  const Liveness liveness_;
  std::vector<std::vector<TensorId>> ends_;      // storages freed after each op
  std::vector<std::optional<uint32_t>> blocks_;  // by storage
  AllocationLog log_;
};

}  // namespace

AllocationLog RequestsOfFirst(const Trace& trace, int iterations) {
  return Recorder(trace).Run(iterations);
}

}  // namespace spillway::lab
