#include "sim/cost/roofline.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <numeric>
#include <optional>

#include "sim/cost/kernel_time.h"
#include "traces/base/error.h"
#include "traces/ops/op_table.h"

namespace spillway::sim {
namespace {

// The first major version of cuDNN with the kernels that kernel_time.h describes, and the first one
// with the workspaces of `ConvWorkspace9`.
constexpr int kFittedTimes = 5;
constexpr int kNewWorkspaces = 8;

// The time to start a kernel on the device, in addition to the host's enqueue.
constexpr Duration kStartUp = Duration::Microseconds(3);

// Algorithms by slot, as named by cuDNN. A device offers the algorithms for which it lists an
// efficiency.
constexpr std::array<std::string_view, 8> kForward{
    "implicit_gemm", "implicit_precomp_gemm", "gemm", "direct", "fft", "fft_tiling",
    "winograd",      "winograd_nonfused"};
constexpr std::array<std::string_view, 6> kBackwardData{
    "algo_0", "algo_1", "fft", "fft_tiling", "winograd", "winograd_nonfused"};
constexpr std::array<std::string_view, 6> kBackwardFilter{
    "algo_0", "algo_1", "algo_3", "fft", "fft_tiling", "winograd_nonfused"};

std::span<const std::string_view> AlgorithmsOf(std::string_view slot) {
  if (slot == "bwd_data") return kBackwardData;
  if (slot == "bwd_filter") return kBackwardFilter;
  return kForward;
}

// cuDNN's atomics-based algorithms give different bits from run to run.
bool IsDeterministic(std::string_view slot, std::string_view algorithm) {
  if (slot == "bwd_data") return algorithm != "algo_0";
  if (slot == "bwd_filter") return algorithm != "algo_0" && algorithm != "algo_3";
  return true;
}

std::string EfficiencyKey(const Slot& slot, const std::string& algorithm) {
  return slot.name + "." + algorithm;
}

}  // namespace

std::vector<int64_t> RooflineCostModel::Batches(const Op& op, size_t slot) const {
  SPILLWAY_CHECK(slot < op.slots.size());
  std::vector<int64_t> batches(static_cast<size_t>(op.batch));
  std::iota(batches.begin(), batches.end(), 1);
  return batches;
}

std::span<const Kernel> RooflineCostModel::Kernels(const Op& op, size_t slot, int64_t batch) const {
  SPILLWAY_CHECK(slot < op.slots.size() && batch >= 1 && batch <= op.batch);
  const Slot& asked = op.slots[slot];
  const std::lock_guard lock(mutex_);
  Key key(asked.signature, asked.flops, asked.traffic, asked.arithmetic, op.batch, batch);
  const auto found = known_.find(key);
  if (found != known_.end()) return found->second;
  // `Candidates` may throw; then nothing is stored, and the next call throws again.
  return known_.emplace(std::move(key), Candidates(op, asked, batch)).first->second;
}

std::vector<Kernel> RooflineCostModel::Candidates(const Op& op, const Slot& slot,
                                                  int64_t batch) const {
  std::vector<Kernel> kernels;
  if (!RowOf(op.type).algorithms) {
    kernels.push_back({"default", TimeOf(op, slot, batch, "default", Bytes(0)), Bytes(0),
                       RowOf(op.type).deterministic});
    return kernels;
  }
  for (const std::string_view name : AlgorithmsOf(slot.name)) {
    const std::string algorithm(name);
    if (!device_.efficiency.contains(EfficiencyKey(slot, algorithm))) continue;
    const auto workspace = library_ >= kNewWorkspaces
                               ? ConvWorkspace9(op, slot.name, algorithm, batch)
                               : ConvWorkspace(op, slot.name, algorithm, batch);
    if (!workspace) continue;
    kernels.push_back({algorithm, TimeOf(op, slot, batch, algorithm, *workspace), *workspace,
                       IsDeterministic(slot.name, algorithm)});
  }
  if (kernels.empty()) {
    throw InputError(
        fmt::format("device '{}' lists no efficiency for any convolution algorithm that "
                    "applies to '{}'",
                    device_.name, slot.signature));
  }
  std::sort(kernels.begin(), kernels.end(), [](const Kernel& a, const Kernel& b) {
    return std::tie(a.time, a.workspace, a.algorithm) < std::tie(b.time, b.workspace, b.algorithm);
  });
  return kernels;
}

Duration RooflineCostModel::TimeOf(const Op& op, const Slot& slot, int64_t batch,
                                   const std::string& algorithm, Bytes workspace) const {
  // If operands share their storage, there is no work and no kernel is launched.
  if (slot.flops == 0 && slot.traffic == Bytes(0)) return Duration::Picoseconds(1);
  const bool convolution = RowOf(op.type).algorithms;
  const auto found =
      device_.efficiency.find(convolution ? EfficiencyKey(slot, algorithm) : algorithm);
  const double efficiency = found == device_.efficiency.end() ? 1.0 : found->second;
  if (library_ < kFittedTimes) return DirectTime(op, slot, batch, efficiency, workspace);
  if (!convolution) return PlainTime(device_, op, slot, batch);
  return ConvTime(device_, op, slot, algorithm, batch, workspace, efficiency);
}

Duration RooflineCostModel::DirectTime(const Op& op, const Slot& slot, int64_t batch,
                                       double efficiency, Bytes workspace) const {
  const double share = static_cast<double>(batch) / static_cast<double>(op.batch);
  const double rate = static_cast<double>(MatrixRate(device_, slot.arithmetic)) * efficiency;
  const double arithmetic = static_cast<double>(slot.flops) * share / rate;
  // A workspace is written once and read once.
  const double bytes = static_cast<double>(slot.traffic.count()) * share +
                       2 * static_cast<double>(workspace.count());
  const double memory = bytes / static_cast<double>(device_.dram.bytes_per_second);
  return TimeOfSeconds(std::max(arithmetic, memory)) + kStartUp;
}

Duration RooflineCostModel::CopyTime(Direction direction, Bytes size) const {
  const Link& link = direction == Direction::kToDevice ? device_.h2d : device_.d2h;
  return link.latency + TransferTime(size, link.bandwidth);
}

std::string RooflineCostModel::Provenance() const {
  return fmt::format("analytic (roofline of {})", device_.description);
}

}  // namespace spillway::sim
