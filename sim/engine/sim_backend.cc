#include "sim/engine/sim_backend.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "traces/ops/op_table.h"

namespace spillway::sim {
namespace {

std::unique_ptr<SimCopyPath> MakeCopyPath(const Device& device, const CostModel& cost,
                                          IssueQueue& queue, const HostCompression* compression) {
  if (compression == nullptr) return std::make_unique<SimCopyPath>(device, cost, queue);
  return std::make_unique<SimCompressedCopyPath>(device, cost, queue, *compression);
}

}  // namespace

SimBackend::SimBackend(const Device& device, const CostModel& cost, SimCharges charges,
                       const HostCompression* compression)
    : device_(device),
      charges_(charges),
      queue_(device, charges.kernel_waits ? device.kernel_wait : Duration(),
             /*splits=*/compression != nullptr),
      copies_(MakeCopyPath(device, cost, queue_, compression)) {}

Event SimBackend::Enqueue(const Launch& launch, std::span<const Wait> waits) {
  queue_.KeepClose();
  Command command;
  command.nominal = launch.time + launch.gap;
  command.gap = launch.gap;
  command.traffic = launch.traffic;
  command.collective = launch.collective;
  const Stream stream = StreamOfLane(launch.lane);
  const auto kind = static_cast<size_t>(BesideKindOf(launch.type, launch.arithmetic));
  command.beside_copy = std::llround(device_.beside_copy[kind] * kFullSpeed);
  const size_t calls = launch.runs.size();
  if (launch.host) {
    // The time was measured as a whole; an op faster than memory had its data in caches.
    const Int128 most = Int128{command.nominal.picoseconds()} * device_.dram.bytes_per_second;
    command.traffic =
        std::min(command.traffic, Bytes(static_cast<int64_t>(most / 1'000'000'000'000)));
    return queue_.Issue(stream, command, waits, 1, *launch.host);
  }
  // With a driver call per block, blocks lie elsewhere in each iteration, so the host cannot launch
  // the graph of an earlier iteration.
  if (!charges_.driver || RowOf(launch.type).library != Library::kConvolution || calls == 0) {
    return queue_.Issue(stream, command, waits, calls, device_.launch_overhead);
  }
  const Duration time = device_.library_call.value_or(device_.launch_overhead);
  // A GPU that has been drained waits for each of these calls, including the last one.
  const auto count = static_cast<int64_t>(calls);
  command.least_end =
      queue_.now() + time * count + Duration::Picoseconds(launch.time.picoseconds() / count);
  return queue_.Issue(stream, command, waits, calls, time);
}

Event SimBackend::Copy(PoolId pool, Direction direction, const Block&, const Block& outside,
                       Bytes size, std::span<const Wait> waits) {
  return copies_->Copy(pool, direction, outside, size, waits);
}

void SimBackend::OnOutsideBlock(TensorId tensor, const Block& block, PoolId pool) {
  if (pool == PoolId::kHost) copies_->OnHostBlock(tensor, block);
}

void SimBackend::OnAllocate(const Block& block) {
  if (charges_.driver) Charge({DriverCall::Kind::kMalloc, block, std::nullopt});
}

void SimBackend::OnFree(const Block& block) {
  if (charges_.driver) Charge({DriverCall::Kind::kFree, block, std::nullopt});
}

void SimBackend::OnDriverCall(const DriverCall& call) {
  const bool grows = call.kind == DriverCall::Kind::kMalloc || call.kind == DriverCall::Kind::kMap;
  if (charges_.growth || !grows) Charge(call);
}

void SimBackend::Charge(const DriverCall& call) {
  if (queue_.now() == Duration()) return;  // not part of the iteration
  const Bytes size = call.range.size;
  if (call.kind == DriverCall::Kind::kFree || call.kind == DriverCall::Kind::kUnmap) {
    Drain();
    queue_.Await();
  }
  switch (call.kind) {
    case DriverCall::Kind::kMalloc:
      queue_.Spend(device_.device_malloc.At(size));
      return;
    case DriverCall::Kind::kFree:
      queue_.Spend(device_.device_free.At(size));
      return;
    case DriverCall::Kind::kMap:
      // An allocator that chooses the memory maps it many times, and it is new only once.
      queue_.Spend((call.physical ? device_.page_map : device_.page_map_new).At(size));
      return;
    case DriverCall::Kind::kUnmap:
      queue_.Spend(device_.page_unmap.At(size));
      return;
  }
}

void SimBackend::Drain() {
  queue_.Drain([&](const Program& program, const LaneTimes& times, Duration from) {
    copies_->NotePlayed(program, times, from);
  });
}

void SimBackend::Synchronize() { Drain(); }

StreamTimes SimBackend::TakeTimeline() {
  compression_times_ = copies_->TakeTimes();
  return queue_.TakeTimes();
}

}  // namespace spillway::sim
