#include "sim/engine/sim_backend.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "traces/base/error.h"
#include "traces/ops/table.h"

namespace spillway {
namespace {

// Commands that come after still end within what a `Duration` holds.
constexpr Duration kLongestOnHost = Duration::Picoseconds(Duration::Max().picoseconds() / 2);

}  // namespace

void SimBackend::KeepClose() {
  const auto ahead = static_cast<uint32_t>(device_.launch_ahead);
  const uint32_t op = played_[Index(Stream::kCompute)] +
                      static_cast<uint32_t>(program_.streams[Index(Stream::kCompute)].size());
  if (ahead == 0 || op < 2 * ahead || op % ahead != 0) return;
  gate_ = {Stream::kCompute, op - 2 * ahead + 1};
  gated_.fill(true);
  gated_[Index(Stream::kCompute)] = false;
}

void SimBackend::AddGate(Stream lane, Command& command) {
  if (!std::exchange(gated_[Index(lane)], false)) return;
  const uint32_t played = played_[Index(gate_.stream)];
  if (gate_.sequence <= played) return;
  program_.waits.push_back({gate_.stream, gate_.sequence - played});
  ++command.wait_count;
}

void SimBackend::Spend(Duration time) {
  if (time > kLongestOnHost - host_now_) {
    throw InputError(
        fmt::format("device '{}': issuing the commands of an iteration takes more than {}",
                    device_.name, FormatDuration(kLongestOnHost)));
  }
  host_now_ += time;
}

Event SimBackend::Add(Stream stream, Command command, std::span<const Wait> waits, size_t calls,
                      Duration time) {
  // The command can start once its first call has been enqueued; the host goes on with the others.
  command.issued = host_now_ + time;
  Spend(time * static_cast<int64_t>(calls));
  command.first_wait = static_cast<uint32_t>(program_.waits.size());
  for (const Wait& wait : waits) {
    const Event event = LaneEvent(wait.event);
    const uint32_t played = played_[Index(event.stream)];
    if (event.sequence <= played) continue;  // has happened
    program_.waits.push_back({event.stream, event.sequence - played});
    ++command.wait_count;
  }
  AddGate(stream, command);
  auto& commands = program_.streams[Index(stream)];
  commands.push_back(command);
  const uint32_t sequence = played_[Index(stream)] + static_cast<uint32_t>(commands.size());
  if (compression_ == nullptr) return {stream, sequence};
  auto& spans = spans_[Index(stream)];
  spans.push_back({sequence, sequence});
  return {stream, static_cast<uint32_t>(spans.size())};
}

Event SimBackend::AddToLane(Stream lane, Command command, std::span<const Event> waits) {
  command.issued = host_now_;
  command.first_wait = static_cast<uint32_t>(program_.waits.size());
  for (const Event& event : waits) {
    const uint32_t played = played_[Index(event.stream)];
    if (event.sequence <= played) continue;  // has happened, or no event
    program_.waits.push_back({event.stream, event.sequence - played});
    ++command.wait_count;
  }
  AddGate(lane, command);
  auto& commands = program_.streams[Index(lane)];
  commands.push_back(command);
  return {lane, played_[Index(lane)] + static_cast<uint32_t>(commands.size())};
}

Event SimBackend::LaneEvent(const Event& event) const {
  if (compression_ == nullptr) return event;
  return {event.stream, spans_[Index(event.stream)][event.sequence - 1].last};
}

Event SimBackend::Enqueue(const Launch& launch, std::span<const Wait> waits) {
  KeepClose();
  Command command;
  command.nominal = launch.time;
  command.traffic = launch.traffic;
  const size_t calls = launch.runs.size();
  // Blocks of their own lie elsewhere in each iteration, so no graph of an earlier one serves.
  if (!charge_driver_ || RowOf(launch.type).library != Library::kConvolution || calls == 0) {
    return Add(Stream::kCompute, command, waits, calls, device_.launch_overhead);
  }
  const Duration time = device_.library_call.value_or(device_.launch_overhead);
  // A GPU that has been drained waits for each of these calls, for the last one too.
  const auto count = static_cast<int64_t>(calls);
  command.least_end =
      host_now_ + time * count + Duration::Picoseconds(launch.time.picoseconds() / count);
  return Add(Stream::kCompute, command, waits, calls, time);
}

Event SimBackend::Copy(Direction direction, const Block&, const Block& host, Bytes size,
                       std::span<const Wait> waits) {
  if (compression_ != nullptr) {
    if (direction == Direction::kToHost) {
      const auto owner = owners_.find(host.offset);
      const bool keeps = owner != owners_.end() && compression_->Keeps(owner->second);
      if (!keeps) compressed_.erase(host.offset);
      if (keeps) return CopyCompressed(direction, host, size, waits);
    } else if (compressed_.contains(host.offset)) {
      return CopyCompressed(direction, host, size, waits);
    }
  }
  Command command;
  command.nominal = cost_.CopyTime(direction, size);
  command.traffic = size;
  const Stream stream = direction == Direction::kToDevice ? Stream::kToDevice : Stream::kToHost;
  return Add(stream, command, waits, 1, device_.launch_overhead);
}

Event SimBackend::CopyCompressed(Direction direction, const Block& host, Bytes size,
                                 std::span<const Wait> waits) {
  const bool to_host = direction == Direction::kToHost;
  const Stream stream = to_host ? Stream::kToHost : Stream::kToDevice;
  const Stream lane = to_host ? kCompressLane : kDecompressLane;
  const auto buffers = static_cast<uint32_t>(compression_->buffers);
  const auto next = [&](Stream s) {
    return played_[Index(s)] + static_cast<uint32_t>(program_.streams[Index(s)].size()) + 1;
  };
  const auto work = [&](Bytes piece) {
    Command command;
    command.nominal =
        compression_->overhead +
        TransferTime(piece, to_host ? compression_->compress : compression_->decompress);
    return command;
  };
  const uint32_t first_stored = to_host ? next(lane) : compressed_.at(host.offset);
  if (to_host) compressed_[host.offset] = first_stored;

  Span span;
  for (int64_t i = 0; i < compression_->pieces(size); ++i) {
    const Bytes piece = compression_->PieceOf(size, i);
    const uint32_t number = next(lane);  // of all pieces of this direction
    std::vector<Event> after;
    if (to_host) {
      if (number > buffers) after.push_back({lane, number - buffers});
    } else {
      // Decompressed into a buffer that an earlier piece has left.
      std::vector<Event> ready;
      if (number > buffers) ready.push_back({stream, landed_[number - buffers - 1]});
      if (first_stored > 0) {
        ready.push_back({kCompressLane, first_stored + static_cast<uint32_t>(i)});
      }
      after.push_back(AddToLane(lane, work(piece), ready));
    }
    Spend(device_.launch_overhead);
    if (i == 0) {
      for (const Wait& wait : waits) after.push_back(LaneEvent(wait.event));
    }
    Command copy;
    copy.nominal = cost_.CopyTime(direction, piece);
    copy.traffic = piece;
    const Event copied = AddToLane(stream, copy, after);
    if (i == 0) span.first = copied.sequence;
    span.last = copied.sequence;
    if (to_host) {
      AddToLane(lane, work(piece), std::span(&copied, 1));
    } else {
      landed_.push_back(copied.sequence);
    }
  }
  auto& spans = spans_[Index(stream)];
  spans.push_back(span);
  return {stream, static_cast<uint32_t>(spans.size())};
}

void SimBackend::OnHostBlock(TensorId tensor, const Block& block) {
  if (compression_ == nullptr) return;
  owners_[block.offset] = tensor;
  compressed_.erase(block.offset);
}

// Copies that start later than everything but the host's threads would have let them.
void SimBackend::CountCompression(const LaneTimes& times) {
  for (const Interval& interval : times[Index(kCompressLane)]) {
    running_.compress += interval.end - interval.start;
  }
  for (const Interval& interval : times[Index(kDecompressLane)]) {
    running_.decompress += interval.end - interval.start;
  }
  for (const Stream stream : {Stream::kToHost, Stream::kToDevice}) {
    const Stream lane = stream == Stream::kToHost ? kCompressLane : kDecompressLane;
    Duration idle_from = drained_;
    for (size_t i = 0; i < times[Index(stream)].size(); ++i) {
      const Command& command = program_.streams[Index(stream)][i];
      const Interval& interval = times[Index(stream)][i];
      Duration ready = std::max(idle_from, command.issued);
      bool waits = false;
      for (uint32_t w = 0; w < command.wait_count; ++w) {
        const Event event = program_.waits[command.first_wait + w];
        waits |= event.stream == lane;
        if (event.stream == lane) continue;
        ready = std::max(ready, times[Index(event.stream)][event.sequence - 1].end);
      }
      if (waits && interval.start > ready) {
        (stream == Stream::kToHost ? running_.staging : running_.contents) +=
            interval.start - ready;
      }
      idle_from = interval.end;
    }
  }
}

// Nothing that is played started before `drained_`: it was issued later.
void SimBackend::Drain() {
  LaneTimes times = RunSchedule(program_, links_);
  if (compression_ != nullptr) CountCompression(times);
  for (size_t s = 0; s < kLaneCount; ++s) {
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
  if (charge_driver_) Charge({DriverCall::Kind::kMalloc, block, std::nullopt});
}

void SimBackend::OnFree(const Block& block) {
  if (charge_driver_) Charge({DriverCall::Kind::kFree, block, std::nullopt});
}

void SimBackend::OnDriverCall(const DriverCall& call) { Charge(call); }

void SimBackend::Charge(const DriverCall& call) {
  if (!begun()) return;
  const Bytes size = call.range.size;
  if (call.kind == DriverCall::Kind::kFree || call.kind == DriverCall::Kind::kUnmap) {
    Drain();
    host_now_ = std::max(host_now_, drained_);
  }
  switch (call.kind) {
    case DriverCall::Kind::kMalloc:
      Spend(device_.device_malloc.At(size));
      return;
    case DriverCall::Kind::kFree:
      Spend(device_.device_free.At(size));
      return;
    case DriverCall::Kind::kMap:
      // Memory that has a name is mapped many times and new but once.
      Spend((call.physical ? device_.page_map : device_.page_map_new).At(size));
      return;
    case DriverCall::Kind::kUnmap:
      Spend(device_.page_unmap.At(size));
      return;
  }
}

void SimBackend::Synchronize() { Drain(); }

StreamTimes SimBackend::TakeTimeline() {
  played_ = {};
  gated_ = {};
  drained_ = host_now_ = Duration();
  StreamTimes streams;
  if (compression_ == nullptr) {
    for (size_t s = 0; s < kStreamCount; ++s) streams[s] = std::exchange(times_[s], {});
    return streams;
  }
  const LaneTimes lanes = std::exchange(times_, {});
  for (size_t s = 0; s < kStreamCount; ++s) {
    for (const Span& span : std::exchange(spans_[s], {})) {
      const Interval& first = lanes[s][span.first - 1];
      streams[s].push_back({first.issued, first.start, lanes[s][span.last - 1].end});
    }
  }
  for (auto& [offset, first] : compressed_) first = 0;  // all of it has been compressed
  landed_.clear();
  compression_times_ = std::exchange(running_, {});
  return streams;
}

}  // namespace spillway
