#include "sim/cost/kernel_time.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <optional>
#include <string>

#include "sim/cost/conv_workspace.h"
#include "sim/cost/sequence_time.h"

namespace spillway::sim {
namespace {

// The waste of a matrix product in each dimension, and the time to start it.
struct Product {
  std::string_view algorithm;
  double m, n, d;
  double start;  // seconds
};

// N is the output channels in forward, the input channels in backward data. Backward filter has M =
// C R S, N = K and D = the pixels of the batch, which are cut into enough parts to fill the device.
constexpr double kTileN = 32;
constexpr std::array<Product, 4> kForward{{{"implicit_gemm", 0, 0, 64, 20e-6},
                                           {"implicit_precomp_gemm", 0, 0, 64, 20e-6},
                                           {"gemm", 0, 128, 64, 40e-6},
                                           {"direct", 0, 0, 64, 20e-6}}};
constexpr std::array<Product, 2> kBackwardData{
    {{"algo_0", 0, 0, 128, 20e-6}, {"algo_1", 0, 0, 32, 20e-6}}};
constexpr std::array<Product, 3> kBackwardFilter{{{"algo_0", 128, 64, 4096, 40e-6},
                                                  {"algo_1", 256, 128, 16384, 40e-6},
                                                  {"algo_3", 128, 32, 4096, 40e-6}}};
// Algorithms that were never recorded. "winograd" counts the operations of a direct convolution.
constexpr Product kOther{"", 0, 0, 64, 20e-6};

// Without a workspace, "gemm" computes image by image, at this fraction of the rate.
constexpr double kLoopedGemm = 1.0 / 14;

// The waste of a transform in each dimension of its product, the share of the DRAM bandwidth that
// its transformations reach, and the time to start its kernels.
struct Transform {
  std::string_view slot;
  std::string_view algorithm;
  double tile;  // M and N are rounded up to a multiple of this
  double m, n, d;
  double share;
  double large;  // factor for planes beyond 32 x 32, which need several passes
  double start;  // seconds
};
constexpr std::array<Transform, 9> kTransforms{{
    {"fwd", "winograd_nonfused", 64, 0, 0, 32, 1.0, 1, 30e-6},
    {"bwd_data", "winograd_nonfused", 64, 0, 0, 0, 0.85, 1, 30e-6},
    {"bwd_filter", "winograd_nonfused", 128, 0, 0, 0, 0.4, 1, 30e-6},
    {"fwd", "fft", 1, 0, 0, 16, 0.7, 2, 15e-6},
    {"bwd_data", "fft", 1, 0, 0, 32, 0.7, 1.5, 15e-6},
    {"bwd_filter", "fft", 1, 32, 32, 0, 0.5, 1.5, 30e-6},
    {"fwd", "fft_tiling", 1, 0, 32, 32, 1.0, 1, 5e-6},
    {"bwd_data", "fft_tiling", 1, 0, 0, 64, 1.0, 1, 15e-6},
    {"bwd_filter", "fft_tiling", 1, 32, 32, 0, 0.5, 1, 15e-6},  // never recorded; values of fft
}};

// A complex product takes three real multiplications.
constexpr double kComplexProduct = 6;

// Linear layers of vectors read the weights first and then multiply. Backward wastes this much in
// each dimension of the weights.
constexpr double kLinearStart = 15e-6;
constexpr double kLinearBackward = 1024;

constexpr int kSlowPooling = 8;           // from this major version of cuDNN on
constexpr double kPlainStart = 1.7e-6;    // one small kernel
constexpr double kUpdateStart = 3.7e-6;   // weights and biases
constexpr double kConcatShare = 0.8;      // a share of the DRAM bandwidth, because rows are short
constexpr double kSoftmaxStart = 6.5e-6;  // three small kernels

double Dram(const Device& device) { return static_cast<double>(device.dram.bytes_per_second); }
double Peak(const Device& device, const Slot& slot) {
  return static_cast<double>(MatrixRate(device, slot.arithmetic));
}

double RoundUp(double value, double tile) { return std::ceil(value / tile) * tile; }

Product ProductOf(std::string_view slot, std::string_view algorithm) {
  const auto find = [&](const auto& products) {
    const auto found = std::find_if(products.begin(), products.end(),
                                    [&](const Product& p) { return p.algorithm == algorithm; });
    return found == products.end() ? kOther : *found;
  };
  if (slot == "bwd_data") return find(kBackwardData);
  if (slot == "bwd_filter") return find(kBackwardFilter);
  return find(kForward);
}

double ProductSeconds(const Device& device, const ConvShape& conv, const Slot& slot,
                      std::string_view algorithm, double batch, double bytes, double rate) {
  const auto filter = static_cast<double>(conv.r * conv.s);
  const auto c = static_cast<double>(conv.c);
  const auto k = static_cast<double>(conv.k);
  const double pixels = batch * static_cast<double>(conv.out_h * conv.out_w);
  const Product waste = ProductOf(slot.name, algorithm);
  double m = pixels;
  double n = k;
  double d = c * filter;
  if (slot.name == "bwd_data") {
    m = batch * static_cast<double>(conv.h * conv.w);
    n = c;
    d = k * filter * pixels / m;  // a stride leaves out products
  } else if (slot.name == "bwd_filter") {
    m = c * filter;
    d = pixels;
  }
  if (slot.name != "bwd_filter") n = RoundUp(n, kTileN);
  const double operations =
      2 * static_cast<double>(conv.groups) * (m + waste.m) * (n + waste.n) * (d + waste.d);
  return std::max(operations / rate, bytes / Dram(device)) + waste.start;
}

double TransformSeconds(const Device& device, const ConvShape& conv, const Transform& waste,
                        double batch, double bytes, double rate) {
  double tiles = batch;  // tiles that are transformed one by one
  double points = 0;     // products in the other domain, each of C K tiles
  double operations = kComplexProduct;
  double element = 8;
  double penalty = 1;
  if (waste.algorithm == "fft") {
    const auto side = static_cast<double>(FftSide(conv));
    points = side * (side / 2 + 1);
    if (side > 32) penalty = waste.large;
  } else if (waste.algorithm == "fft_tiling") {
    tiles *= static_cast<double>(TilesOf(conv).count);
    points = static_cast<double>(TilesOf(conv).spectrum);
  } else {
    tiles *= static_cast<double>(WinogradTiles(conv));
    points = 36;
    operations = 2;
    element = 4;
  }
  const auto c = static_cast<double>(conv.c);
  const auto k = static_cast<double>(conv.k);
  double m = tiles;
  double n = k;
  double d = c;
  if (waste.slot == "bwd_data") std::swap(n, d);
  if (waste.slot == "bwd_filter") {
    m = c;
    d = tiles;
  }
  const auto groups = static_cast<double>(conv.groups);
  const double product = operations * points * groups * (RoundUp(m, waste.tile) + waste.m) *
                         (RoundUp(n, waste.tile) + waste.n) * (d + waste.d);
  // Operands and result are written and read once in the other domain.
  const double transformed = 2 * element * points * groups * (tiles * (c + k) + c * k);
  return (product / rate + (bytes + transformed) / (waste.share * Dram(device))) * penalty +
         waste.start;
}

// The pooling of cuDNN 9 is far from DRAM-bound. It behaves as if it read its window again for each
// sample: the more the windows overlap, the more bytes it reads.
double PoolBytes(const Op& op, double batch) {
  const auto extent = [&](const char* name) { return static_cast<double>(Extent(op, name)); };
  const double input = 4 * batch * extent("channels") * extent("in_height") * extent("in_width");
  const double overlap =
      extent("kernel_h") * extent("kernel_w") / (extent("stride_h") * extent("stride_w"));
  return op.phase == Phase::kForward ? input * (1 + 0.8 * overlap) : input * (6 + 5 * overlap);
}

double EfficiencyOf(const Device& device, const std::string& key) {
  for (const std::string& name : {key, std::string("default")}) {
    const auto found = device.efficiency.find(name);
    if (found != device.efficiency.end()) return found->second;
  }
  return 1;
}

}  // namespace

Duration TimeOfSeconds(double seconds) {
  constexpr Duration kLongest = Duration::Picoseconds(Duration::Max().picoseconds() / 2);
  const double picoseconds = seconds * 1e12;
  // The comparison is false for a NaN, which therefore gives the longest time, too.
  if (!(picoseconds < static_cast<double>(kLongest.picoseconds()))) return kLongest;
  return Duration::Picoseconds(std::max<int64_t>(0, std::llround(picoseconds)));
}

Duration ConvTime(const Device& device, const Op& op, const Slot& slot, std::string_view algorithm,
                  int64_t batch, Bytes workspace, double efficiency) {
  const ConvShape conv(op);
  const auto samples = static_cast<double>(batch);
  const double share = samples / static_cast<double>(op.batch);
  const double bytes = static_cast<double>(slot.traffic.count()) * share;
  double rate = Peak(device, slot) * efficiency;
  for (const Transform& transform : kTransforms) {
    if (transform.slot == slot.name && transform.algorithm == algorithm) {
      return TimeOfSeconds(TransformSeconds(device, conv, transform, samples, bytes, rate));
    }
  }
  if (algorithm == "gemm" && workspace == Bytes(0)) rate *= kLoopedGemm;
  // A workspace is written once and read once.
  const double all = bytes + 2 * static_cast<double>(workspace.count());
  return TimeOfSeconds(ProductSeconds(device, conv, slot, algorithm, samples, all, rate));
}

Duration PlainTime(const Device& device, const Op& op, const Slot& slot, int64_t batch) {
  if (const std::optional<double> seconds = SequenceSeconds(device, op, slot, batch)) {
    return TimeOfSeconds(*seconds);
  }
  const auto samples = static_cast<double>(batch);
  const double share = samples / static_cast<double>(op.batch);
  double operations = static_cast<double>(slot.flops) * share;
  double bytes = static_cast<double>(slot.traffic.count()) * share;
  double start = kPlainStart;

  switch (op.type) {
    case OpType::kLinear: {
      if (op.recorded) break;  // the ops of all recorded programs have the default
      const bool forward = op.phase == Phase::kForward;
      const std::string key = forward ? "linear.fwd" : "linear.bwd";
      if (!forward) {
        operations *= 1 + kLinearBackward / static_cast<double>(Extent(op, "in_features"));
        operations *= 1 + kLinearBackward / static_cast<double>(Extent(op, "out_features"));
      }
      const double rate = Peak(device, slot) * EfficiencyOf(device, key);
      return TimeOfSeconds(operations / rate + bytes / Dram(device) + kLinearStart);
    }
    case OpType::kMaxPool2d:
      if (LibraryMajor(device.library) >= kSlowPooling) bytes = PoolBytes(op, samples);
      break;
    case OpType::kBatchNorm: {
      // The sums over a channel take a separate pass over x and, in backward, over dy.
      const double elements = static_cast<double>(Extent(op, "channels")) *
                              static_cast<double>(Extent(op, "height")) *
                              static_cast<double>(Extent(op, "width"));
      const double pass = 4 * samples * elements;
      if (op.phase == Phase::kBackward) bytes += 2 * pass;
      if (op.Flag("training")) bytes += pass;
      break;
    }
    case OpType::kConcat:
      bytes /= kConcatShare;
      break;
    case OpType::kSgd:
    case OpType::kAdam:
    case OpType::kAdamW:
      start = kUpdateStart;
      break;
    case OpType::kSoftmaxLoss:
      if (op.phase == Phase::kForward) start = kSoftmaxStart;
      break;
    default:
      break;
  }
  const double rate = Peak(device, slot) * EfficiencyOf(device, "default");
  return TimeOfSeconds(std::max(operations / rate, bytes / Dram(device)) + start);
}

}  // namespace spillway::sim
