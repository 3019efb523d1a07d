// The memory rules of TensorFlow 1.x, with which SuperNeurons (Wang et al., PPoPP 2018,
// section 2.2) compares.
//
// - A tensor is freed after its last use. The runtime does this.
// - Long-lived tensors are swapped to the host, by the heuristics of the graph optimizer
//   (grappler's memory optimizer, swapping heuristics). While the estimated peak is over the
//   memory, but at most 25 times, tensors are chosen that are alive at the peak and used after
//   it, until the peak is estimated to fit. Tensors of up to 1 KiB, tensors that live for 1 ms or
//   less, and parameters are not chosen. Tensors that were written long before the peak and are
//   used long after it come first.
// - The copy out starts at once, and the next op waits for it. The copy back begins after the
//   last op that leaves it enough time at 16 GB/s.
// - The estimate counts tensors, but no workspaces and no holes between blocks. So swapping aims
//   at `target` percent of the memory, as with per_process_gpu_memory_fraction. A run that is
//   estimated to fit in all of the memory may not fit.
// - A convolution takes the fastest algorithm whose workspace is at most 4 GiB and fits in the
//   largest free block (autotuning skips the others; TF_CUDNN_WORKSPACE_LIMIT_IN_MB).
//
// Two things differ from TensorFlow. There, copies go through pageable memory, at half the speed
// (SuperNeurons, section 2.2). And its optimizer may choose a tensor that the op at the peak reads;
// here such a tensor is skipped, because swapping it frees nothing at the peak.

#include <algorithm>
#include <memory>
#include <vector>

#include "policies/kernels/kernel_choice.h"
#include "policies/registry.h"

namespace spillway::policies {
namespace {

constexpr int kPasses = 25;
constexpr Bytes kSmall = Bytes::KiB(1);
constexpr Bandwidth kAssumedLink{16'000'000'000};

// A storage that is on the host between two of its uses.
struct Swap {
  TensorId storage{};
  size_t written = 0;  // the op after which the copy out begins
  size_t used = 0;     // the op after which the storage leaves
  size_t trigger = 0;  // the op after which the copy back begins
};

class TensorFlowPolicy final : public Policy {
 public:
  TensorFlowPolicy(int64_t target, Duration life, Bytes workspace, const KernelChooser& chooser)
      : target_(target), life_(life), workspace_(workspace), chooser_(chooser) {}

  void Plan(PolicyContext& context) override {
    const size_t ops = context.trace().ops.size();
    out_.assign(ops, {});
    release_.assign(ops, {});
    in_.assign(ops, {});
    const Bytes memory = context.device().memory;
    const Bytes aim = memory == Bytes::Unlimited() ? memory : Bytes(memory.count() / 100 * target_);
    for (const Swap& swap : ChooseSwaps(context, aim)) {
      out_[swap.written].push_back(swap.storage);
      release_[swap.used].push_back(swap.storage);
      in_[swap.trigger].push_back(swap.storage);
    }
  }

  KernelPlan ChooseKernels(PolicyContext& context, OpId op) override {
    return chooser_.Within(std::min(workspace_, context.Stats().largest_free), context, op);
  }

  void AfterOp(PolicyContext& context, OpId op) override {
    bool copied = false;
    for (const TensorId storage : out_[Index(op)]) copied |= context.Offload(storage);
    if (copied) context.Fence();
    for (const TensorId storage : release_[Index(op)]) context.Release(storage);
    // If there is no room, Prefetch returns false, and the op that needs the storage brings it
    // back.
    for (const TensorId storage : in_[Index(op)]) context.Prefetch(storage);
  }

 private:
  // The facts about the run that the optimizer has.
  struct Estimate {
    std::vector<Duration> start;  // by op: when it starts
    std::vector<Bytes> used;      // by op: the bytes of the tensors that are alive
    Duration TimeBetween(size_t from, size_t to) const { return start[to] - start[from]; }
  };

  static Estimate MakeEstimate(const PolicyContext& context) {
    const Trace& trace = context.trace();
    const Liveness& liveness = context.liveness();
    Estimate estimate;
    Duration now;
    for (size_t i = 0; i < trace.ops.size(); ++i) {
      estimate.start.push_back(now);
      for (size_t slot = 0; slot < trace.ops[i].slots.size(); ++slot) {
        now += context.kernels(static_cast<OpId>(i), slot).front().time;
      }
    }
    // `used` holds the changes first, and then their sums.
    estimate.used.assign(trace.ops.size() + 1, Bytes(0));
    for (size_t i = 0; i < trace.tensors.size(); ++i) {
      const auto id = static_cast<TensorId>(i);
      const auto uses = liveness.Uses(id);
      if (liveness.Root(id) != id || uses.empty()) continue;
      const Tensor& tensor = trace.tensor(id);
      const bool persistent =
          tensor.kind == TensorKind::kParameter || tensor.kind == TensorKind::kOptimizerState;
      // Inputs are there from the start.
      const bool early = persistent || tensor.kind == TensorKind::kInput;
      estimate.used[early ? 0 : Index(uses.front())] += tensor.size;
      estimate.used[persistent ? trace.ops.size() : Index(uses.back()) + 1] -= tensor.size;
    }
    for (size_t i = 1; i < estimate.used.size(); ++i) estimate.used[i] += estimate.used[i - 1];
    estimate.used.pop_back();
    return estimate;
  }

  std::vector<Swap> ChooseSwaps(const PolicyContext& context, Bytes memory) const {
    std::vector<Swap> swaps;
    std::vector<bool> considered(context.trace().tensors.size());
    Estimate estimate = MakeEstimate(context);
    if (estimate.used.empty()) return swaps;
    for (int pass = 0; pass < kPasses; ++pass) {
      const auto at = std::max_element(estimate.used.begin(), estimate.used.end());
      if (*at <= memory) break;
      Bytes required = *at - memory;
      bool updated = false;
      for (const Swap& swap :
           Candidates(context, estimate, static_cast<size_t>(at - estimate.used.begin()))) {
        if (considered[Index(swap.storage)]) continue;
        if (required <= Bytes(0)) break;
        considered[Index(swap.storage)] = true;
        if (swap.trigger <= swap.used) continue;  // no time to come back
        const Bytes size = context.trace().tensor(swap.storage).size;
        for (size_t op = swap.used + 1; op <= swap.trigger; ++op) estimate.used[op] -= size;
        required -= size;
        updated = true;
        swaps.push_back(swap);
      }
      if (!updated) break;
    }
    return swaps;
  }

  // Returns the swaps of storages that can be outside during the op at the peak, the best first.
  std::vector<Swap> Candidates(const PolicyContext& context, const Estimate& estimate,
                               size_t peak) const {
    struct Candidate {
      double fitness;
      Swap swap;
    };
    const Trace& trace = context.trace();
    const Liveness& liveness = context.liveness();
    std::vector<Candidate> candidates;
    for (size_t i = 0; i < trace.tensors.size(); ++i) {
      const auto id = static_cast<TensorId>(i);
      const Tensor& tensor = trace.tensor(id);
      const auto uses = liveness.Uses(id);
      if (liveness.Root(id) != id || uses.empty() || tensor.size <= kSmall) continue;
      if (tensor.kind != TensorKind::kActivation && tensor.kind != TensorKind::kGradient) continue;
      const auto after = std::lower_bound(uses.begin(), uses.end(), static_cast<OpId>(peak));
      if (after == uses.begin() || after == uses.end() || *after == static_cast<OpId>(peak)) {
        continue;
      }
      const size_t first = Index(uses.front()), next = Index(*after);
      if (estimate.TimeBetween(first, Index(uses.back())) <= life_) continue;
      const auto writers = liveness.Writers(id);
      Swap swap{id, 0, Index(*std::prev(after)), 0};
      const auto rewritten = std::upper_bound(writers.begin(), writers.end(), *std::prev(after));
      if (rewritten == writers.begin()) continue;
      swap.written = Index(*std::prev(rewritten));
      const Duration back = estimate.start[next] - TransferTime(tensor.size, kAssumedLink);
      const auto trigger =
          std::lower_bound(estimate.start.begin(), estimate.start.begin() + next, back);
      // The trigger is an op that has ended by then.
      const auto ended = static_cast<size_t>(trigger - estimate.start.begin());
      swap.trigger = ended < 2 ? 0 : ended - 2;
      const auto milliseconds = [&](size_t from, size_t to) {
        return estimate.TimeBetween(from, to).milliseconds();
      };
      const double until = milliseconds(peak, next) / static_cast<double>(uses.end() - after);
      const double since = milliseconds(first, peak);
      candidates.push_back({until * until + since * since, swap});
    }
    std::stable_sort(candidates.begin(), candidates.end(), [](const auto& a, const auto& b) {
      return a.fitness > b.fitness;  // equal ones in the order of their ids
    });
    std::vector<Swap> swaps;
    swaps.reserve(candidates.size());
    for (const Candidate& candidate : candidates) swaps.push_back(candidate.swap);
    return swaps;
  }

  const int64_t target_;  // per cent of the memory
  const Duration life_;   // only tensors that live longer are swapped
  const Bytes workspace_;
  const KernelChooser chooser_;
  std::vector<std::vector<TensorId>> out_, release_, in_;  // by op, for after it
};

std::unique_ptr<Policy> MakeTensorFlowPolicy(Params& params) {
  const int64_t target =
      params.Integer("target", 85, 1, 100, "the percentage of the memory that swapping aims at");
  const int64_t life =
      params.Integer("life", 1000, 0, 1'000'000'000,
                     "only tensors that live longer than this many microseconds are swapped");
  const Bytes workspace = params.Size("workspace", Bytes::GiB(4), "the most workspace of a call");
  return std::make_unique<TensorFlowPolicy>(target, Duration::Microseconds(life), workspace,
                                            ReadKernelChooser(params));
}

}  // namespace

void RegisterTensorFlow(PolicyRegistry& registry) {
  registry.Add("tensorflow",
               "liveness, and tensors that live long over the peak swapped to the host "
               "(TensorFlow's memory optimizer)",
               MakeTensorFlowPolicy);
}

}  // namespace spillway::policies
