// A policy that does anything that a policy may do, at any hook, as a list of small numbers says;
// and tells which of the answers it got were not true.

#ifndef SPILLWAY_TESTS_TESTING_RANDOM_POLICY_H_
#define SPILLWAY_TESTS_TESTING_RANDOM_POLICY_H_

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "sim/core/policy.h"

namespace spillway::testing {

// One verb at one hook: op, hook, verb, tensor. Any number means something. Tensors below 192 are
// chosen from those that are somewhere and not pinned, so that most verbs can say true.
using Act = std::array<uint8_t, 4>;

struct PolicySpec {
  uint8_t on_failure = 0;  // what OnAllocFailure does at last: nothing, send away, evict, either
  uint8_t hints = 0;       // bit i: tensors i, i + 8, .. at the high end
  uint8_t kernels = 0;     // 0: the default; otherwise which, and whether batches are split
  uint8_t outside = 0;     // bit i: tensors i, i + 8, .. live outside, where they may
  std::vector<Act> acts;
};

class RandomPolicy final : public Policy {
 public:
  // `outside` are the allocators of the run's pools, and outlive the policy.
  RandomPolicy(const PolicySpec& spec, std::vector<const Allocator*> outside);

  bool LivesOutside(const Trace& trace, TensorId tensor) override;
  void Plan(PolicyContext& context) override;
  void BeforeOp(PolicyContext& context, OpId op) override;
  KernelPlan ChooseKernels(PolicyContext& context, OpId op) override;
  void BeforeLaunch(PolicyContext& context, OpId op) override;
  void AfterOp(PolicyContext& context, OpId op) override;
  Hint PlacementHint(const PolicyContext& context, TensorId tensor) override;
  bool OnAllocFailure(PolicyContext& context, Bytes size) override;

  // Verbs that said false and changed something, or true and did not do it.
  const std::vector<std::string>& violations() const { return violations_; }
  uint64_t verbs() const { return verbs_; }

  // Each act as a line of text, for people.
  static std::string Describe(const PolicySpec& spec, const Trace& trace);

 private:
  enum class Hook : uint8_t { kAfterOp, kBeforeOp, kBeforeLaunch, kChoose, kPlan, kFailure };
  enum class Move : uint8_t {
    kSend,
    kOffload,
    kRelease,
    kPrefetch,
    kEvict,
    kFence,
    kReserve,
    kWork
  };

  struct Facts;
  Facts Take(const PolicyContext& context) const;

  void ActAt(PolicyContext& context, Hook hook, OpId op);
  static TensorId Pick(const PolicyContext& context, uint8_t number);
  // True if memory was given back.
  bool Do(PolicyContext& context, Hook hook, Move move, TensorId tensor);
  bool MakeRoom(PolicyContext& context);

  bool Offload(PolicyContext& context, TensorId tensor);
  bool Release(PolicyContext& context, TensorId tensor);
  bool Prefetch(PolicyContext& context, TensorId tensor);
  bool Evict(PolicyContext& context, TensorId tensor);
  void Reserve(PolicyContext& context, TensorId tensor);
  // Calls a verb; true must leave the tensor in `where`, false everything as it was.
  template <typename Verb>
  bool Try(PolicyContext& context, const char* name, TensorId tensor, Residency where, Verb verb);

  const PolicySpec spec_;
  const std::vector<const Allocator*> outside_;
  bool evicts_ = false;  // somewhere
  int failures_ = 0;     // at this op
  uint64_t verbs_ = 0;
  std::vector<std::string> violations_;
};

}  // namespace spillway::testing

#endif  // SPILLWAY_TESTS_TESTING_RANDOM_POLICY_H_
