// A backend that executes policies on real bytes. Kernels run on the CPU. One region of memory
// stands for the device and one for each pool outside, and copies move bytes between them.
//
// `Synchronize` runs all commands issued so far. They run in the order issued, or in a random order
// drawn from a seed that respects streams and waits. If a result depends on the order, a wait is
// missing.
//
// The backend poisons released memory, on the device or outside, once no earlier command still
// needs it. It poisons outputs, scratch and workspace before an op runs. Poison is NaN.
//
// Tensors of bfloat16 are stored as such. Kernels compute in float on copies of them, and the
// outputs are rounded to the nearest value.
//
// The backend has no clock. A command's interval is its place in the order of execution, in
// picoseconds, so that the checker sees the real order.

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

namespace spillway::cpu {

struct CpuOptions {
  Bytes memory;                        // size of the device arena
  std::array<Bytes, kMaxPools> pools;  // sizes by pool number, the host first
  uint64_t seed = 1;                   // for parameters, inputs and dropout
  std::optional<uint64_t> drain_seed;  // random order of execution; nullopt: the order issued
  std::optional<HostCompression> compression = std::nullopt;
  GivenData given = nullptr;  // real contents, tried before synthetic data
};

// Executes one op on host memory, with the contract of `RunOp`.
using OpExecutor = std::function<void(
    const Op& op, std::span<const KernelRun> runs, std::span<const std::span<std::byte>> inputs,
    std::span<const std::span<std::byte>> outputs, uint64_t seed)>;

class CpuBackend final : public Executor {
 public:
  // REQUIRES: `trace` is the one that runs, and it outlives the backend.
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
    PoolId pool = PoolId::kDevice;       // a copy's pool outside the device
    std::vector<Block> inputs, outputs;  // a copy's device range is in inputs, the other in outputs
    std::vector<Block> undefined;        // a kernel's scratch and workspace
    std::vector<Block> touched;          // device memory that the command reads or writes
    std::vector<Event> waits;
    size_t issued = 0;             // place in the order of issue, from 0
    std::optional<TensorId> kept;  // result of `CpuCopyPath::Keeps` for a copy out
  };
  // A range that was released, and the number of commands issued on each stream before its release.
  struct Released {
    Block block;                // by address
    std::vector<Block> memory;  // the memory behind the addresses
    PoolId pool = PoolId::kDevice;
    std::array<size_t, kStreamCount> before{};
  };

  // Returns the ranges of memory behind a block's addresses.
  std::vector<Block> MemoryOf(const Block& block, PoolId pool) const;
  CpuCopyPath& CopiesOf(PoolId pool) const { return *copies_[NumberOf(pool)]; }
  void Abandon(const Block& block, PoolId pool);
  Event Add(Stream stream, Command command, std::span<const Wait> waits);
  bool IsReady(const Command& command) const;
  // Returns the stream whose next command runs now. REQUIRES: not all commands have run.
  size_t NextStream();
  void Run(const Command& command);
  void RunKernel(const Command& command);
  void RunCopy(const Command& command);
  bool Touches(const Command& command, const Released& released) const;
  bool IsInUseAgain(const Released& released) const;
  // Poisons every released range that no earlier command may still need, unless a later command has
  // already used it again.
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
  std::deque<Released> released_;  // in the order of release, so `before` never falls
  uint64_t iteration_ = 0;
  std::optional<float> loss_;  // the sum over the loss ops of the latest iteration that has any
  uint64_t loss_iteration_ = 0;
  std::vector<int64_t> top1_;
};

}  // namespace spillway::cpu

#endif  // SPILLWAY_BACKEND_CPU_CPU_BACKEND_H_
