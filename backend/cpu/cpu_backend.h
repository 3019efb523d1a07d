// A backend that executes policies on real bytes: kernels on the CPU, copies between the region
// that stands for the device and one for each pool outside.
//
// Commands are collected and run by `Synchronize`, in the order issued or in any other order that
// streams and waits allow, drawn from a seed: a result that depends on the order is a lost wait.
// Memory that is given back, on the device or outside, is poisoned once nothing that was issued
// before still needs it; outputs, scratch and workspace are poisoned before an op runs. Poison is
// NaN. There is no clock: a command's interval is its place in the order of execution, in
// picoseconds, so that the checker sees what really happened.

#ifndef SPILLWAY_BACKEND_CPU_CPU_BACKEND_H_
#define SPILLWAY_BACKEND_CPU_CPU_BACKEND_H_

#include <array>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <random>
#include <vector>

#include "backend/common/synthetic_data.h"
#include "backend/cpu/copy_path.h"
#include "backend/cpu/kernels.h"
#include "backend/cpu/region.h"
#include "sim/core/compression.h"
#include "sim/core/executor.h"
#include "sim/core/page_table.h"
#include "traces/trace.h"

namespace spillway {

struct CpuOptions {
  Bytes memory;                        // of the device arena
  std::array<Bytes, kMaxPools> pools;  // outside the device, by number; the host's first
  uint64_t seed = 1;                   // of parameters, inputs and dropout
  std::optional<uint64_t> drain_seed;  // draws the order of execution; as issued if not given
  std::optional<HostCompression> compression = std::nullopt;
  GivenData given = nullptr;  // instead of synthetic data
};

// Executes one op on host memory, as `RunOp` does.
using OpExecutor = std::function<void(
    const Op& op, std::span<const KernelRun> runs, std::span<const std::span<std::byte>> inputs,
    std::span<const std::span<std::byte>> outputs, uint64_t seed)>;

class CpuBackend final : public Executor {
 public:
  // The trace is the one that runs, and outlives the backend.
  CpuBackend(const Trace& trace, const CpuOptions& options, OpExecutor run_op = RunOp<float>);

  std::string_view Name() const override { return "cpu"; }
  Event Enqueue(const Launch& launch, std::span<const Wait> waits) override;
  Event Copy(PoolId pool, Direction direction, const Block& device, const Block& outside,
             Bytes size, std::span<const Wait> waits) override;
  void Synchronize() override;
  StreamTimes TakeTimeline() override;
  void OnFree(const Block& block) override { Abandon(block, PoolId::kDevice); }
  void OnDriverCall(const DriverCall& call) override;
  void OnAbandon(const Block& block, PoolId pool) override { Abandon(block, pool); }
  void OnOutsideBlock(TensorId tensor, const Block& block, PoolId pool) override {
    CopiesOf(pool).OnHostBlock(tensor, block);
  }
  void OnArrive(TensorId tensor, const Block& block, PoolId pool) override;

  std::vector<StoredContents> stored() const override { return copies_.front()->stored(); }
  Bytes stored_peak() const override { return copies_.front()->stored_peak(); }
  std::optional<float> loss() const override { return loss_; }
  std::vector<int64_t> top1() const override { return top1_; }
  void Read(const Block& block, PoolId pool, std::span<std::byte> bytes) const override;

 private:
  enum class Kind : uint8_t { kKernel, kToDevice, kToHost };

  struct Command {
    Kind kind = Kind::kKernel;
    OpId op{};
    bool recompute = false;
    std::vector<KernelRun> runs;
    PoolId pool = PoolId::kDevice;       // of a copy, the one outside
    std::vector<Block> inputs, outputs;  // of a kernel; of a copy, the device and the outer range
    std::vector<Block> undefined;        // scratch and workspace of a kernel
    std::vector<Block> touched;          // device memory that it reads or writes
    std::vector<Event> waits;
    size_t issued = 0;             // place in the order of issue
    std::optional<TensorId> kept;  // of a copy out: as `CpuCopyPath::Keeps`
  };
  // A range that was given up, and how many commands of each stream had been issued before.
  struct Released {
    Block block;                // as addressed
    std::vector<Block> memory;  // where it lies
    PoolId pool = PoolId::kDevice;
    std::array<size_t, kStreamCount> before{};
  };

  // Where a block lies, behind its addresses.
  std::vector<Block> MemoryOf(const Block& block, PoolId pool) const;
  CpuCopyPath& CopiesOf(PoolId pool) const { return *copies_[NumberOf(pool)]; }
  void Abandon(const Block& block, PoolId pool);
  Event Add(Stream stream, Command command, std::span<const Wait> waits);
  bool IsReady(const Command& command) const;
  // The stream whose next command runs now. REQUIRES: not all commands have run.
  size_t NextStream();
  void Run(const Command& command);
  void RunKernel(const Command& command);
  void RunCopy(const Command& command);
  bool Touches(const Command& command, const Released& released) const;
  bool IsInUseAgain(const Released& released) const;
  // Poisons what was given back and that no command may still need or has begun to use again.
  void PoisonReleased();

  const Trace& trace_;
  const CpuOptions options_;
  const SyntheticSource synthetic_;
  const OpExecutor run_op_;
  Region device_;
  PageTable pages_;
  const std::array<std::unique_ptr<CpuCopyPath>, kMaxPools> copies_;  // by pool
  std::mt19937_64 random_;

  std::array<std::vector<Command>, kStreamCount> streams_;
  std::array<size_t, kStreamCount> done_{};
  StreamTimes times_;
  size_t issued_ = 0;
  int64_t ran_ = 0;
  std::deque<Released> released_;  // as they were given up, so that `before` never falls
  uint64_t iteration_ = 0;
  std::optional<float> loss_;
  std::vector<int64_t> top1_;
};

}  // namespace spillway

#endif  // SPILLWAY_BACKEND_CPU_CPU_BACKEND_H_
