#include "sim/cost/conv_workspace.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cctype>

#include "traces/base/error.h"

namespace spillway::sim {
namespace {

constexpr int64_t kMaxExtent = int64_t{1} << 31;
// Limits on products, far above the capacity of any machine. The largest formulas are for fft, with
// at most six times kMaxElements planes of 2^18 bytes, and for gemm, with four bytes for each
// element of a lowered batch.
constexpr double kMaxElements = 1LL << 40;  // in filters, and in x and y at their common bounds
constexpr double kMaxLowered = 1LL << 58;   // in a batch in which each window is copied out

constexpr int64_t kElement = 4;  // fp32
constexpr int64_t kTile = 32;    // side of a tile of fft_tiling

int64_t CeilDiv(int64_t a, int64_t b) { return (a + b - 1) / b; }

// Returns the bytes of one real plane of n x n in the frequency domain.
int64_t SpectrumBytes(int64_t n) { return n * (n / 2 + 1) * 8; }

int64_t PowerOfTwo(const ConvShape& conv) {
  return static_cast<int64_t>(
      std::bit_ceil(static_cast<uint64_t>(std::max(conv.h + conv.r, conv.w + conv.s) - 1)));
}

std::optional<Bytes> FftBytes(const ConvShape& conv, std::string_view slot, int64_t batch) {
  const int64_t n = PowerOfTwo(conv);
  if (!conv.unit_stride || n > 256) return std::nullopt;
  const int64_t p = SpectrumBytes(n);
  if (slot == "bwd_data") {
    return Bytes(2 * (conv.k * batch + conv.c * conv.k) * p +
                 kElement * conv.c * conv.k * conv.r * conv.s);
  }
  return Bytes((conv.c * batch + conv.k * batch + conv.c * conv.k) * p);
}

std::optional<Bytes> FftTilingBytes(const ConvShape& conv) {
  constexpr int64_t kTilesInFlight = 64;
  if (!conv.unit_stride || conv.r > kTile || conv.s > kTile) return std::nullopt;
  return Bytes(((conv.c + conv.k) * kTilesInFlight + conv.c * conv.k) * SpectrumBytes(kTile));
}

std::optional<Bytes> WinogradBytes(const ConvShape& conv, int64_t batch) {
  if (!conv.unit_stride || conv.r != 3 || conv.s != 3) return std::nullopt;
  const int64_t tiles = CeilDiv(conv.h, 4) * CeilDiv(conv.w, 4) * batch;
  return Bytes(36 * kElement * (tiles * (conv.c + conv.k) + conv.c * conv.k));
}

std::optional<Bytes> FftBytes9(const ConvShape& conv, std::string_view slot, int64_t batch) {
  const int64_t n = FftSide(conv);
  if (!conv.unit_stride || n > 256) return std::nullopt;
  const int64_t x = conv.c * batch;
  const int64_t y = conv.k * batch;
  const int64_t filter = conv.c * conv.k;
  int64_t planes = std::max(x + filter, y);
  int64_t extra = filter * conv.r * conv.s;
  if (slot == "bwd_data") planes = std::max(y + filter, x);
  if (slot == "bwd_filter") {
    planes = std::max(x + y, filter);
    extra = y * conv.out_h * conv.out_w;
  }
  return Bytes(2 * planes * SpectrumBytes(n) + kElement * extra);
}

std::optional<Bytes> FftTilingBytes9(const ConvShape& conv, int64_t batch) {
  // A stride of 2 is supported, a stride of 4 is not.
  if (conv.r > kTile || conv.s > kTile || conv.h > 2 * conv.out_h + conv.r) return std::nullopt;
  const bool rows = conv.r == 1 && conv.s == 1;
  const int64_t across = CeilDiv(rows ? conv.w : conv.w + conv.s - 1, kTile);
  const int64_t pieces = std::min<int64_t>(across, 2) * (rows ? conv.out_h : 1);
  return Bytes((pieces * batch * (conv.c + conv.k) + conv.c * conv.k) * TilesOf(conv).spectrum * 8);
}

// Returns the size of the filter gradient, summed in parts, and of the flags of the parts.
int64_t FilterGradientBytes(const ConvShape& conv) {
  const int64_t filter = conv.c * conv.k * conv.r * conv.s;
  return kElement * filter + filter / 128 + 16;
}

// Returns the size of copies of x and y, of all groups, in another layout.
int64_t CopiesOfOperands(const ConvShape& conv, int64_t batch) {
  const int64_t x = conv.c * conv.h * conv.w;
  const int64_t y = conv.k * conv.out_h * conv.out_w;
  return kElement * batch * conv.groups * (x + y);
}

// Returns the workspace of one group.
std::optional<Bytes> GroupBytes9(const Op& op, const ConvShape& conv, std::string_view slot,
                                 std::string_view algorithm, int64_t batch) {
  if (algorithm == "fft") return FftBytes9(conv, slot, batch);
  if (algorithm == "fft_tiling") return FftTilingBytes9(conv, batch);
  if (algorithm == "winograd_nonfused") {
    constexpr int64_t kLeastBatch = 16;
    return WinogradBytes(conv, slot == "bwd_filter" ? batch : std::max(batch, kLeastBatch));
  }
  if (algorithm == "gemm") {
    if (GemmLoops(conv)) return Bytes(0);
    return Bytes(kElement * conv.c * conv.r * conv.s * conv.out_h * conv.out_w * batch);
  }
  if (algorithm == "implicit_precomp_gemm") return Bytes(1024 * CeilDiv(conv.k, 256));
  if (slot == "bwd_filter" && algorithm == "algo_1") {
    if (conv.groups > 1 && batch > 1) return Bytes(kElement * conv.c * conv.k * conv.r * conv.s);
    const int64_t copies = conv.groups > 1 || conv.k < 512 ? 0 : CopiesOfOperands(conv, batch);
    return Bytes(FilterGradientBytes(conv) + copies);
  }
  if (slot == "bwd_filter" && algorithm == "algo_3") {
    constexpr int64_t kManyFilters = 65536;
    return Bytes(conv.c * conv.k < kManyFilters || conv.k <= 128 ? 0 : FilterGradientBytes(conv));
  }
  return ConvWorkspace(op, slot, algorithm, batch);
}

// Returns true if the groups of more than one sample are gathered first.
bool GathersGroups(std::string_view slot, std::string_view algorithm) {
  return algorithm == "fft" || algorithm == "fft_tiling" || algorithm == "implicit_precomp_gemm" ||
         (slot != "fwd" && algorithm == "algo_1");
}

}  // namespace

int64_t Extent(const Op& op, std::string_view attribute) {
  return op.IntAttribute(attribute, 1, kMaxExtent);
}

ConvShape::ConvShape(const Op& op)
    : c(Extent(op, "in_channels") / Extent(op, "groups")),
      k(Extent(op, "out_channels") / Extent(op, "groups")),
      h(Extent(op, "in_height")),
      w(Extent(op, "in_width")),
      out_h(Extent(op, "out_height")),
      out_w(Extent(op, "out_width")),
      r(Extent(op, "kernel_h")),
      s(Extent(op, "kernel_w")),
      groups(Extent(op, "groups")),
      unit_stride(Extent(op, "stride_h") == 1 && Extent(op, "stride_w") == 1) {
  if (c < 1 || k < 1) {
    throw InputError(
        fmt::format("op '{}' (conv2d) has more groups than channels: {}", op.name, groups));
  }
  const auto channels = static_cast<double>(groups * (c + k));
  const auto window = static_cast<double>(r * s);
  const double elements = static_cast<double>(op.batch) * channels *
                          static_cast<double>(std::max(h, out_h)) *
                          static_cast<double>(std::max(w, out_w));
  const double filters = static_cast<double>(groups) * static_cast<double>(c * k) * window;
  if (elements > kMaxElements || filters > kMaxElements || elements * window > kMaxLowered) {
    throw InputError(
        fmt::format("op '{}' (conv2d): its batch and attributes make it too large", op.name));
  }
}

int64_t FftSide(const ConvShape& conv) { return std::max<int64_t>(16, PowerOfTwo(conv)); }

FftTiles TilesOf(const ConvShape& conv) {
  if (conv.r == 1 && conv.s == 1) {
    return {conv.out_h * CeilDiv(conv.out_w, kTile), kTile / 2 + 1};
  }
  return {CeilDiv(conv.out_h, kTile - conv.r + 1) * CeilDiv(conv.out_w, kTile - conv.s + 1),
          kTile * (kTile / 2 + 1)};
}

int64_t WinogradTiles(const ConvShape& conv) {
  return CeilDiv(conv.out_h, 4) * CeilDiv(conv.out_w, 4);
}

int LibraryMajor(std::string_view library) {
  constexpr std::string_view kName = "cuDNN ";
  int major = 0;
  if (!library.starts_with(kName)) return major;
  for (const char c : library.substr(kName.size(), 3)) {
    if (std::isdigit(static_cast<unsigned char>(c)) == 0) break;
    major = 10 * major + (c - '0');
  }
  return major;
}

std::optional<Bytes> ConvWorkspace(const Op& op, std::string_view slot, std::string_view algorithm,
                                   int64_t batch) {
  const ConvShape conv(op);
  if (algorithm == "winograd_nonfused") return WinogradBytes(conv, batch);
  if (algorithm == "fft") return FftBytes(conv, slot, batch);
  if (algorithm == "fft_tiling") return FftTilingBytes(conv);
  if (algorithm == "gemm") {
    return Bytes(kElement * conv.c * conv.r * conv.s * conv.out_h * conv.out_w);
  }
  if (algorithm == "winograd") {
    if (!conv.unit_stride || conv.r != 3 || conv.s != 3) return std::nullopt;
    return Bytes(16 * kElement * conv.c * conv.k);
  }
  return Bytes(0);
}

bool GemmLoops(const ConvShape& conv) { return conv.k <= 64 && conv.r > 1; }

std::optional<Bytes> ConvWorkspace9(const Op& op, std::string_view slot, std::string_view algorithm,
                                    int64_t batch) {
  const ConvShape conv(op);
  const std::optional<Bytes> group = GroupBytes9(op, conv, slot, algorithm, batch);
  if (!group || conv.groups == 1) return group;
  constexpr int64_t kAlignment = 32;
  const bool gathers = batch > 1 && GathersGroups(slot, algorithm);
  return Bytes(conv.groups * group->count() +
               (gathers ? CopiesOfOperands(conv, batch) + kAlignment : 0));
}

}  // namespace spillway::sim
