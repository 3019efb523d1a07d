#include "sim/engine/sim_copy_path.h"

#include <algorithm>
#include <utility>

namespace spillway::sim {

Event SimCopyPath::Copy(PoolId pool, Direction direction, const Block&, Bytes size,
                        std::span<const Wait> waits) {
  Command command;
  command.nominal = CopyTimeOf(cost_, device_, pool, direction, size);
  command.traffic = size;
  return queue_.Issue(StreamOf(pool, direction), command, waits, 1, device_.launch_overhead);
}

Event SimCompressedCopyPath::Copy(PoolId pool, Direction direction, const Block& host, Bytes size,
                                  std::span<const Wait> waits) {
  if (pool != PoolId::kHost) return SimCopyPath::Copy(pool, direction, host, size, waits);
  if (direction == Direction::kToDevice) {
    return stored_.contains(host.offset) ? CopyIn(host, size, waits)
                                         : SimCopyPath::Copy(pool, direction, host, size, waits);
  }
  const auto owner = owners_.find(host.offset);
  if (owner != owners_.end() && compression_.Keeps(owner->second)) {
    return CopyOut(host, size, waits);
  }
  stored_.erase(host.offset);
  return SimCopyPath::Copy(pool, direction, host, size, waits);
}

Command SimCompressedCopyPath::Work(Bytes piece, Bandwidth bandwidth) const {
  Command command;
  command.issued = queue_.now();
  command.nominal = compression_.overhead + TransferTime(piece, bandwidth);
  return command;
}

Command SimCompressedCopyPath::Piece(Direction direction, Bytes piece) const {
  queue_.Spend(device_.launch_overhead);
  Command command;
  command.issued = queue_.now();
  command.nominal = cost_.CopyTime(direction, piece);
  command.traffic = piece;
  return command;
}

// Copies each piece into a buffer that an earlier piece has left, and compresses it from there.
Event SimCompressedCopyPath::CopyOut(const Block& host, Bytes size, std::span<const Wait> waits) {
  const auto buffers = static_cast<uint32_t>(compression_.buffers);
  stored_[host.offset] = queue_.Latest(Lane::kCompress).sequence + 1;
  LaneEvent first;
  for (int64_t i = 0; i < compression_.pieces(size); ++i) {
    const Bytes piece = compression_.PieceOf(size, i);
    const uint32_t number = queue_.Latest(Lane::kCompress).sequence + 1;  // among all pieces
    Command copy = Piece(Direction::kToHost, piece);
    if (number > buffers) queue_.WaitFor({Lane::kCompress, number - buffers}, copy);
    if (i == 0) queue_.WaitFor(waits, copy);
    const LaneEvent copied = queue_.Add(Lane::kToHost, copy);
    if (i == 0) first = copied;
    Command compress = Work(piece, compression_.compress);
    queue_.WaitFor(copied, compress);
    queue_.Add(Lane::kCompress, compress);
  }
  return queue_.Join(Stream::kToHost, first);
}

// Decompresses each piece into a buffer that an earlier piece has left, and copies it from there.
Event SimCompressedCopyPath::CopyIn(const Block& host, Bytes size, std::span<const Wait> waits) {
  const auto buffers = static_cast<uint32_t>(compression_.buffers);
  const uint32_t first_stored = stored_.at(host.offset);
  LaneEvent first;
  for (int64_t i = 0; i < compression_.pieces(size); ++i) {
    const Bytes piece = compression_.PieceOf(size, i);
    const uint32_t number = queue_.Latest(Lane::kDecompress).sequence + 1;  // among all pieces
    Command decompress = Work(piece, compression_.decompress);
    if (number > buffers) queue_.WaitFor(landed_[number - buffers - 1], decompress);
    if (first_stored > 0) {
      queue_.WaitFor({Lane::kCompress, first_stored + static_cast<uint32_t>(i)}, decompress);
    }
    const LaneEvent ready = queue_.Add(Lane::kDecompress, decompress);
    Command copy = Piece(Direction::kToDevice, piece);
    queue_.WaitFor(ready, copy);
    if (i == 0) queue_.WaitFor(waits, copy);
    landed_.push_back(queue_.Add(Lane::kToDevice, copy));
    if (i == 0) first = landed_.back();
  }
  return queue_.Join(Stream::kToDevice, first);
}

void SimCompressedCopyPath::OnHostBlock(TensorId storage, const Block& host) {
  owners_[host.offset] = storage;
  stored_.erase(host.offset);
}

// Adds the delay of copies that only the host's threads kept from starting earlier.
void SimCompressedCopyPath::NotePlayed(const Program& program, const LaneTimes& times,
                                       Duration from) {
  const auto note = [&](Lane link, Lane threads, Duration& busy, Duration& waited) {
    for (const Interval& interval : times[Index(threads)]) busy += interval.end - interval.start;
    Duration idle_from = from;
    for (size_t i = 0; i < times[Index(link)].size(); ++i) {
      const Command& command = program.lanes[Index(link)][i];
      const Interval& interval = times[Index(link)][i];
      Duration ready = std::max(idle_from, command.issued);
      bool waits = false;
      for (uint32_t w = 0; w < command.wait_count; ++w) {
        const LaneEvent event = program.waits[command.first_wait + w];
        waits |= event.lane == threads;
        if (event.lane == threads) continue;
        ready = std::max(ready, times[Index(event.lane)][event.sequence - 1].end);
      }
      if (waits && interval.start > ready) waited += interval.start - ready;
      idle_from = interval.end;
    }
  };
  note(Lane::kToHost, Lane::kCompress, times_.compress, times_.staging);
  note(Lane::kToDevice, Lane::kDecompress, times_.decompress, times_.contents);
}

CompressionTimes SimCompressedCopyPath::TakeTimes() {
  for (auto& [offset, first] : stored_) first = 0;  // every piece has been compressed
  landed_.clear();
  return std::exchange(times_, {});
}

}  // namespace spillway::sim
