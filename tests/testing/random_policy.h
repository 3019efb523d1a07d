// A policy that takes any action a policy may take, at any hook, as a list of small numbers tells
// it. It also checks every answer that it gets from the runtime.

#ifndef SPILLWAY_TESTS_TESTING_RANDOM_POLICY_H_
#define SPILLWAY_TESTS_TESTING_RANDOM_POLICY_H_

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "sim/core/policy.h"

namespace spillway::testing {

// One verb at one hook: op, hook, verb, tensor. Every number is valid. A tensor number below 192
// selects among the unpinned tensors that have data somewhere, so that most verbs can succeed.
using Act = std::array<uint8_t, 4>;

struct PolicySpec {
  // Last resort of OnAllocFailure: nothing, offload and release, evict, or either.
  uint8_t on_failure = 0;
  uint8_t hints = 0;    // bit i: tensors i, i + 8, .. are placed at the high end
  uint8_t kernels = 0;  // 0: default kernels; otherwise picks kernels; odd: splits batches
  uint8_t outside = 0;  // bit i: tensors i, i + 8, .. live outside if they may
  std::vector<Act> acts;
};

class RandomPolicy final : public Policy {
 public:
  // `outside` holds the allocators of the run's outside pools. REQUIRES: they outlive the policy.
  RandomPolicy(const PolicySpec& spec, std::vector<const Allocator*> outside);

  bool LivesOutside(const Trace& trace, TensorId tensor) override;
  void Plan(PolicyContext& context) override;
  void BeforeOp(PolicyContext& context, OpId op) override;
  KernelPlan ChooseKernels(PolicyContext& context, OpId op) override;
  void BeforeLaunch(PolicyContext& context, OpId op) override;
  void AfterOp(PolicyContext& context, OpId op) override;
  Hint PlacementHint(const PolicyContext& context, TensorId tensor) override;
  bool OnAllocFailure(PolicyContext& context, Bytes size) override;

  // Returns one sentence for each verb that returned false but changed something, or returned true
  // without effect.
  const std::vector<std::string>& violations() const { return violations_; }
  uint64_t verbs() const { return verbs_; }

  // Returns a text for people with one line per act.
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
  // Performs a move. Returns true if it gave memory back.
  bool Do(PolicyContext& context, Hook hook, Move move, TensorId tensor);
  bool MakeRoom(PolicyContext& context);

  bool Offload(PolicyContext& context, TensorId tensor);
  bool Release(PolicyContext& context, TensorId tensor);
  bool Prefetch(PolicyContext& context, TensorId tensor);
  bool Evict(PolicyContext& context, TensorId tensor);
  void Reserve(PolicyContext& context, TensorId tensor);
  // Calls a verb. If it returns true, the tensor must be in state `where`; if false, nothing may
  // have changed.
  template <typename Verb>
  bool Try(PolicyContext& context, const char* name, TensorId tensor, Residency where, Verb verb);

  const PolicySpec spec_;
  const std::vector<const Allocator*> outside_;
  bool evicts_ = false;  // the policy evicts somewhere
  int failures_ = 0;     // number of OnAllocFailure calls at this op
  uint64_t verbs_ = 0;
  std::vector<std::string> violations_;
};

}  // namespace spillway::testing

#endif  // SPILLWAY_TESTS_TESTING_RANDOM_POLICY_H_
