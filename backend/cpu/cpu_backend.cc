#include "backend/cpu/cpu_backend.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "backend/common/top1.h"
#include "backend/cpu/kernels.h"
#include "backend/cpu/widened_operands.h"
#include "traces/base/error.h"
#include "traces/ops/op_table.h"

namespace spillway::cpu {
namespace {

bool AnyOverlap(const std::vector<Block>& some, const std::vector<Block>& others) {
  return std::any_of(some.begin(), some.end(), [&](const Block& a) {
    return std::any_of(others.begin(), others.end(), [&](const Block& b) { return Overlap(a, b); });
  });
}

// At most this much of a workspace is poisoned, so that pages of a large workspace are allocated
// only where it is used.
constexpr Bytes kPoisoned = Bytes::MiB(16);

// Returns one copy path for each pool. Only the host's can keep contents compressed.
std::array<std::unique_ptr<CpuCopyPath>, kMaxPools> MakeCopyPaths(const CpuOptions& options) {
  std::array<std::unique_ptr<CpuCopyPath>, kMaxPools> paths;
  for (size_t i = 0; i < kMaxPools; ++i) {
    if (options.compression && OutsidePool(i) == PoolId::kHost) {
      paths[i] = std::make_unique<CpuCompressedCopyPath>(options.pools[i], *options.compression);
    } else {
      paths[i] = std::make_unique<CpuCopyPath>(options.pools[i]);
    }
  }
  return paths;
}

}  // namespace

CpuBackend::CpuBackend(const Trace& trace, const CpuOptions& options, OpExecutor run_op)
    : trace_(trace),
      options_(options),
      synthetic_(trace, options.seed),
      run_op_(std::move(run_op)),
      device_(options.memory),
      copies_(MakeCopyPaths(options)),
      random_(options.drain_seed.value_or(0)) {}

// --- Issue --------------------------------------------------------------------------------------

Event CpuBackend::Add(Stream stream, Command command, std::span<const Wait> waits) {
  for (const Wait& wait : waits) command.waits.push_back(wait.event);
  command.issued = issued_++;
  auto& commands = streams_[Index(stream)];
  commands.push_back(std::move(command));
  return {stream, static_cast<uint32_t>(commands.size())};
}

Event CpuBackend::Enqueue(const Launch& launch, std::span<const Wait> waits) {
  Command command;
  command.op = launch.op;
  command.recompute = launch.recompute;
  command.runs.assign(launch.runs.begin(), launch.runs.end());
  command.inputs.assign(launch.inputs.begin(), launch.inputs.end());
  command.outputs.assign(launch.outputs.begin(), launch.outputs.end());
  const auto touch = [&](const Block& block) {
    device_.At(block);  // throws now rather than when the command runs
    pages_.ForEach(block, [&](const Block& memory) { command.touched.push_back(memory); });
  };
  for (const auto blocks : {launch.inputs, launch.outputs, launch.scratch}) {
    for (const Block& block : blocks) touch(block);
  }
  command.undefined.assign(launch.scratch.begin(), launch.scratch.end());
  command.undefined.push_back(
      {launch.workspace.offset, std::min(launch.workspace.size, kPoisoned)});
  touch(launch.workspace);
  return Add(StreamOfLane(launch.lane), std::move(command), waits);
}

Event CpuBackend::Copy(PoolId pool, Direction direction, const Block& device, const Block& outside,
                       Bytes size, std::span<const Wait> waits) {
  const bool to_host = direction == Direction::kToHost;
  Command command;
  command.kind = to_host ? Kind::kToHost : Kind::kToDevice;
  command.inputs = {{device.offset, size}};
  command.pool = pool;
  command.outputs = {{outside.offset, size}};
  command.touched = MemoryOf(command.inputs[0], PoolId::kDevice);
  device_.At(command.inputs[0]);
  CopiesOf(pool).Check(command.outputs[0]);
  if (to_host) command.kept = CopiesOf(pool).Keeps(outside);
  return Add(StreamOf(pool, direction), std::move(command), waits);
}

std::vector<Block> CpuBackend::MemoryOf(const Block& block, PoolId pool) const {
  if (pool != PoolId::kDevice) return {block};
  std::vector<Block> memory;
  pages_.ForEach(block, [&](const Block& range) { memory.push_back(range); });
  return memory;
}

void CpuBackend::OnDriverCall(const DriverCall& call) {
  if (!call.physical) return;  // every address of the region already has memory
  device_.Map(call.range, *call.physical);
  pages_.Note(call);
}

void CpuBackend::Abandon(const Block& block, PoolId pool) {
  Released released{block, MemoryOf(block, pool)};
  released.pool = pool;
  for (size_t s = 0; s < kStreamCount; ++s) released.before[s] = streams_[s].size();
  released_.push_back(released);
}

void CpuBackend::OnArrive(TensorId id, const Block& block, PoolId pool) {
  const std::vector<Block> arrived = MemoryOf(block, pool);
  std::erase_if(released_, [&](const Released& released) {
    return released.pool == pool && AnyOverlap(released.memory, arrived);  // in use again
  });
  const Block contents{block.offset, trace_.tensor(id).size};
  const std::span<std::byte> bytes =
      pool == PoolId::kDevice ? device_.At(contents) : CopiesOf(pool).Overwrite(contents);
  if (options_.given && options_.given(id, bytes)) return;
  Fill(synthetic_.Of(id, iteration_), bytes, FirstElement(trace_.tensor(id)));
}

void CpuBackend::Read(const Block& block, PoolId pool, std::span<std::byte> bytes) const {
  if (pool != PoolId::kDevice) return CopiesOf(pool).Read(block, bytes);
  const auto size = Bytes(static_cast<int64_t>(bytes.size()));
  std::ranges::copy(device_.At({block.offset, size}), bytes.begin());
}

// --- Execution ----------------------------------------------------------------------------------

bool CpuBackend::IsReady(const Command& command) const {
  return std::all_of(command.waits.begin(), command.waits.end(), [&](const Event& event) {
    return done_[Index(event.stream)] >= event.sequence;
  });
}

size_t CpuBackend::NextStream() {
  std::array<size_t, kStreamCount> ready{};
  size_t count = 0;
  for (size_t s = 0; s < kStreamCount; ++s) {
    if (done_[s] < streams_[s].size() && IsReady(streams_[s][done_[s]])) ready[count++] = s;
  }
  SPILLWAY_CHECK(count > 0);  // fails if waits form a cycle
  if (options_.drain_seed) return ready[random_() % count];
  return *std::min_element(ready.begin(), ready.begin() + static_cast<std::ptrdiff_t>(count),
                           [&](size_t a, size_t b) {
                             return streams_[a][done_[a]].issued < streams_[b][done_[b]].issued;
                           });
}

void CpuBackend::Synchronize() {
  for (size_t s = 0; s < kStreamCount; ++s) times_[s].resize(streams_[s].size());
  for (size_t left = issued_; left > 0; --left) {
    PoisonReleased();
    const size_t s = NextStream();
    times_[s][done_[s]] = {Duration(), Duration::Picoseconds(ran_),
                           Duration::Picoseconds(ran_ + 1)};
    Run(streams_[s][done_[s]]);
    ++ran_;
    ++done_[s];
  }
  PoisonReleased();
}

void CpuBackend::PoisonReleased() {
  const auto may_be_needed = [&](const Released& released) {
    return !std::ranges::equal(done_, released.before, std::ranges::greater_equal());
  };
  for (; !released_.empty() && !may_be_needed(released_.front()); released_.pop_front()) {
    const Released& released = released_.front();
    if (IsInUseAgain(released)) continue;
    if (released.pool == PoolId::kDevice) {
      Poison(device_.At(released.block));
    } else {
      CopiesOf(released.pool).Abandon(released.block);
    }
  }
}

bool CpuBackend::IsInUseAgain(const Released& released) const {
  for (size_t s = 0; s < kStreamCount; ++s) {
    for (size_t i = released.before[s]; i < done_[s]; ++i) {
      if (Touches(streams_[s][i], released)) return true;
    }
  }
  return false;
}

bool CpuBackend::Touches(const Command& command, const Released& released) const {
  if (released.pool == PoolId::kDevice) return AnyOverlap(command.touched, released.memory);
  return command.pool == released.pool && Overlap(command.outputs[0], released.block);
}

void CpuBackend::Run(const Command& command) {
  if (command.kind == Kind::kKernel) return RunKernel(command);
  RunCopy(command);
}

void CpuBackend::RunCopy(const Command& command) {
  const std::span<std::byte> device = device_.At(command.inputs[0]);
  if (command.kind == Kind::kToHost) {
    CopiesOf(command.pool).CopyOut(command.kept, device, command.outputs[0]);
  } else {
    CopiesOf(command.pool).CopyIn(command.outputs[0], device);
  }
}

void CpuBackend::RunKernel(const Command& command) {
  const Op& op = trace_.op(command.op);
  std::vector<std::span<std::byte>> inputs, outputs;
  for (const Block& block : command.inputs) inputs.push_back(device_.At(block));
  for (const Block& block : command.outputs) {
    const bool in_place = std::any_of(command.inputs.begin(), command.inputs.end(),
                                      [&](const Block& input) { return Overlap(input, block); });
    if (!in_place) Poison(device_.At(block));
    outputs.push_back(device_.At(block));
  }
  for (const Block& block : command.undefined) Poison(device_.At(block));
  const std::vector<std::span<std::byte>> stored = outputs;
  const auto is_short = [&](TensorId id) {
    return !op.recorded && trace_.tensor(id).dtype == DataType::kBfloat16;
  };
  WidenedOperands widened;
  for (size_t i = 0; i < inputs.size(); ++i) {
    if (is_short(op.inputs[i])) inputs[i] = widened.Of(inputs[i]);
  }
  for (size_t i = 0; i < outputs.size(); ++i) {
    if (is_short(op.outputs[i])) outputs[i] = widened.Of(outputs[i]);
  }
  run_op_(op, command.runs, inputs, outputs, options_.seed);
  for (size_t i = 0; i < outputs.size(); ++i) {
    if (is_short(op.outputs[i])) widened.Store(stored[i]);
  }
  const std::optional<size_t> loss = OutputIndex(op, Role::kLoss);
  if (loss && !command.recompute) {
    if (!loss_ || loss_iteration_ != iteration_) {
      loss_ = 0;
      top1_.clear();
      loss_iteration_ = iteration_;
    }
    float share = 0;
    std::memcpy(&share, outputs[*loss].data(), sizeof(share));
    *loss_ += share;
    const auto* y =
        reinterpret_cast<const float*>(outputs[OutputIndex(op, Role::kY).value()].data());
    const int64_t classes = op.IntAttribute("elements");
    const std::vector<int64_t> top1 =
        Top1({y, static_cast<size_t>(op.batch * PositionsOf(op) * classes)}, classes);
    top1_.insert(top1_.end(), top1.begin(), top1.end());
  }
}

StreamTimes CpuBackend::TakeTimeline() {
  if (!streams_[Index(Stream::kCompute)].empty()) ++iteration_;  // planning may issue copies only
  for (auto& commands : streams_) commands.clear();
  done_ = {};
  issued_ = 0;
  ran_ = 0;
  released_.clear();
  return std::exchange(times_, {});
}

}  // namespace spillway::cpu
