#include "sim/engine/schedule.h"

#include <gtest/gtest.h>

#include <array>
#include <string>
#include <vector>

#include "experiments/run/run.h"
#include "sim/engine/sim_backend.h"
#include "tests/testing/fixtures.h"
#include "tests/testing/runs.h"
#include "traces/base/error.h"

namespace spillway::testing {
namespace {

constexpr size_t kCompute = Index(Stream::kCompute);
constexpr size_t kIn = Index(Stream::kToDevice);
constexpr size_t kOut = Index(Stream::kToHost);

Duration Ns(int64_t n) { return Duration::Nanoseconds(n); }

// Adds a command and returns its event.
LaneEvent Add(Program& program, Lane lane, Duration nominal, Bytes traffic = Bytes(0),
              std::vector<LaneEvent> waits = {}, Duration issued = Duration()) {
  Command command{issued, nominal, traffic, static_cast<uint32_t>(program.waits.size()),
                  static_cast<uint32_t>(waits.size())};
  program.waits.insert(program.waits.end(), waits.begin(), waits.end());
  program.lanes[Index(lane)].push_back(command);
  return {lane, static_cast<uint32_t>(program.lanes[Index(lane)].size())};
}

LaneTimes Play(const Program& program, const Device& device = testing::RoundDevice()) {
  return RunSchedule(program, Links(device));
}

//   compute  |--a 10--|--b 5--|
TEST(ScheduleTest, OneStreamRunsBackToBack) {
  Program program;
  Add(program, Lane::kCompute, Ns(10));
  Add(program, Lane::kCompute, Ns(5));
  const LaneTimes times = Play(program);
  EXPECT_EQ(times[kCompute][0].end, Ns(10));
  EXPECT_EQ(times[kCompute][1].start, Ns(10));
  EXPECT_EQ(times[kCompute][1].end, Ns(15));
}

// The kernel starts at the very picosecond at which its wait ends.
//   d2h      |----copy 12----|
//   compute                  |-b-|
TEST(ScheduleTest, StartsExactlyWhenItsWaitHappens) {
  Program program;
  const LaneEvent copy = Add(program, Lane::kToHost, Ns(12), Bytes(12));
  Add(program, Lane::kCompute, Ns(3), Bytes(0), {copy});
  EXPECT_EQ(Play(program)[kCompute][0].start, Ns(12));
}

//   h2d      |--x 10--|--y 4--|
//   compute           ..|-a 3-|   waits for x
//   d2h                       |-z 2-|   waits for a: copies begin at once
TEST(ScheduleTest, AKernelSeesTheEndOfACopyLater) {
  Program program;
  program.kernel_wait = Ns(2);
  const LaneEvent x = Add(program, Lane::kToDevice, Ns(10), Bytes(10));
  Add(program, Lane::kToDevice, Ns(4), Bytes(4));
  const LaneEvent a = Add(program, Lane::kCompute, Ns(3), Bytes(0), {x});
  Add(program, Lane::kToHost, Ns(2), Bytes(2), {a});
  Add(program, Lane::kCompute, Ns(5), Bytes(0), {a});
  const LaneTimes times = Play(program);
  EXPECT_EQ(times[kCompute][0].start, Ns(12));
  EXPECT_EQ(times[kCompute][1].start, Ns(15));  // it waits for a kernel; the copies ended long ago
  EXPECT_EQ(times[Index(Lane::kToHost)][0].start, Ns(15));
}

TEST(ScheduleTest, StartsNoEarlierThanIssued) {
  Program program;
  Add(program, Lane::kCompute, Ns(3), Bytes(0), {}, Ns(7));
  const LaneTimes times = Play(program);
  EXPECT_EQ(times[kCompute][0].start, Ns(7));
  EXPECT_EQ(times[kCompute][0].issued, Ns(7));
}

// Each copy of 100 bytes could run at 1 B/ns. Both together get 1.5 B/ns, so 0.75 B/ns each, until
// 133.3 ns.
TEST(ScheduleTest, CopiesShareTheDuplexLimit) {
  Device device = testing::RoundDevice();
  device.duplex = {1'500'000'000};
  Program program;
  Add(program, Lane::kToDevice, Ns(100), Bytes(100));
  Add(program, Lane::kToHost, Ns(100), Bytes(100));
  const LaneTimes times = Play(program, device);
  EXPECT_NEAR(times[kIn][0].end.milliseconds() * 1e6, 133.333, 0.01);
  EXPECT_EQ(times[kIn][0].end, times[kOut][0].end);
}

// The second copy runs alone once the first has ended: 50 bytes at 0.75 B/ns, the other 50 at 1
// B/ns.
TEST(ScheduleTest, SpeedRecoversWhenTheOtherEnds) {
  Device device = testing::RoundDevice();
  device.duplex = {1'500'000'000};
  Program program;
  Add(program, Lane::kToDevice, Ns(50), Bytes(50));
  Add(program, Lane::kToHost, Ns(100), Bytes(100));
  const LaneTimes times = Play(program, device);
  EXPECT_NEAR(times[kIn][0].end.milliseconds() * 1e6, 66.667, 0.01);
  EXPECT_NEAR(times[kOut][0].end.milliseconds() * 1e6, 116.667, 0.01);
}

// A kernel that needs all DRAM bandwidth (2 B/ns) loses the 1 B/ns of a copy while the copy runs.
TEST(ScheduleTest, KernelsShareDramWithCopies) {
  Device device = testing::RoundDevice();
  device.dram = {2'000'000'000};
  Program program;
  Add(program, Lane::kCompute, Ns(100), Bytes(200));
  Add(program, Lane::kToHost, Ns(50), Bytes(50));
  const LaneTimes times = Play(program, device);
  EXPECT_EQ(times[kOut][0].end, Ns(50));
  EXPECT_EQ(times[kCompute][0].end, Ns(125));
}

//   compute  |--20 of 100--|--15, at half speed--|--65--|
//   d2h                    |----copy 30----------|
TEST(ScheduleTest, WhatRunsIsSlowedAndRecovers) {
  Device device = testing::RoundDevice();
  device.dram = {2'000'000'000};
  Program program;
  Add(program, Lane::kCompute, Ns(100), Bytes(200));
  Add(program, Lane::kToHost, Ns(30), Bytes(30), {}, Ns(20));
  const LaneTimes times = Play(program, device);
  EXPECT_EQ(times[kOut][0].end, Ns(50));
  EXPECT_EQ(times[kCompute][0].end, Ns(115));
}

// 120 MB in a picosecond: a demand that exceeds 64 bits is still limited by the link.
// Two collectives share the links to other GPUs, and each takes a tenth of the kernel's speed.
//   lane1    |----a 10----|----|        at half speed until b has ended
//   lane2    |----b 10---------|
//   compute  |--------c 18-------|
TEST(ScheduleTest, CollectivesShareTheirLinksAndSlowKernels) {
  Program program;
  program.beside_collective = kFullSpeed / 10;
  for (const size_t lane : {1, 2}) {
    Add(program, LaneOf(StreamOfLane(lane)), Ns(10));
    program.lanes[Index(StreamOfLane(lane))][0].collective = true;
  }
  Add(program, Lane::kCompute, Ns(20));
  const LaneTimes times = Play(program);
  EXPECT_EQ(times[Index(StreamOfLane(1))][0].end, Ns(20));
  EXPECT_EQ(times[Index(StreamOfLane(2))][0].end, Ns(20));
  EXPECT_EQ(times[kCompute][0].end.picoseconds() / 1000, 22);
}

TEST(ScheduleTest, DemandsBeyondSixtyFourBitsAreSlowed) {
  Program program;
  Add(program, Lane::kToHost, Duration::Picoseconds(1), Bytes(120'000'000));
  EXPECT_GT(Play(program)[kOut][0].end, Ns(1));
}

TEST(ScheduleTest, CommandsWithoutDurationEndAtOnce) {
  Program program;
  const LaneEvent first = Add(program, Lane::kCompute, Ns(0));
  Add(program, Lane::kToHost, Ns(0), Bytes(0), {first});
  const LaneTimes times = Play(program);
  EXPECT_EQ(times[kOut][0].end, Ns(0));
}

TEST(LinksTest, SharesAreMaxMinFair) {
  Device device = testing::RoundDevice();
  device.dram = {9};
  device.duplex = {100};
  // The copy of 1 B/s gets its full rate; the other two commands split the remaining 8 B/s.
  const Speeds speeds = Links(device).Share({10, 1, 10});
  EXPECT_EQ(speeds[kIn], kFullSpeed);
  EXPECT_EQ(speeds[kCompute], kFullSpeed * 4 / 10);
  EXPECT_EQ(speeds[kOut], kFullSpeed * 4 / 10);
}

TEST(LinksTest, AnUnloadedMachineRunsAtFullSpeed) {
  for (const int64_t speed : Links(testing::RoundDevice()).Share({})) EXPECT_EQ(speed, kFullSpeed);
}

// A pool with its own link has its own limits. A pool on the host's link shares the limit of each
// direction and the duplex limit.
TEST(LinksTest, PoolsShareLinksAsTheDeviceSays) {
  constexpr size_t kPoolOut = Index(StreamOf(OutsidePool(1), Direction::kToHost));
  constexpr size_t kPoolIn = Index(StreamOf(OutsidePool(1), Direction::kToDevice));
  constexpr int64_t kGiga = 1'000'000'000;
  Device device = testing::DeviceWithPeer(Bytes(1));
  Rates demand{};
  demand[kIn] = demand[kOut] = kGiga;
  demand[kPoolIn] = demand[kPoolOut] = 2 * kGiga;
  for (const int64_t speed : Links(device).Share(demand)) EXPECT_EQ(speed, kFullSpeed);
  device.pools[0].duplex = {2 * kGiga};
  EXPECT_EQ(Links(device).Share(demand)[kPoolOut], kFullSpeed / 2);
  EXPECT_EQ(Links(device).Share(demand)[kOut], kFullSpeed);
  // Both pools share 1 GB/s in each direction and get half each.
  device.pools[0].over_host = true;
  EXPECT_EQ(Links(device).Share(demand)[kOut], kFullSpeed / 2);
  EXPECT_EQ(Links(device).Share(demand)[kPoolOut], kFullSpeed / 4);
  demand[kPoolOut] = 0;
  EXPECT_EQ(Links(device).Share(demand)[kOut], kFullSpeed);
  EXPECT_EQ(Links(device).Share(demand)[kPoolIn], kFullSpeed / 4);
}

// The host may be 2 to 4 ops ahead. It issues op 6, and the copy after op 6, when op 3 has ended.
TEST(SimBackendTest, AHostThatIsTooFarAheadIssuesNothing) {
  Device device;
  device.duplex = device.dram = {1'000'000'000'000};
  const testing::FixedCost cost;
  const auto start_of_copy = [&](int launch_ahead, int ops) {
    device.launch_ahead = launch_ahead;
    SimBackend backend(device, cost);
    Launch launch;
    launch.time = Duration::Microseconds(10);
    const KernelRun run;
    launch.runs = {&run, 1};
    for (int i = 0; i < ops; ++i) backend.Enqueue(launch, {});
    const Block block{Bytes(0), Bytes(512)};
    backend.Copy(PoolId::kHost, Direction::kToHost, block, block, Bytes(512), {});
    backend.Synchronize();
    return backend.TakeTimeline()[Index(Stream::kToHost)][0].start;
  };
  EXPECT_EQ(start_of_copy(0, 7), Duration());
  EXPECT_EQ(start_of_copy(2, 4), Duration());
  EXPECT_EQ(start_of_copy(2, 5), Duration::Microseconds(10));
  EXPECT_EQ(start_of_copy(2, 6), Duration::Microseconds(10));
  EXPECT_EQ(start_of_copy(2, 7), Duration::Microseconds(30));
}

// Beside a copy of 10 us, a product of bfloat16 of 10 us runs at half its speed.
TEST(SimBackendTest, CopiesSlowKernelsDownByTheirKind) {
  Device device;
  device.duplex = device.dram = {1'000'000'000'000};
  device.beside_copy[static_cast<size_t>(BesideKind::kProducts)] = 0.5;
  const testing::FixedCost cost;
  const auto end_of_kernel = [&](OpType type, Arithmetic arithmetic) {
    SimBackend backend(device, cost);
    Launch launch;
    launch.type = type;
    launch.arithmetic = arithmetic;
    launch.time = Duration::Microseconds(10);
    const KernelRun run;
    launch.runs = {&run, 1};
    const Block block{Bytes(0), Bytes(512)};
    backend.Copy(PoolId::kHost, Direction::kToHost, block, block, Bytes(512), {});
    backend.Enqueue(launch, {});
    backend.Synchronize();
    const StreamTimes times = backend.TakeTimeline();
    const Duration copy = times[Index(Stream::kToHost)][0].end;
    EXPECT_GT(copy, Duration());
    return std::pair(times[Index(Stream::kCompute)][0].end, copy);
  };
  const Duration alone = Duration::Microseconds(10);
  EXPECT_EQ(end_of_kernel(OpType::kLinear, Arithmetic::kFp32).first, alone);
  EXPECT_EQ(end_of_kernel(OpType::kAttention, Arithmetic::kBf16).first, alone);
  const auto [end, copy] = end_of_kernel(OpType::kLinear, Arithmetic::kBf16);
  EXPECT_EQ(end,
            copy < alone * 2 ? alone + Duration::Picoseconds(copy.picoseconds() / 2) : alone * 2);
}

// Each launch costs the host 1 us and cudaMalloc 10 us. cudaFree costs 20 us, after every command
// has ended.
TEST(SimBackendTest, DriverCallsHoldUpTheHostAndFreeingDrainsTheStreams) {
  Device device;
  device.launch_overhead = Duration::Microseconds(1);
  device.device_malloc.fixed = Duration::Microseconds(10);
  device.device_free.fixed = Duration::Microseconds(20);
  device.duplex = device.dram = {1'000'000'000'000};
  const testing::FixedCost cost;
  const Block block{Bytes(0), Bytes(512)};
  const auto launch = [](int microseconds) {
    Launch result;
    result.time = Duration::Microseconds(microseconds);
    static const KernelRun run;
    result.runs = {&run, 1};
    return result;
  };
  const auto run = [&](bool charge_driver) {
    SimBackend backend(device, cost, {.driver = charge_driver});
    backend.OnAllocate(block);  // it comes before the iteration, so it is not charged
    const Event first = backend.Enqueue(launch(100), {});
    backend.OnAllocate(block);
    backend.Enqueue(launch(5), {});
    backend.OnFree(block);
    const std::array<Wait, 1> waits{Wait{first, WaitCause::kMemory}};
    const Event last = backend.Enqueue(launch(5), waits);
    EXPECT_EQ(last.sequence, 3u);
    backend.Synchronize();
    std::vector<int64_t> times;
    const StreamTimes intervals = backend.TakeTimeline();
    for (const Interval& interval : intervals[kCompute]) {
      times.push_back(interval.start.picoseconds() / 1'000'000);
      times.push_back(interval.end.picoseconds() / 1'000'000);
    }
    return times;
  };
  EXPECT_EQ(run(false), (std::vector<int64_t>{1, 101, 101, 106, 106, 111}));
  EXPECT_EQ(run(true), (std::vector<int64_t>{1, 101, 101, 106, 127, 132}));
}

// Calls of the convolution library take the host 7 us, other launches 1 us. The copy is issued
// after all calls.
TEST(SimBackendTest, LibraryCallsTakeTheirOwnTimeWhereBlocksAreCallsOfTheDriver) {
  Device device;
  device.launch_overhead = Duration::Microseconds(1);
  device.duplex = device.dram = {1'000'000'000'000};
  const testing::FixedCost cost;
  const auto start_of_copy = [&](bool charge_driver, OpType type, std::vector<KernelRun> runs) {
    SimBackend backend(device, cost, {.driver = charge_driver});
    Launch launch;
    launch.type = type;
    launch.runs = runs;
    backend.Enqueue(launch, {});
    const Block block{Bytes(0), Bytes(512)};
    backend.Copy(PoolId::kHost, Direction::kToHost, block, block, Bytes(512), {});
    backend.Synchronize();
    return backend.TakeTimeline()[Index(Stream::kToHost)][0].start.picoseconds() / 1'000'000;
  };
  // A call takes as long as a launch if its own time is unknown.
  EXPECT_EQ(start_of_copy(true, OpType::kConv2d, {{}}), 2);
  device.library_call = Duration::Microseconds(7);
  for (const OpType type : {OpType::kConv2d, OpType::kBatchNorm, OpType::kLrn}) {
    EXPECT_EQ(start_of_copy(true, type, {{}}), 8);
    EXPECT_EQ(start_of_copy(true, type, {{}, {}}), 15);
    EXPECT_EQ(start_of_copy(false, type, {{}}), 2);
  }
  EXPECT_EQ(start_of_copy(true, OpType::kLinear, {{}, {}}), 3);
}

// Two kernels, each with half the op's time, are enqueued at 7 and 14 us.
TEST(SimBackendTest, TheLastKernelOfAnOpWaitsForItsLibraryCall) {
  Device device;
  device.launch_overhead = Duration::Microseconds(1);
  device.library_call = Duration::Microseconds(7);
  device.duplex = device.dram = {1'000'000'000'000};
  const testing::FixedCost cost;
  const auto end = [&](int microseconds, OpType type) {
    SimBackend backend(device, cost, {.driver = true});
    const std::array<KernelRun, 2> runs{};
    Launch launch;
    launch.type = type;
    launch.runs = runs;
    launch.time = Duration::Microseconds(microseconds);
    backend.Enqueue(launch, {});
    backend.Synchronize();
    return backend.TakeTimeline()[kCompute][0].end.picoseconds() / 1'000'000;
  };
  EXPECT_EQ(end(4, OpType::kConv2d), 16);
  EXPECT_EQ(end(14, OpType::kConv2d), 21);
  EXPECT_EQ(end(20, OpType::kConv2d), 27);
  EXPECT_EQ(end(4, OpType::kLinear), 5);
}

// Runs one op of each kind, of 10 ns, from the trace through the runtime. With best fit, the second
// op is issued while the first runs, until 11 ns. With native blocks, it is issued after x was
// freed at that time.
TEST(SimBackendTest, TheRuntimeSaysWhatKindOfOpItLaunches) {
  Device device = testing::RoundDevice();
  device.launch_overhead = Duration::Nanoseconds(1);
  device.library_call = Duration::Nanoseconds(700);
  testing::TraceBuilder builder;
  builder.Tensor("x", TensorKind::kInput, 100).Tensor("y", TensorKind::kActivation, 100);
  builder.Tensor("z", TensorKind::kActivation, 100);
  builder.Op("relu", Phase::kForward, {"x"}, {"y"}, OpType::kRelu);
  builder.Op("conv", Phase::kForward, {"y"}, {"z"}, OpType::kConv2d);
  const Trace trace = builder.Build();
  const testing::FixedCost cost;
  const auto iteration = [&](const char* allocator) {
    class Plain final : public Policy {
    } policy;
    const Draft setup{Borrow(trace), device, Borrow(cost), Bytes::GiB(1), allocator};
    return testing::Simulate(setup, policy).report.metrics.iteration;
  };
  EXPECT_EQ(iteration("best-fit"), Duration::Nanoseconds(1 + 10 + 10));
  EXPECT_EQ(iteration("native"), Duration::Nanoseconds(1 + 10 + 700 + 10));
}

// A clock holds 53 days, which are 4.61 million seconds, so the fifth launch is too late.
TEST(SimBackendTest, RefusesAHostThatIsBusyForMonths) {
  Device device = testing::RoundDevice();
  device.launch_overhead = Duration::Milliseconds(1'000'000'000);  // 10^6 s
  const testing::FixedCost cost;
  SimBackend backend(device, cost);
  Launch launch;
  const std::array<KernelRun, 1> runs{};
  launch.runs = runs;
  launch.time = Ns(1);
  for (int i = 0; i < 4; ++i) backend.Enqueue(launch, {});
  try {
    backend.Enqueue(launch, {});
    FAIL() << "five million seconds were accepted";
  } catch (const InputError& error) {
    EXPECT_EQ(std::string(error.what()),
              "device 'round': issuing the commands of an iteration takes more than 4611686 s");
  }
}

}  // namespace
}  // namespace spillway::testing
