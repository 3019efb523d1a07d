#include "sim/engine/sim_backend.h"

#include <algorithm>
#include <utility>

namespace spillway {

Event SimBackend::Add(Stream stream, Command command, std::span<const Wait> waits, size_t calls) {
  // The command can start once its first call has been enqueued; the host goes on with the others.
  command.issued = host_now_ + device_.launch_overhead;
  host_now_ += device_.launch_overhead * static_cast<int64_t>(calls);
  command.first_wait = static_cast<uint32_t>(program_.waits.size());
  for (const Wait& wait : waits) {
    const uint32_t played = played_[Index(wait.event.stream)];
    if (wait.event.sequence <= played) continue;  // has happened
    program_.waits.push_back({wait.event.stream, wait.event.sequence - played});
    ++command.wait_count;
  }
  auto& commands = program_.streams[Index(stream)];
  commands.push_back(command);
  return {stream, played_[Index(stream)] + static_cast<uint32_t>(commands.size())};
}

Event SimBackend::Enqueue(const Launch& launch, std::span<const Wait> waits) {
  Command command;
  command.nominal = launch.time;
  command.traffic = launch.traffic;
  return Add(Stream::kCompute, command, waits, launch.runs.size());
}

Event SimBackend::Copy(Direction direction, const Block&, const Block&, Bytes size,
                       std::span<const Wait> waits) {
  Command command;
  command.nominal = cost_.CopyTime(direction, size);
  command.traffic = size;
  const Stream stream = direction == Direction::kToDevice ? Stream::kToDevice : Stream::kToHost;
  return Add(stream, command, waits, 1);
}

// Nothing that is played started before `drained_`: it was issued later.
void SimBackend::Drain() {
  StreamTimes times = RunSchedule(program_, links_);
  for (size_t s = 0; s < kStreamCount; ++s) {
    played_[s] += static_cast<uint32_t>(times[s].size());
    for (const Interval& interval : times[s]) drained_ = std::max(drained_, interval.end);
    if (times_[s].empty()) {
      times_[s] = std::move(times[s]);
    } else {
      times_[s].insert(times_[s].end(), times[s].begin(), times[s].end());
    }
    program_.streams[s].clear();
  }
  program_.waits.clear();
}

void SimBackend::OnAllocate(const Block& block) {
  if (charge_driver_) Charge(DriverCall::Kind::kMalloc, block.size);
}

void SimBackend::OnFree(const Block& block) {
  if (charge_driver_) Charge(DriverCall::Kind::kFree, block.size);
}

void SimBackend::OnDriverCall(const DriverCall& call) { Charge(call.kind, call.range.size); }

void SimBackend::Charge(DriverCall::Kind kind, Bytes size) {
  if (!begun()) return;
  if (kind == DriverCall::Kind::kFree || kind == DriverCall::Kind::kUnmap) {
    Drain();
    host_now_ = std::max(host_now_, drained_);
  }
  switch (kind) {
    case DriverCall::Kind::kMalloc:
      host_now_ += device_.device_malloc.At(size);
      return;
    case DriverCall::Kind::kFree:
      host_now_ += device_.device_free.At(size);
      return;
    case DriverCall::Kind::kMap:
      host_now_ += device_.page_map.At(size);
      return;
    case DriverCall::Kind::kUnmap:
      host_now_ += device_.page_unmap.At(size);
      return;
  }
}

void SimBackend::Synchronize() { Drain(); }

StreamTimes SimBackend::TakeTimeline() {
  played_ = {};
  drained_ = host_now_ = Duration();
  return std::exchange(times_, {});
}

}  // namespace spillway
