// Tests that every wrapper forwards every virtual method with its arguments and its result. Methods
// with a default matter most, because nothing else would show that a wrapper fails to forward them.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <memory>
#include <set>
#include <string>
#include <string_view>

#include "policies/plugin/guard.h"
#include "sim/alloc/recording_allocator.h"
#include "sim/core/forwarding_allocator.h"
#include "sim/core/forwarding_backend.h"
#include "sim/core/forwarding_policy_context.h"
#include "tests/testing/accounting.h"
#include "tests/testing/faults.h"
#include "tests/testing/files.h"
#include "tests/testing/fixtures.h"

namespace spillway::testing {
namespace {

using ::testing::IsSupersetOf;

using Names = std::set<std::string>;

// Returns the names of the virtual methods that an interface declares in its header.
Names MethodsOf(const std::string& header, const std::string& interface) {
  std::string text = testing::ReadRaw(testing::InSource(header));
  text.erase(0, text.find("class " + interface + " {"));
  text.erase(text.find("\n};"));
  constexpr std::string_view kVirtual = "\n  virtual ";
  Names names;
  for (size_t at = text.find(kVirtual); at != text.npos; at = text.find(kVirtual, at + 1)) {
    const std::string declared = text.substr(at, text.find('(', at) - at);
    if (declared.find('~') == declared.npos)
      names.insert(declared.substr(declared.find_last_of(" *&") + 1));
  }
  return names;
}

// --- Allocators ---------------------------------------------------------------------------------

class NotingAllocator final : public Allocator {
 public:
  std::string_view Name() const override { return Note("Name"), "noting"; }
  std::optional<Block> Allocate(Bytes size, Hint hint) override {
    return Note("Allocate"), Block{Bytes(hint == Hint::kHigh ? 512 : 0), size};
  }
  void UseStream(uint64_t stream) override {
    if (stream == 3) Note("UseStream");
  }
  void Free(const Block& block) override {
    if (block.size == Bytes(3)) Note("Free");
  }
  MemoryStats Stats() const override {
    return Note("Stats"), MemoryStats{Bytes(1), Bytes(2), Bytes(3), Bytes(4)};
  }
  Bytes LargestFree(Hint hint) const override {
    return Note("LargestFree"), Bytes(hint == Hint::kHigh ? 5 : 6);
  }
  Bytes Reserved() const override { return Note("Reserved"), Bytes(7); }
  std::span<const DriverCall> driver_calls() const override {
    return Note("driver_calls"), std::span(&call_, 1);
  }
  Backing backing() const override { return Note("backing"), Backing::kSegments; }

  mutable Names called;

 private:
  void Note(const char* name) const { called.insert(name); }

  const DriverCall call_{DriverCall::Kind::kMalloc, {Bytes(0), Bytes(1024)}, std::nullopt};
};

struct AllocatorWrapper {
  const char* name;
  std::function<std::unique_ptr<Allocator>(Allocator& target)> wrap;
};

class AllocatorWrappers : public ::testing::TestWithParam<AllocatorWrapper> {};

testing::Fault never(testing::FaultKind::kAllocation, 1000);

INSTANTIATE_TEST_SUITE_P(
    All, AllocatorWrappers,
    ::testing::Values(
        AllocatorWrapper{"Forwarding",
                         [](Allocator& a) { return std::make_unique<ForwardingAllocator>(a); }},
        AllocatorWrapper{"Recording",
                         [](Allocator& a) { return std::make_unique<RecordingAllocator>(a); }},
        AllocatorWrapper{"Faulty",
                         [](Allocator& a) {
                           return std::make_unique<testing::FaultyAllocator>(
                               a, testing::FaultKind::kAllocation, never);
                         }},
        AllocatorWrapper{"Accounting",
                         [](Allocator& a) {
                           return std::make_unique<testing::AccountingAllocator>(a, Bytes(1024),
                                                                                 Bytes(1));
                         }}),
    [](const auto& test) { return test.param.name; });

TEST_P(AllocatorWrappers, PassEveryMethodOn) {
  NotingAllocator target;
  const auto wrapper = GetParam().wrap(target);
  EXPECT_EQ(wrapper->Name(), "noting");
  const auto block = wrapper->Allocate(Bytes(3), Hint::kHigh);
  EXPECT_EQ(block, (Block{Bytes(512), Bytes(3)}));
  wrapper->Free(*block);
  EXPECT_THAT(target.called, IsSupersetOf({"Name", "Allocate", "Free"}));
  target.called = {"Name", "Allocate", "Free"};  // forget other methods that these have called
  wrapper->UseStream(3);
  EXPECT_EQ(wrapper->Stats().largest_free, Bytes(4));
  EXPECT_EQ(wrapper->LargestFree(Hint::kHigh), Bytes(5));
  EXPECT_EQ(wrapper->Reserved(), Bytes(7));
  EXPECT_EQ(wrapper->driver_calls().size(), 1u);
  EXPECT_EQ(wrapper->backing(), Backing::kSegments);
  EXPECT_EQ(target.called, MethodsOf("sim/core/allocator.h", "Allocator"));
}

// --- Backends -----------------------------------------------------------------------------------

class NotingBackend final : public Backend {
 public:
  std::string_view Name() const override { return Note("Name"), "noting"; }
  Event Enqueue(const Launch& launch, std::span<const Wait> waits) override {
    return Note("Enqueue"),
           Event{Stream::kCompute, static_cast<uint32_t>(Index(launch.op) + waits.size())};
  }
  Event Copy(PoolId pool, Direction, const Block& device, const Block& outside, Bytes size,
             std::span<const Wait> waits) override {
    const Bytes sum = device.offset + outside.offset + size;
    EXPECT_EQ(pool, PoolId::kHost);
    return Note("Copy"), Event{Stream::kToHost, static_cast<uint32_t>(sum.count()) +
                                                    static_cast<uint32_t>(waits.size())};
  }
  void Synchronize() override { Note("Synchronize"); }
  StreamTimes TakeTimeline() override {
    StreamTimes times;
    times[1].resize(2);
    return Note("TakeTimeline"), times;
  }
  void OnAllocate(const Block& block) override { Note("OnAllocate", block); }
  void OnFree(const Block& block) override { Note("OnFree", block); }
  void OnDriverCall(const DriverCall& call) override { Note("OnDriverCall", call.range); }
  void OnHostWork(Duration time) override {
    if (time == Duration::Nanoseconds(7)) Note("OnHostWork");
  }
  void OnAbandon(const Block& block, PoolId pool) override {
    if (pool == PoolId::kHost) Note("OnAbandon", block);
  }
  void OnOutsideBlock(TensorId tensor, const Block& block, PoolId pool) override {
    if (tensor == TensorId{4} && pool == OutsidePool(2)) Note("OnOutsideBlock", block);
  }
  void OnArrive(TensorId tensor, const Block& block, PoolId pool) override {
    if (tensor == TensorId{5} && pool == PoolId::kHost) Note("OnArrive", block);
  }

  Names called;

 private:
  void Note(const char* name) const { const_cast<NotingBackend*>(this)->called.insert(name); }
  void Note(const char* name, const Block& block) {
    if (block.size == Bytes(9)) Note(name);
  }
};

struct BackendWrapper {
  const char* name;
  std::function<std::unique_ptr<Backend>(Backend& target)> wrap;
};

class BackendWrappers : public ::testing::TestWithParam<BackendWrapper> {};

INSTANTIATE_TEST_SUITE_P(
    All, BackendWrappers,
    ::testing::Values(BackendWrapper{"Forwarding",
                                     [](Backend& b) {
                                       return std::make_unique<ForwardingBackend>(b);
                                     }},
                      BackendWrapper{"Faulty",
                                     [](Backend& b) {
                                       return std::make_unique<testing::FaultyBackend>(b, never);
                                     }}),
    [](const auto& test) { return test.param.name; });

TEST_P(BackendWrappers, PassEveryMethodOn) {
  NotingBackend target;
  const auto wrapper = GetParam().wrap(target);
  const Block block{Bytes(1), Bytes(9)};
  const Wait wait{{Stream::kToHost, 1}, WaitCause::kFetch};
  Launch launch;
  launch.op = OpId{7};
  EXPECT_EQ(wrapper->Name(), "noting");
  EXPECT_EQ(wrapper->Enqueue(launch, std::span(&wait, 1)), (Event{Stream::kCompute, 8}));
  EXPECT_EQ(
      wrapper->Copy(PoolId::kHost, Direction::kToHost, block, block, Bytes(9), std::span(&wait, 1)),
      (Event{Stream::kToHost, 12}));
  wrapper->Synchronize();
  EXPECT_EQ(wrapper->TakeTimeline()[1].size(), 2u);
  wrapper->OnAllocate(block);
  wrapper->OnFree(block);
  wrapper->OnDriverCall({DriverCall::Kind::kMap, block, std::nullopt});
  wrapper->OnHostWork(Duration::Nanoseconds(7));
  wrapper->OnAbandon(block, PoolId::kHost);
  wrapper->OnOutsideBlock(TensorId{4}, block, OutsidePool(2));
  wrapper->OnArrive(TensorId{5}, block, PoolId::kHost);
  EXPECT_EQ(target.called, MethodsOf("sim/core/backend.h", "Backend"));
}

// --- Contexts -----------------------------------------------------------------------------------

class NotingContext final : public PolicyContext {
 public:
  bool Do(const VerbCall& call) override {
    const bool offloads = call.verb == Verb::kOffload;
    return offloads == (call.pool == PoolId::kHost) && Note("Do", call.tensor);
  }
  void Fence() override { Note("Fence"); }
  bool Reserve(std::span<const TensorId> tensors, Bytes at_least) override {
    return at_least == Bytes(3) && Note("Reserve", tensors.front());
  }
  bool ReserveWorkspace(Bytes size) override {
    return size == Bytes(4) && Note("ReserveWorkspace");
  }
  bool ReserveWorkspaceFor(OpId op, Bytes size) override {
    return op == OpId{3} && size == Bytes(5) && Note("ReserveWorkspaceFor");
  }
  Residency Where(TensorId tensor) const override {
    return Note("Where", tensor) ? Residency::kBoth : Residency::kNone;
  }
  bool Pinned(TensorId tensor) const override { return Note("Pinned", tensor); }
  std::optional<OpId> NextUse(TensorId tensor) const override {
    return Note("NextUse", tensor) ? std::optional(OpId{2}) : std::nullopt;
  }
  MemoryStats Stats() const override {
    return Note("Stats"), MemoryStats{Bytes(1), Bytes(2), Bytes(3), Bytes(4)};
  }
  const Trace& trace() const override { return Note("trace"), own_trace; }
  const Liveness& liveness() const override { return Note("liveness"), own_liveness; }
  const Device& device() const override { return Note("device"), own_device; }
  const CostModel& cost() const override { return Note("cost"), own_cost; }
  std::span<const Kernel> kernels(OpId op, size_t slot) const override {
    return Note("kernels"), own_cost.Kernels(own_trace.op(op), slot, 1);
  }
  std::optional<OpId> recomputing() const override { return Note("recomputing"), OpId{1}; }

  mutable Names called;
  const Trace own_trace = testing::ChainTrace();
  const Liveness own_liveness{own_trace};
  const Device own_device = testing::RoundDevice();
  const testing::FixedCost own_cost;

 private:
  bool Note(const char* name, TensorId tensor = TensorId{1}) const {
    if (tensor == TensorId{1}) called.insert(name);
    return tensor == TensorId{1};
  }
};

using UseContext = std::function<void(PolicyContext&)>;

class PlansAs final : public Policy {
 public:
  explicit PlansAs(const UseContext& use) : use_(use) {}
  void Plan(PolicyContext& context) override { use_(context); }

 private:
  const UseContext& use_;
};

struct ContextWrapper {
  const char* name;
  std::function<void(PolicyContext& target, const UseContext& use)> with;
};

class ContextWrappers : public ::testing::TestWithParam<ContextWrapper> {};

INSTANTIATE_TEST_SUITE_P(
    All, ContextWrappers,
    ::testing::Values(ContextWrapper{"Forwarding",
                                     [](PolicyContext& target, const UseContext& use) {
                                       ForwardingPolicyContext wrapper(target);
                                       use(wrapper);
                                     }},
                      ContextWrapper{
                          "Guarded",
                          [](PolicyContext& target, const UseContext& use) {
                            GuardedPolicy("p", std::make_unique<PlansAs>(use)).Plan(target);
                          }}),
    [](const auto& test) { return test.param.name; });

TEST_P(ContextWrappers, PassEveryMethodOn) {
  NotingContext target;
  GetParam().with(target, [&](PolicyContext& context) {
    const TensorId id{1};
    EXPECT_TRUE(context.Offload(id, PoolId::kHost) && context.Release(id) && context.Prefetch(id));
    EXPECT_TRUE(context.Evict(id) && context.Pinned(id));
    context.Fence();
    EXPECT_TRUE(context.Reserve(std::span(&id, 1), Bytes(3)));
    EXPECT_TRUE(context.ReserveWorkspace(Bytes(4)));
    EXPECT_TRUE(context.ReserveWorkspaceFor(OpId{3}, Bytes(5)));
    EXPECT_EQ(context.Where(id), Residency::kBoth);
    EXPECT_EQ(context.NextUse(id), OpId{2});
    EXPECT_EQ(context.kernels(OpId{0}, 0).size(), 1u);
    EXPECT_EQ(context.recomputing(), OpId{1});
    target.called.erase("trace");  // a wrapper may call it for its own use
    EXPECT_EQ(context.Stats().reserved, Bytes(3));
    EXPECT_EQ(&context.trace(), &target.own_trace);
    EXPECT_EQ(&context.liveness(), &target.own_liveness);
    EXPECT_EQ(&context.device(), &target.own_device);
    EXPECT_EQ(&context.cost(), &target.own_cost);
  });
  EXPECT_EQ(target.called, MethodsOf("sim/core/policy.h", "PolicyContext"));
}

}  // namespace
}  // namespace spillway::testing
