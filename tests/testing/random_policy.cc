#include "tests/testing/random_policy.h"

#include <fmt/format.h>

#include <algorithm>
#include <tuple>
#include <utility>

namespace spillway::testing {

// The state of a run that a policy can see, together with the statistics of the outside pools.
struct RandomPolicy::Facts {
  std::vector<std::tuple<Residency, bool, std::optional<OpId>>> tensors;
  std::vector<Bytes> memory;
  bool operator==(const Facts&) const = default;
};

RandomPolicy::RandomPolicy(const PolicySpec& spec, std::vector<const Allocator*> outside)
    : spec_(spec), outside_(std::move(outside)) {
  // A block shared by several storages excludes evictions: recomputing one storage may need another
  // storage back.
  evicts_ = std::any_of(spec.acts.begin(), spec.acts.end(),
                        [](const Act& act) {
                          return static_cast<Move>(act[2] % 8) == Move::kEvict ||
                                 static_cast<Move>(act[2] % 8) == Move::kWork;
                        }) ||
            spec.on_failure % 4 >= 2;
}

RandomPolicy::Facts RandomPolicy::Take(const PolicyContext& context) const {
  Facts facts;
  for (size_t i = 0; i < context.trace().tensors.size(); ++i) {
    const auto id = static_cast<TensorId>(i);
    facts.tensors.push_back({context.Where(id), context.Pinned(id), context.NextUse(id)});
  }
  const MemoryStats device = context.Stats();
  facts.memory = {device.requested, device.allocated, device.reserved, device.largest_free};
  for (const Allocator* pool : outside_) {
    const MemoryStats stats = pool->Stats();
    for (const Bytes value : {stats.requested, stats.allocated, stats.largest_free}) {
      facts.memory.push_back(value);
    }
  }
  return facts;
}

// --- Hooks --------------------------------------------------------------------------------------

bool RandomPolicy::LivesOutside(const Trace&, TensorId tensor) {
  return (spec_.outside >> Index(tensor) % 8 & 1) != 0;
}

void RandomPolicy::Plan(PolicyContext& context) { ActAt(context, Hook::kPlan, OpId{0}); }

void RandomPolicy::BeforeOp(PolicyContext& context, OpId op) {
  failures_ = 0;
  ActAt(context, Hook::kBeforeOp, op);
}

void RandomPolicy::BeforeLaunch(PolicyContext& context, OpId op) {
  ActAt(context, Hook::kBeforeLaunch, op);
}

void RandomPolicy::AfterOp(PolicyContext& context, OpId op) {
  ActAt(context, Hook::kAfterOp, op);
  failures_ = 0;
}

KernelPlan RandomPolicy::ChooseKernels(PolicyContext& context, OpId op) {
  ActAt(context, Hook::kChoose, op);
  if (spec_.kernels == 0) return {};
  const Op& step = context.trace().op(op);
  const bool split = spec_.kernels % 2 == 1;
  KernelPlan plan;
  for (uint32_t slot = 0; slot < step.slots.size(); ++slot) {
    for (int64_t left = step.batch; left > 0; left -= plan.back().batch) {
      const size_t choices = context.kernels(op, slot).size();
      const size_t kernel = (spec_.kernels / 2u + Index(op) + static_cast<size_t>(left)) % choices;
      plan.push_back({slot, static_cast<uint32_t>(kernel), split ? 1 : left});
    }
  }
  return plan;
}

Hint RandomPolicy::PlacementHint(const PolicyContext&, TensorId tensor) {
  return spec_.hints >> (Index(tensor) % 8) & 1 ? Hint::kHigh : Hint::kLow;
}

bool RandomPolicy::OnAllocFailure(PolicyContext& context, Bytes) {
  // One call may prefetch tensors that the next call sends away.
  if (++failures_ > 20) return false;
  bool given = false;
  for (const Act& act : spec_.acts) {
    if (static_cast<Hook>(act[1] % 6) != Hook::kFailure) continue;
    const TensorId tensor = Pick(context, act[3]);
    given = Do(context, Hook::kFailure, static_cast<Move>(act[2] % 8), tensor) || given;
  }
  return MakeRoom(context) || given;
}

bool RandomPolicy::MakeRoom(PolicyContext& context) {
  const unsigned how = spec_.on_failure % 4;
  for (size_t i = 0; i < context.trace().tensors.size(); ++i) {
    const auto id = static_cast<TensorId>(i);
    if (how >= 2 && Evict(context, id)) return true;
    if (how % 2 == 1 && Offload(context, id) && Release(context, id)) return true;
  }
  return false;
}

void RandomPolicy::ActAt(PolicyContext& context, Hook hook, OpId op) {
  const size_t ops = context.trace().ops.size();
  for (const Act& act : spec_.acts) {
    if (static_cast<Hook>(act[1] % 6) != hook) continue;
    if (hook != Hook::kPlan && act[0] % ops != Index(op)) continue;
    Do(context, hook, static_cast<Move>(act[2] % 8), Pick(context, act[3]));
  }
}

// --- Verbs --------------------------------------------------------------------------------------

TensorId RandomPolicy::Pick(const PolicyContext& context, uint8_t number) {
  const size_t tensors = context.trace().tensors.size();
  std::vector<TensorId> movable;
  for (size_t i = 0; i < tensors && number < 192; ++i) {
    const auto id = static_cast<TensorId>(tensors - 1 - i);  // recent ones first
    if (context.Where(id) != Residency::kNone && !context.Pinned(id)) movable.push_back(id);
  }
  return movable.empty() ? static_cast<TensorId>(number % tensors)
                         : movable[number % movable.size()];
}

bool RandomPolicy::Do(PolicyContext& context, Hook hook, Move move, TensorId id) {
  switch (move) {
    case Move::kSend:
      return Offload(context, id) && Release(context, id);
    case Move::kOffload:
      Offload(context, id);
      return false;
    case Move::kRelease:
      return Release(context, id);
    case Move::kPrefetch:
      Prefetch(context, id);
      return false;
    case Move::kEvict:
      return Evict(context, id);
    case Move::kFence:
      context.Fence();
      return false;
    case Move::kReserve:
      if (hook == Hook::kPlan) Reserve(context, id);
      return false;
    case Move::kWork:
      if (hook == Hook::kPlan)
        context.ReserveWorkspace(Bytes(40 + 1000 * static_cast<int64_t>(Index(id))));
      return hook != Hook::kPlan && Evict(context, id);
  }
  return false;
}

template <typename Verb>
bool RandomPolicy::Try(PolicyContext& context, const char* name, TensorId tensor, Residency where,
                       Verb verb) {
  ++verbs_;
  const Facts before = Take(context);
  const bool done = verb();
  Facts after = Take(context);
  // Elements 2 and 3 are the reserved bytes and the largest free block. A request that fails may
  // give cached memory back.
  if (!done && after.memory[2] < before.memory[2]) {
    std::copy_n(before.memory.begin() + 2, 2, after.memory.begin() + 2);
  }
  if (!done && !(after == before)) {
    violations_.push_back(fmt::format("{} of {} said false but changed something", name,
                                      context.trace().tensor(tensor).name));
  }
  if (done && context.Where(tensor) != where) {
    violations_.push_back(fmt::format("{} of {} said true but was not done", name,
                                      context.trace().tensor(tensor).name));
  }
  return done;
}

bool RandomPolicy::Offload(PolicyContext& context, TensorId tensor) {
  // Some calls name a pool, which may not exist.
  const size_t number = (spec_.hints + Index(tensor)) % (2 * kMaxPools);
  const auto pool = number < kMaxPools ? std::optional(OutsidePool(number)) : std::nullopt;
  return Try(context, "Offload", tensor, Residency::kBoth,
             [&] { return context.Offload(tensor, pool); });
}

bool RandomPolicy::Release(PolicyContext& context, TensorId tensor) {
  return Try(context, "Release", tensor, Residency::kOutside,
             [&] { return context.Release(tensor); });
}

bool RandomPolicy::Prefetch(PolicyContext& context, TensorId tensor) {
  return Try(context, "Prefetch", tensor, Residency::kBoth,
             [&] { return context.Prefetch(tensor); });
}

bool RandomPolicy::Evict(PolicyContext& context, TensorId tensor) {
  return Try(context, "Evict", tensor, Residency::kEvicted, [&] { return context.Evict(tensor); });
}

void RandomPolicy::Reserve(PolicyContext& context, TensorId tensor) {
  // Starting from one storage, choose storages that are first used after the last use of the one
  // chosen before.
  const Liveness& liveness = context.liveness();
  std::vector<TensorId> chosen;
  const size_t tensors = context.trace().tensors.size();
  for (size_t i = 0; i < tensors && chosen.size() < 3; ++i) {
    const TensorId id = liveness.Root(static_cast<TensorId>((Index(tensor) + i) % tensors));
    const auto first = liveness.FirstUse(id);
    const bool arrives = context.trace().tensor(id).kind == TensorKind::kInput;
    const bool after = chosen.empty() ||
                       (first && !arrives && !evicts_ && *first > *liveness.LastUse(chosen.back()));
    if (first && after) chosen.push_back(id);
  }
  if (chosen.empty()) return;
  Try(context, "Reserve", chosen.front(), context.Where(chosen.front()), [&] {
    return context.Reserve(chosen, Bytes(static_cast<int64_t>(Index(tensor) % 3 * 100)));
  });
}

std::string RandomPolicy::Describe(const PolicySpec& spec, const Trace& trace) {
  constexpr std::array kHooks{"AfterOp",       "BeforeOp", "BeforeLaunch",
                              "ChooseKernels", "Plan",     "OnAllocFailure"};
  constexpr std::array kVerbs{
      "offload and release",       "offload", "release", "prefetch", "evict", "fence", "reserve",
      "reserve workspace or evict"};
  std::string text = fmt::format("policy: on failure {}, hints {}, kernels {}\n",
                                 spec.on_failure % 4, spec.hints, spec.kernels);
  for (const Act& act : spec.acts) {
    text += fmt::format("  {} {}: {} number {}\n", kHooks[act[1] % kHooks.size()],
                        trace.ops[act[0] % trace.ops.size()].name, kVerbs[act[2] % kVerbs.size()],
                        act[3]);
  }
  return text;
}

}  // namespace spillway::testing
