#include "sim/cost/roofline.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <optional>

#include "sim/core/error.h"

namespace spillway {
namespace {

// What starting a kernel costs on the device itself, apart from the host's enqueue.
constexpr Duration kStartUp = Duration::Microseconds(3);

// Algorithms by slot, as cuDNN names them. A device offers those whose efficiency it lists.
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

struct ConvShape {
  explicit ConvShape(const Op& op)
      : c(op.IntAttribute("in_channels") / op.IntAttribute("groups")),
        k(op.IntAttribute("out_channels") / op.IntAttribute("groups")),
        h(op.IntAttribute("in_height")),
        w(op.IntAttribute("in_width")),
        out_h(op.IntAttribute("out_height")),
        out_w(op.IntAttribute("out_width")),
        r(op.IntAttribute("kernel_h")),
        s(op.IntAttribute("kernel_w")),
        unit_stride(op.IntAttribute("stride_h") == 1 && op.IntAttribute("stride_w") == 1) {}

  int64_t c, k, h, w, out_h, out_w, r, s;
  bool unit_stride;
};

int64_t CeilDiv(int64_t a, int64_t b) { return (a + b - 1) / b; }

// Bytes of one real plane of n x n in the frequency domain.
int64_t SpectrumBytes(int64_t n) { return n * (n / 2 + 1) * 8; }

std::optional<Bytes> FftBytes(const ConvShape& conv, std::string_view slot, int64_t batch) {
  const auto n = static_cast<int64_t>(
      std::bit_ceil(static_cast<uint64_t>(std::max(conv.h + conv.r, conv.w + conv.s) - 1)));
  if (!conv.unit_stride || n > 256) return std::nullopt;
  const int64_t p = SpectrumBytes(n);
  if (slot == "bwd_data") {
    return Bytes(2 * (conv.k * batch + conv.c * conv.k) * p +
                 4 * conv.c * conv.k * conv.r * conv.s);
  }
  return Bytes((conv.c * batch + conv.k * batch + conv.c * conv.k) * p);
}

std::optional<Bytes> FftTilingBytes(const ConvShape& conv) {
  constexpr int64_t kTile = 32;
  constexpr int64_t kTilesInFlight = 64;
  if (!conv.unit_stride || conv.r > kTile || conv.s > kTile) return std::nullopt;
  return Bytes(((conv.c + conv.k) * kTilesInFlight + conv.c * conv.k) * SpectrumBytes(kTile));
}

std::optional<Bytes> WinogradBytes(const ConvShape& conv, int64_t batch) {
  if (!conv.unit_stride || conv.r != 3 || conv.s != 3) return std::nullopt;
  const int64_t tiles = CeilDiv(conv.h, 4) * CeilDiv(conv.w, 4) * batch;
  return Bytes(36 * 4 * (tiles * (conv.c + conv.k) + conv.c * conv.k));
}

Duration Seconds(double seconds) {
  return Duration::Picoseconds(static_cast<int64_t>(std::llround(seconds * 1e12)));
}

}  // namespace

std::optional<Bytes> ConvWorkspace(const Op& op, std::string_view slot, std::string_view algorithm,
                                   int64_t batch) {
  const ConvShape conv(op);
  if (algorithm == "winograd_nonfused") return WinogradBytes(conv, batch);
  if (algorithm == "fft") return FftBytes(conv, slot, batch);
  if (algorithm == "fft_tiling") return FftTilingBytes(conv);
  if (algorithm == "gemm") return Bytes(conv.c * conv.r * conv.s * conv.out_h * conv.out_w * 4);
  if (algorithm == "winograd" && (!conv.unit_stride || conv.r != 3 || conv.s != 3)) {
    return std::nullopt;
  }
  return Bytes(0);
}

std::span<const Kernel> RooflineCostModel::Kernels(const Op& op, size_t slot, int64_t batch) const {
  SPILLWAY_CHECK(slot < op.slots.size() && batch >= 1 && batch <= op.batch);
  const std::lock_guard lock(mutex_);
  const auto [entry, added] = known_.try_emplace({op.slots[slot].signature, batch});
  if (added) entry->second = Candidates(op, op.slots[slot], batch);
  return entry->second;
}

std::vector<Kernel> RooflineCostModel::Candidates(const Op& op, const Slot& slot,
                                                  int64_t batch) const {
  std::vector<Kernel> kernels;
  if (op.type != OpType::kConv2d) {
    kernels.push_back(Estimate(op, slot, batch, "default", Bytes(0)));
    return kernels;
  }
  for (const std::string_view name : AlgorithmsOf(slot.name)) {
    const std::string algorithm(name);
    if (!device_.efficiency.contains(EfficiencyKey(slot, algorithm))) continue;
    if (const auto workspace = ConvWorkspace(op, slot.name, algorithm, batch)) {
      kernels.push_back(Estimate(op, slot, batch, algorithm, *workspace));
    }
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

Kernel RooflineCostModel::Estimate(const Op& op, const Slot& slot, int64_t batch,
                                   const std::string& algorithm, Bytes workspace) const {
  const double share = static_cast<double>(batch) / static_cast<double>(op.batch);
  const auto efficiency = device_.efficiency.find(
      op.type == OpType::kConv2d ? EfficiencyKey(slot, algorithm) : algorithm);
  const double rate = static_cast<double>(device_.flops_per_second) *
                      (efficiency == device_.efficiency.end() ? 1.0 : efficiency->second);
  const double arithmetic = static_cast<double>(slot.flops) * share / rate;
  // A workspace is written once and read once.
  const double bytes = static_cast<double>(slot.traffic.count()) * share +
                       2 * static_cast<double>(workspace.count());
  const double memory = bytes / static_cast<double>(device_.dram.bytes_per_second);
  return {algorithm, Seconds(std::max(arithmetic, memory)) + kStartUp, workspace,
          op.type != OpType::kConv2d || IsDeterministic(slot.name, algorithm)};
}

Duration RooflineCostModel::CopyTime(Direction direction, Bytes size) const {
  const Link& link = direction == Direction::kToDevice ? device_.h2d : device_.d2h;
  return link.latency + TransferTime(size, link.bandwidth);
}

std::string RooflineCostModel::Provenance() const {
  return fmt::format("analytic (roofline of {})", device_.description);
}

}  // namespace spillway
