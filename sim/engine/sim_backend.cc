#include "sim/engine/sim_backend.h"

#include <utility>

namespace spillway {

Event SimBackend::Add(Stream stream, Command command, std::span<const Wait> waits, size_t calls) {
  // The command can start once its first call has been enqueued; the host goes on with the others.
  command.issued = host_now_ + device_.launch_overhead;
  host_now_ += device_.launch_overhead * static_cast<int64_t>(calls);
  command.first_wait = static_cast<uint32_t>(program_.waits.size());
  command.wait_count = static_cast<uint32_t>(waits.size());
  for (const Wait& wait : waits) program_.waits.push_back(wait.event);
  auto& commands = program_.streams[Index(stream)];
  commands.push_back(command);
  return {stream, static_cast<uint32_t>(commands.size())};
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

void SimBackend::Synchronize() { times_ = RunSchedule(program_, links_); }

StreamTimes SimBackend::TakeTimeline() {
  for (auto& commands : program_.streams) commands.clear();
  program_.waits.clear();
  host_now_ = Duration();
  return std::exchange(times_, {});
}

}  // namespace spillway
