// The memory rules of TensorFlow 1.x, as SuperNeurons (Wang et al., PPoPP 2018, section 2.2)
// compares with it.
//
// - A tensor is freed after its last use, which the runtime does.
// - Long-lived tensors are swapped to the host, by the heuristics of the graph optimizer
//   (grappler's memory optimizer, swapping heuristics): while the estimated peak is over the
//   memory, at most 25 times, tensors that are alive at the peak and used after it are chosen until
//   the peak is estimated to fit. Not chosen are tensors of up to 1 KiB, those that live for 1 ms
//   or less, and parameters. First come those that were written long before the peak and are used
//   long after it.
// - The copy out is made at once, and the next op waits for it. The copy back begins after the last
//   op that leaves it enough time at 16 GB/s.
// - The estimate knows tensors and neither workspaces nor the holes between blocks. So the aim is
//   `target` per cent of the memory, as with per_process_gpu_memory_fraction; with all of it, what
//   is estimated to fit may not.
// - A convolution takes the fastest algorithm whose
//   workspace is at most 4 GiB and can be had just then (autotuning passes over the others;
//   TF_CUDNN_WORKSPACE_LIMIT_IN_MB).
//
// Not modelled: the copies go through pageable memory, at half the speed (SuperNeurons, section
// 2.2). The optimizer may choose a tensor that the peak's own op reads; here it is passed over, for
// that frees nothing at the peak.

#include <algorithm>
#include <memory>
#include <vector>

#include "policies/kernels/kernel_choice.h"
#include "policies/registry.h"

namespace spillway {
namespace {

constexpr int kPasses = 25;
constexpr Bytes kSmall = Bytes::KiB(1);
constexpr Bandwidth kAssumedLink{16'000'000'000};

// A storage that is on the host between two of its uses.
struct Swap {
  TensorId storage{};
  size_t written = 0;  // op after which the copy out begins
  size_t used = 0;     // op after which the storage leaves
  size_t trigger = 0;  // op after which it comes back
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
    // False if there is no room: then the op that needs it brings it back.
    for (const TensorId storage : in_[Index(op)]) context.Prefetch(storage);
  }

 private:
  // What the optimizer knows of the run.
  struct Estimate {
    std::vector<Duration> start;  // of each op
    std::vector<Bytes> used;      // by tensors, at each op
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
    // Changes first, then their sums.
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

  // Those that can leave over the op at the peak, best first.
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
      // The op before it has ended by then.
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
  const Duration life_;   // swapped is only what lives longer
  const Bytes workspace_;
  const KernelChooser chooser_;
  std::vector<std::vector<TensorId>> out_, release_, in_;  // after each op
};

std::unique_ptr<Policy> MakeTensorFlowPolicy(Params& params) {
  const int64_t target =
      params.Integer("target", 85, 1, 100, "per cent of the memory that swapping aims at");
  const int64_t life =
      params.Integer("life", 1000, 0, 1'000'000'000, "microseconds that a tensor must live longer");
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

}  // namespace spillway
