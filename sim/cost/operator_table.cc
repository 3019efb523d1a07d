#include "sim/cost/operator_table.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <numeric>
#include <string_view>
#include <utility>
#include <vector>

#include "sim/cost/kernel_time.h"
#include "sim/cost/recorded.h"

namespace spillway::sim {
namespace {

// The number of measured ops whose weighted mean counts.
constexpr size_t kNeighbours = 6;

// A kind of convolution needs so many measured ops to have a trend of its own.
constexpr size_t kEnoughForTrend = 64;

// Attributes that say how an op works. Ops that differ in one are as far apart as ops of which one
// is this many times larger: 2^kOtherWay.
constexpr std::array kWays = std::to_array<std::string_view>(
    {"transposed", "transposed_a", "transposed_b", "channels_last", "causal", "mask", "dropout",
     "needs_dx", "needs_dw", "bias", "strided", "broadcast"});
constexpr double kOtherWay = 4;

// Other sizes by which libraries choose kernels. Ops that differ in one are as far apart as ops of
// which one is the number's power of the ratio larger.
constexpr std::array kWeights =
    std::to_array<std::pair<std::string_view, double>>({{"alignment", 6},
                                                        {"kernel_h", 3},
                                                        {"kernel_w", 3},
                                                        {"dilation", 3},
                                                        {"head_dim", 3},
                                                        {"groups", 2},
                                                        {"row", 2},
                                                        {"window", 2}});

// Workspaces below this share of the traffic count as none. Others are multiples of each other,
// since they depend on the algorithm that a library chooses.
constexpr double kSmallWorkspace = 0.02;

// The GPU's time between two operators, which the times of single operators do not have: 0.6 to 2.0
// us in 18 steps on an H200 (experiments/evidence/pytorch/README.md).
constexpr Duration kGap = Duration::Nanoseconds(1500);

double Log2(double size) { return std::log2(1 + std::max(size, 0.0)); }

// Libraries have kernels of their own for a convolution with one channel in each group, and with
// several. Returns "" for other ops.
std::string ConvolutionKind(const Op& op) {
  const double groups = op.FindAttribute("groups").value_or(1);
  if (groups <= 1) return "";
  return op.FindAttribute("in_channels") == groups ? " depthwise" : " grouped";
}

std::string KindOf(const Op& op) {
  const Slot& slot = op.slots[0];
  return fmt::format("{} {}", slot.signature.substr(0, slot.signature.find(' ')),
                     Name(slot.arithmetic));
}

// Returns the kind with the types of the inputs, each of them once, and of the first output.
std::string TypedKindOf(const Trace& trace, const Op& op) {
  std::vector<DataType> types;
  for (const TensorId input : op.inputs) {
    const DataType type = trace.tensor(input).dtype;
    if (std::ranges::count(types, type) == 0) types.push_back(type);
  }
  std::string kind = KindOf(op);
  for (const DataType type : types) kind += fmt::format(" {}", Name(type));
  if (!op.outputs.empty()) kind += fmt::format(" to {}", Name(trace.tensor(op.outputs[0]).dtype));
  return kind;
}

double WeightOf(std::string_view attribute) {
  const auto* found =
      std::ranges::find(kWeights, attribute, &decltype(kWeights)::value_type::first);
  return found == kWeights.end() ? 1 : found->second;
}

// Returns the greatest power of two, up to 64, by which a convolution's channels of inputs and of
// outputs in one group can be divided: kernels work on so many at once. Returns 0 for other ops.
int64_t CommonChannels(const Op& op) {
  int64_t common = 0, groups = 1;
  for (const Attribute& attribute : op.attributes) {
    const auto value = static_cast<int64_t>(std::clamp(attribute.value, 1.0, 1e9));
    if (attribute.name == "groups") groups = value;
    if (attribute.name == "in_channels" || attribute.name == "out_channels") {
      common = std::gcd(common, value);
    }
  }
  return common == 0 ? 0 : std::gcd(64, std::max<int64_t>(common / groups, 1));
}

bool DoesNothing(const Op& op) { return op.slots[0].flops == 0 && op.slots[0].traffic == Bytes(0); }

bool NeedsTime(const Op& op) {
  return op.recorded && op.recorded->time == Duration() && !DoesNothing(op);
}

}  // namespace

OperatorTable::OperatorTable(const Trace& measured, const Device& gpu)
    : gpu_(gpu), gpu_name_(measured.recording->device), roofline_(gpu) {
  for (const Op& op : measured.ops) {
    if (!op.recorded || op.recorded->time == Duration() || DoesNothing(op)) continue;
    const double seconds = op.recorded->time.seconds();
    const double traffic = std::max(1.0, static_cast<double>(op.slots[0].traffic.count()));
    const Entry entry{PointOf(op), std::log(seconds / RooflineSeconds(op)),
                      static_cast<double>(op.recorded->workspace.count()) / traffic};
    const std::string typed = TypedKindOf(measured, op);
    entries_[typed].push_back(entry);
    entries_[KindOf(op)].push_back(entry);
    if (const std::string kind = ConvolutionKind(op); !kind.empty()) {
      entries_[typed + kind].push_back(entry);
    }
  }
}

OperatorTable::Point OperatorTable::PointOf(const Op& op) {
  Point point{{"traffic", Log2(static_cast<double>(op.slots[0].traffic.count()))}};
  for (const Attribute& attribute : op.attributes) {
    if (attribute.name == "operators") continue;
    const bool way = std::ranges::count(kWays, attribute.name) != 0;
    point[attribute.name] = way ? kOtherWay * std::clamp(attribute.value, 0.0, 2.0)
                                : WeightOf(attribute.name) * Log2(attribute.value);
  }
  if (const int64_t channels = CommonChannels(op)) {
    point["common_channels"] = Log2(static_cast<double>(channels));
    point.emplace("dilation", WeightOf("dilation") * Log2(1));
  }
  // An imported op has no attributes that say its sizes.
  if (point.size() == 1) point["flops"] = Log2(static_cast<double>(op.slots[0].flops));
  return point;
}

double OperatorTable::RooflineSeconds(const Op& op) const {
  return roofline_.Kernels(op, 0, op.batch)[0].time.seconds();
}

std::optional<OperatorTable::Entry> OperatorTable::EntryFor(const Trace& trace,
                                                            const Op& op) const {
  const std::string typed = TypedKindOf(trace, op);
  const std::string kind = typed + ConvolutionKind(op);
  const auto own = entries_.find(kind);
  const bool enough = own != entries_.end() && own->second.size() >= kEnoughForTrend;
  std::pair key(enough ? kind : entries_.contains(typed) ? typed : KindOf(op), PointOf(op));
  const std::lock_guard lock(mutex_);
  const auto [known, is_new] = known_.try_emplace(std::move(key));
  if (is_new) known->second = Near(known->first.first, known->first.second);
  return known->second;
}

std::optional<OperatorTable::Entry> OperatorTable::Near(const std::string& kind,
                                                        const Point& here) const {
  const auto found = entries_.find(kind);
  if (found == entries_.end()) return std::nullopt;
  std::vector<std::pair<double, const Entry*>> by_distance;  // squares of distances
  for (const Entry& entry : found->second) {
    double square = 0;
    for (const auto& [name, size] : here) {
      const auto other = entry.at.find(name);
      const double difference = size - (other == entry.at.end() ? 0 : other->second);
      square += difference * difference;
    }
    by_distance.emplace_back(square, &entry);
  }
  const size_t count = std::min(kNeighbours, by_distance.size());
  std::ranges::partial_sort(by_distance, by_distance.begin() + static_cast<ptrdiff_t>(count), {},
                            &std::pair<double, const Entry*>::first);
  by_distance.resize(count);
  if (by_distance[0].first == 0) return *by_distance[0].second;
  const QuadraticFit& trend = TrendOf(kind);
  Entry mean;
  double weights = 0;
  for (const auto& [square, entry] : by_distance) {
    weights += 1 / square;
    mean.correction += (entry->correction - trend(entry->at)) / square;
    mean.workspace += std::log(entry->workspace + kSmallWorkspace) / square;
  }
  mean.workspace = std::max(std::exp(mean.workspace / weights) - kSmallWorkspace, 0.0);
  const auto [least, most] = std::ranges::minmax(found->second, {}, &Entry::correction);
  mean.correction =
      std::clamp(trend(here) + mean.correction / weights, least.correction, most.correction);
  return mean;
}

const QuadraticFit& OperatorTable::TrendOf(const std::string& kind) const {
  const auto known = trends_.find(kind);
  if (known != trends_.end()) return known->second;
  std::vector<std::pair<const Point*, double>> samples;
  for (const Entry& entry : entries_.at(kind)) samples.emplace_back(&entry.at, entry.correction);
  return trends_.try_emplace(kind, samples).first->second;
}

Duration OperatorTable::TimeOf(const Op& op, const std::optional<Entry>& near) const {
  return TimeOfSeconds(RooflineSeconds(op) * std::exp(near ? near->correction : 0));
}

Trace OperatorTable::TimedOver(const OperatorTable& other, Trace trace) const {
  const Trace timed = other.Timed(trace);
  const RecordedCostModel scaled(*timed.recording, gpu_, other.gpu());
  trace.recording->device = gpu_name_;
  for (size_t i = 0; i < trace.ops.size(); ++i) {
    Op& op = trace.ops[i];
    if (!NeedsTime(op)) continue;
    const std::optional<Entry> near = EntryFor(trace, op);
    op.recorded = timed.ops[i].recorded;
    op.recorded->time = near ? TimeOf(op, near) : scaled.Kernels(timed.ops[i], 0, op.batch)[0].time;
  }
  return trace;
}

Trace OperatorTable::Timed(Trace trace) const {
  trace.recording->device = gpu_name_;
  for (Op& op : trace.ops) {
    if (!NeedsTime(op)) continue;
    const std::optional<Entry> near = EntryFor(trace, op);
    op.recorded->time = TimeOf(op, near);
    op.recorded->gap = kGap;
    const auto workspace =
        near ? near->workspace * static_cast<double>(op.slots[0].traffic.count()) : 0;
    op.recorded->workspace = std::max(op.recorded->workspace, Bytes(std::llround(workspace)));
  }
  return trace;
}

}  // namespace spillway::sim
