#include "sim/cost/sequence_time.h"

#include <algorithm>
#include <array>
#include <cmath>

#include "sim/cost/conv_workspace.h"
#include "traces/ops/op_table.h"

namespace spillway::sim {
namespace {

// The waste of a product in each dimension, on units for matrices and without.
struct Waste {
  double m, n, d;
};
constexpr Waste kMatrixUnits{64, 64, 128};
constexpr Waste kNoUnits{32, 32, 32};
constexpr double kProductStart = 4e-6;

constexpr double kConvertShare = 0.75;  // a share of the DRAM bandwidth, as those below
constexpr double kBiasShare = 0.3;
constexpr double kBiasStart = 7e-6;

constexpr double kAttentionTile = 128;
constexpr double kMaskedTiles = 2;  // tiles of a row that a causal mask does not save
constexpr double kAttentionStart = 8e-6;
constexpr double kAttentionWaste = 32;  // added to head_dim
constexpr double kBackwardStart = 20e-6;
constexpr double kBackwardWaste = 64;
constexpr double kBackwardProducts = 2.5;
constexpr double kSharedKeys = 2;  // passes that add up gradients of keys that several heads share

// The passes of backward of an embedding over the rows that it adds to.
constexpr double kScattered = 3;

// Arithmetic that needs more instructions per byte on shorter numbers has a smaller share there. A
// share above 1 is of operands that L2 still has.
struct Pass {
  OpType type;
  Phase phase;
  double start;  // seconds
  double fp32;   // share of the DRAM bandwidth
  double bf16;
};
using enum OpType;
using enum Phase;
constexpr std::array kPasses = std::to_array<Pass>({
    {kGelu, kForward, 3e-6, 0.95, 0.65},
    {kGelu, kBackward, 3e-6, 0.98, 0.65},
    {kSilu, kForward, 3e-6, 0.93, 0.75},
    {kSilu, kBackward, 3e-6, 0.98, 0.83},
    {kMul, kForward, 3e-6, 0.96, 0.92},
    {kMul, kBackward, 3e-6, 0.95, 0.93},
    {kAdd, kForward, 4e-6, 1, 1.3},
    {kAdd, kBackward, 4e-6, 1, 0.4},
    {kLayerNorm, kForward, 4e-6, 1, 0.85},
    {kLayerNorm, kBackward, 6e-6, 0.48, 0.28},
    {kRmsNorm, kForward, 5e-6, 1.2, 0.85},
    {kRmsNorm, kBackward, 8e-6, 0.65, 0.6},
    {kSoftmax, kForward, 3e-6, 1, 0.8},
    {kSoftmax, kBackward, 3e-6, 1.2, 1},
    {kRotary, kForward, 5e-6, 1, 0.5},
    {kRotary, kBackward, 5e-6, 1, 0.5},
    {kEmbedding, kForward, 4e-6, 0.9, 0.9},
    {kEmbedding, kBackward, 6e-6, 0.9, 0.9},
    {kPositionEmbedding, kForward, 4e-6, 0.9, 0.75},
    {kPositionEmbedding, kBackward, 8e-6, 0.7, 0.55},
    {kSelect, kForward, 3e-6, 1.4, 1.4},
    {kSelect, kBackward, 7e-6, 1.2, 1.2},
    {kSoftmaxLoss, kForward, 10e-6, 0.55, 0.48},  // reads the rows twice, and then writes
    {kSoftmaxLoss, kBackward, 5e-6, 0.9, 0.9},
    {kAdam, kUpdate, 8e-6, 0.95, 0.95},
    {kAdamW, kUpdate, 8e-6, 0.95, 0.95},
});

bool InBf16(const Slot& slot) { return slot.signature.find(" bf16") != std::string::npos; }

double Dram(const Device& device) { return static_cast<double>(device.dram.bytes_per_second); }

double Value(const Op& op, std::string_view attribute) {
  return static_cast<double>(Extent(op, attribute));
}

bool HasUnits(const Device& device, const Slot& slot) {
  return device.matrix_flops_per_second.contains(slot.arithmetic);
}

double Rate(const Device& device, const Op& op, const Slot& slot) {
  double efficiency = 1;
  for (const std::string& key :
       {SequenceKey(device, op, slot), std::string("linear.fwd"), std::string("default")}) {
    const auto found = device.efficiency.find(key);
    if (found == device.efficiency.end()) continue;
    efficiency = found->second;
    break;
  }
  return efficiency * static_cast<double>(MatrixRate(device, slot.arithmetic));
}

double ElementBytes(const Slot& slot) {
  return slot.arithmetic == Arithmetic::kFp32 || slot.arithmetic == Arithmetic::kTf32 ? 4 : 2;
}

// Returns the bytes at whose multiples the rows of all operands begin, at most 16.
uint64_t Alignment(const Op& op, const Slot& slot) {
  uint64_t bits = 16;
  const auto add = [&](int64_t elements) {
    bits |= static_cast<uint64_t>(elements) * static_cast<uint64_t>(ElementBytes(slot));
  };
  if (op.type == OpType::kLinear) {
    add(Extent(op, "in_features"));
    add(Extent(op, "out_features"));
  } else {
    add(Extent(op, "rows"));
    add(Extent(op, "heads") * Extent(op, "head_dim"));
    add(Extent(op, "kv_heads") * Extent(op, "head_dim"));
  }
  return bits & (~bits + 1);
}

// The seconds of products of an op, one after the other.
class Products {
 public:
  Products(const Device& device, const Op& op, const Slot& slot)
      : rate_(Rate(device, op, slot)),
        dram_(Dram(device) / ElementBytes(slot)),
        waste_(HasUnits(device, slot) ? kMatrixUnits : kNoUnits) {}

  // Adds `count` products that run at once.
  void Add(double m, double n, double d, double count = 1) {
    const double operations = 2 * count * (m + waste_.m) * (n + waste_.n) * (d + waste_.d);
    const double elements = count * (m * n + m * d + n * d);
    seconds_ += std::max(operations / rate_, elements / dram_) + kProductStart;
  }
  double seconds() const { return seconds_; }

 private:
  double rate_;  // FLOP/s
  double dram_;  // elements per second
  Waste waste_;
  double seconds_ = 0;
};

double LinearSeconds(const Device& device, const Op& op, const Slot& slot, double batch) {
  const double rows = batch * Value(op, "rows");
  const double in = Value(op, "in_features"), out = Value(op, "out_features");
  Products products(device, op, slot);
  if (op.phase == Phase::kForward) {
    products.Add(rows, out, in);
  } else {
    if (op.Flag("needs_dx")) products.Add(rows, in, out);
    products.Add(out, in, rows);
  }
  double seconds = products.seconds();
  if (slot.signature.find(" reads=fp32") != std::string::npos) {
    seconds += 6 * rows * in / (kConvertShare * Dram(device));
  }
  if (op.phase == Phase::kBackward && op.Flag("bias")) {
    seconds += ElementBytes(slot) * rows * out / (kBiasShare * Dram(device)) + kBiasStart;
  }
  return seconds;
}

// The products with scores of attention that is not fused.
double ScoreSeconds(const Device& device, const Op& op, const Slot& slot, double batch) {
  const double rows = Value(op, "rows"), width = Value(op, "head_dim");
  const double count = batch * Value(op, "heads");
  const bool scores = op.type == OpType::kAttentionScores, forward = op.phase == Phase::kForward;
  Products products(device, op, slot);
  if (scores == forward) {
    products.Add(rows, rows, width, count);
  } else {
    products.Add(rows, width, rows, count);
  }
  if (!forward) products.Add(rows, width, rows, count);
  return products.seconds();
}

double AttentionSeconds(const Device& device, const Op& op, const Slot& slot, double batch) {
  const double rows = std::ceil(Value(op, "rows") / kAttentionTile) * kAttentionTile;
  const bool forward = op.phase == Phase::kForward;
  double area = rows * rows;
  if (op.Flag("causal")) area = std::min(area, (area + kMaskedTiles * kAttentionTile * rows) / 2);
  const double width = Value(op, "head_dim") + (forward ? kAttentionWaste : kBackwardWaste);
  const double operations =
      4 * batch * Value(op, "heads") * area * width * (forward ? 1 : kBackwardProducts);
  double seconds =
      operations / Rate(device, op, slot) + (forward ? kAttentionStart : kBackwardStart);
  if (!forward && op.NumberAttribute("heads") > op.NumberAttribute("kv_heads")) {
    const double share = batch / static_cast<double>(op.batch);
    seconds += kSharedKeys * share * static_cast<double>(slot.traffic.count()) / Dram(device);
  }
  return seconds;
}

}  // namespace

std::string SequenceKey(const Device& device, const Op& op, const Slot& slot) {
  if (op.type == OpType::kAttention) {
    return op.phase == Phase::kForward ? "attention.fwd" : "attention.bwd";
  }
  const bool products = op.type == OpType::kAttentionScores ||
                        op.type == OpType::kAttentionValues ||
                        (op.type == OpType::kLinear && op.FindAttribute("rows"));
  if (!products) return {};
  if (!HasUnits(device, slot)) return "product.fp32";
  const uint64_t alignment = Alignment(op, slot);
  if (slot.arithmetic == Arithmetic::kTf32) {
    return alignment == 16 ? "product.tf32" : "product.tf32_unaligned";
  }
  if (alignment == 16) return "product.short";
  return alignment == 2 ? "product.short_2_bytes" : "product.short_4_bytes";
}

std::optional<double> SequenceSeconds(const Device& device, const Op& op, const Slot& slot,
                                      int64_t batch) {
  if (op.recorded) return std::nullopt;  // the ops of all recorded programs have the default
  const auto samples = static_cast<double>(batch);
  if (op.type == OpType::kAttention) return AttentionSeconds(device, op, slot, samples);
  if (!SequenceKey(device, op, slot).empty()) {
    return op.type == OpType::kLinear ? LinearSeconds(device, op, slot, samples)
                                      : ScoreSeconds(device, op, slot, samples);
  }
  const bool bf16 = InBf16(slot);
  const bool images = op.type == kAdd || op.type == kAdam || op.type == kAdamW ||
                      (op.type == kSoftmaxLoss && !op.FindAttribute("rows"));
  if (images && !bf16) return std::nullopt;
  const auto pass = std::ranges::find_if(
      kPasses, [&](const Pass& p) { return p.type == op.type && p.phase == op.phase; });
  if (pass == kPasses.end()) return std::nullopt;
  double bytes =
      static_cast<double>(slot.traffic.count()) * samples / static_cast<double>(op.batch);
  if (op.type == kEmbedding && op.phase == kBackward && op.Accumulates(0)) {
    bytes = kScattered * (bf16 ? 2 : 4) * samples * Value(op, "rows") * Value(op, "features");
  }
  return bytes / ((bf16 ? pass->bf16 : pass->fp32) * Dram(device)) + pass->start;
}

}  // namespace spillway::sim
