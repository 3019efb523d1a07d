// Tests of the time that the simulator charges for an allocator's calls of the driver.

#include <gtest/gtest.h>

#include <optional>

#include "sim/engine/sim_backend.h"
#include "tests/testing/fixtures.h"

namespace spillway::testing {
namespace {

using Kind = DriverCall::Kind;

// Returns when the second of two kernels of 10 ns starts, in nanoseconds. The kernels are issued
// back to back except for the driver call between them. A launch takes 1 ns of the host's time.
int64_t SecondStart(Kind kind, bool before_the_first = false,
                    std::optional<Bytes> physical = std::nullopt) {
  Device device = testing::RoundDevice();
  device.launch_overhead = Duration::Nanoseconds(1);
  device.device_malloc.fixed = Duration::Nanoseconds(20);
  device.device_free.fixed = Duration::Nanoseconds(30);
  device.page_map.fixed = Duration::Nanoseconds(25);
  device.page_map_new.fixed = Duration::Nanoseconds(40);
  device.page_unmap.fixed = Duration::Nanoseconds(50);
  const testing::FixedCost cost;
  SimBackend backend(device, cost);
  const KernelRun run{0, 0, 1};
  Launch launch;
  launch.runs = {&run, 1};
  launch.time = Duration::Nanoseconds(10);
  const DriverCall call{kind, {Bytes(0), Bytes(100)}, physical};
  if (before_the_first) backend.OnDriverCall(call);
  backend.Enqueue(launch, {});
  if (!before_the_first) backend.OnDriverCall(call);
  backend.Enqueue(launch, {});
  backend.Synchronize();
  return backend.TakeTimeline()[0].at(1).start.picoseconds() / 1000;
}

// The host enqueues the first kernel at 1 ns, is blocked until 1 + 20 ns and enqueues the second at
// 22 ns.
TEST(DriverCallTest, TakingMemoryHoldsUpTheHost) {
  EXPECT_EQ(SecondStart(Kind::kMalloc), 22);
  EXPECT_EQ(SecondStart(Kind::kMap), 42);
}

TEST(DriverCallTest, MemoryWithANameIsNotNew) {
  EXPECT_EQ(SecondStart(Kind::kMap, /*before_the_first=*/false, Bytes(0)), 27);
}

// The first kernel runs from 1 to 11 ns. The call begins only then.
TEST(DriverCallTest, GivingMemoryBackWaitsForTheDeviceToo) {
  EXPECT_EQ(SecondStart(Kind::kFree), 42);
  EXPECT_EQ(SecondStart(Kind::kUnmap), 62);
}

TEST(DriverCallTest, WhatPrecedesTheIterationIsNoPartOfIt) {
  EXPECT_EQ(SecondStart(Kind::kFree, /*before_the_first=*/true), 11);
}

}  // namespace
}  // namespace spillway::testing
