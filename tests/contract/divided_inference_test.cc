// mmCNN on real bytes: for every limit and legal order of execution, each feature map has the bits
// of the undivided network in core. The last tests show that wrong divisions are detected. By
// default, narrow networks and two networks of the zoo run. With SPILLWAY_WHOLE_ZOO=1 the whole zoo
// runs; with a network's name, only that network.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <map>
#include <memory>
#include <random>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "backend/cpu/cpu_backend.h"
#include "experiments/run/run.h"
#include "policies/mmcnn/layer_split.h"
#include "policies/mmcnn/slice_ops.h"
#include "policies/registry.h"
#include "sim/core/check.h"
#include "sim/cost/roofline.h"
#include "tests/testing/files.h"
#include "tests/testing/networks.h"
#include "tests/testing/runs.h"
#include "traces/base/error.h"
#include "traces/lowering/lowering.h"
#include "traces/zoo/zoo.h"

namespace spillway::testing {
namespace {

using ::testing::IsEmpty;

// For each layer, a hash of its output. Each element contributes according to its place in the
// whole map.
using Maps = std::vector<uint64_t>;

// Adds the output of an op of a divided trace, which has some channels and some rows, to `hash`.
// `height` is the height of the whole map.
void AddTo(uint64_t& hash, const Tensor& y, int64_t height, std::span<const std::byte> bytes) {
  const std::vector<int64_t>& shape = y.shape;
  const int64_t channels = shape.size() > 1 ? shape[1] : 1;
  const int64_t rows = shape.size() == 4 ? shape[2] : 1;
  const int64_t width = shape.size() == 4 ? shape[3] : 1;
  const int64_t first_channel = y.offset.count() / (y.size.count() / channels);
  const size_t band = y.name.find("[rows ");
  const int64_t first_row = band == y.name.npos ? 0 : std::stol(y.name.substr(band + 6));
  const auto* values = reinterpret_cast<const uint32_t*>(bytes.data());
  for (int64_t i = 0; i < channels * rows * width; ++i) {
    const int64_t channel = first_channel + i / width / rows;
    const int64_t row = first_row + i / width % rows;
    uint64_t mixed = static_cast<uint64_t>((channel * height + row) * width + i % width + 1);
    mixed = (mixed << 32 ^ values[i]) * 0x9e3779b97f4a7c15u;
    hash += (mixed ^ mixed >> 29) * 0xbf58476d1ce4e5b9u;
  }
}

// Returns the names of the ops to whose outputs no later op adds.
std::set<std::string> LastTerms(const Trace& trace) {
  std::map<TensorId, std::string> last;  // output -> op
  for (const Op& op : trace.ops) last[op.outputs[0]] = op.name;
  std::set<std::string> names;
  for (const auto& [output, name] : last) names.insert(name);
  return names;
}

struct Result {
  Outcome outcome;
  Maps maps;
};

class DividedInference : public ::testing::Test {
 protected:
  DividedInference() : device_(testing::NarrowDevice()), cost_(device_) {
    device_.host_memory =
        Bytes::GiB(8);  // the deepest VGGs have more than 1 GiB of weights and maps
    RegisterBuiltinPolicies(registry_);
  }

  static Trace Lower(const Network& network) { return LowerNetwork(network, {1, "torch", false}); }

  Result Run(const Trace& trace, Policy& policy, Bytes memory,
             std::optional<uint64_t> drain_seed = std::nullopt) const {
    Maps maps(trace.layers.size());
    std::vector<int64_t> heights(trace.layers.size(), 1);
    for (const Op& op : trace.ops) {
      const std::vector<int64_t>& shape = trace.tensor(op.outputs[0]).shape;
      if (shape.size() == 4) heights[Index(op.layer)] = shape[2];
    }
    const Trace* running = nullptr;
    std::set<std::string> last_terms;
    const auto run_op = [&](const Op& op, std::span<const KernelRun> runs,
                            std::span<const std::span<std::byte>> inputs,
                            std::span<const std::span<std::byte>> outputs, uint64_t seed) {
      RunOp<float>(op, runs, inputs, outputs, seed);
      if (op.type == OpType::kRows || !last_terms.contains(op.name)) return;
      const size_t layer = Index(op.layer);
      AddTo(maps[layer], running->tensor(op.outputs[0]), heights[layer], outputs[0]);
    };
    BackendFactories backends;
    backends.Add("cpu", {[&](const BackendRequest& request) {
                   CpuOptions options{Bytes::Unlimited(), {device_.host_memory}, 7, drain_seed};
                   RunBackend made;
                   running = &request.trace;
                   last_terms = LastTerms(request.trace);
                   auto cpu = std::make_unique<CpuBackend>(request.trace, options, run_op);
                   made.executor = cpu.get();
                   made.backend = std::move(cpu);
                   return made;
                 }});
    Draft setup{Borrow(trace), device_, Borrow(cost_), memory};
    setup.backend = "cpu";
    setup.options.iterations = 1;
    Outcome outcome = testing::RunPolicy(setup, policy, backends);
    return {std::move(outcome), std::move(maps)};
  }

  // Compares runs in each amount of memory with a run in core.
  void ExpectSameBits(const Trace& trace, const std::vector<Bytes>& memories,
                      std::initializer_list<std::optional<uint64_t>> drain_seeds) const {
    Policy in_core;
    const Result want = Run(trace, in_core, Bytes::GiB(64));
    for (const Bytes memory : memories) {
      for (const auto drain_seed : drain_seeds) {
        const Result got = Run(trace, *registry_.Make("mmcnn"), memory, drain_seed);
        const Report& report = got.outcome.report;
        ASSERT_TRUE(report.fits())
            << trace.name << " in " << memory.count() << ": " << report.out_of_memory->Message();
        EXPECT_LE(report.metrics.peak_allocated, memory);
        EXPECT_THAT(Check(*got.outcome.trace, report), IsEmpty());
        EXPECT_EQ(got.maps, want.maps) << trace.name << " in " << memory.count();
        EXPECT_EQ(got.outcome.execution->loss, want.outcome.execution->loss);
        EXPECT_EQ(got.outcome.execution->weights_digest, want.outcome.execution->weights_digest);
      }
    }
  }

  // Returns the least memory, the memory that the undivided network needs in core, and `drawn`
  // random amounts between the two.
  std::vector<Bytes> Limits(const Trace& trace, int drawn) const {
    Policy in_core;
    const Bytes least = LeastMmcnnMemory(trace, device_.alignment).size;
    const Draft setup{Borrow(trace), device_, Borrow(cost_), Bytes::GiB(64)};
    const Bytes most = testing::RunPolicy(setup, in_core).report.metrics.peak_allocated;
    std::vector<Bytes> limits{least, std::max(least, most)};
    std::mt19937_64 random(trace.ops.size());
    for (int i = 0; i < drawn; ++i) {  // most amounts are close to the least
      const double share = std::pow(std::uniform_real_distribution<double>()(random), 2);
      const auto span = static_cast<double>((limits[1] - least).count());
      limits.push_back(least + Bytes(static_cast<int64_t>(share * span)));
    }
    return limits;
  }

  Device device_;
  RooflineCostModel cost_;
  PolicyRegistry registry_;
};

TEST_F(DividedInference, SameBitsOnNarrowNetworks) {
  for (const auto network :
       {testing::Chain, testing::ForkJoin, testing::Residual, testing::Normalized,
        testing::Rectangular, testing::Dense, testing::Gpt, testing::Llama, testing::Vit}) {
    const Trace trace = Lower(network());
    ExpectSameBits(trace, Limits(trace, 12), {std::nullopt, 1, 2});
  }
}

TEST_F(DividedInference, SameBitsOnTheZoo) {
  const char* const wanted = std::getenv("SPILLWAY_WHOLE_ZOO");
  const bool whole = wanted != nullptr;
  for (const ZooEntry& entry : Zoo()) {
    if (whole && wanted != std::string("1") && wanted != entry.name) continue;
    if (!whole && entry.name != "alexnet-caffe" && entry.name != "resnet18") continue;
    SCOPED_TRACE(entry.name);
    const Trace trace = Lower(BuildNetwork(entry.name));
    std::vector<Bytes> limits = Limits(trace, whole ? 2 : 0);
    limits.erase(limits.begin() + 1);
    if (!whole) limits[0] += Bytes(limits[0].count() / 4);  // few sums, because sums take long
    // With sums, the trace of so many VGG layers is larger than a machine's memory.
    const bool deep = entry.name.starts_with("vgg") && trace.layers.size() > 300;
    if (deep) limits[0] = std::max(limits[0], Bytes::KiB(400));
    if (limits[0] < Bytes::MiB(200)) limits.push_back(Bytes::MiB(whole ? 200 : 20));
    ExpectSameBits(trace, limits, {whole ? std::optional<uint64_t>(3) : std::nullopt});
  }
}

TEST_F(DividedInference, TheLeastMemoryIsTight) {
  for (const auto network : {testing::Chain, testing::Residual, testing::Normalized}) {
    const Trace trace = Lower(network());
    const LeastMemory least = LeastMmcnnMemory(trace, device_.alignment);
    const auto fits = [&](Bytes memory) {
      return testing::RunPolicy({Borrow(trace), device_, Borrow(cost_), memory},
                                *registry_.Make("mmcnn"))
          .report.fits();
    };
    EXPECT_TRUE(fits(least.size)) << least.layer;
    EXPECT_FALSE(fits(least.size - device_.alignment)) << least.layer;
    EXPECT_LE(least.size, LeastMmcnnMemory(trace, device_.alignment, /*divide=*/false).size);
  }
}

// Dividing rows is not enough here. The image is larger than any other tensor and comes channel by
// channel. A pool over a whole map of many channels runs in slices of channels.
TEST_F(DividedInference, ChannelsAreDividedWhereRowsAreNotEnough) {
  Network network("wide", {8, 64, 64});
  LayerNode x = network.ConvRelu("conv", network.image(), ConvSpec::Square(8, 3, 2, 1));
  x = network.AvgPool("pool", network.ConvRelu("deep", x, ConvSpec::Square(64, 3, 2, 1)), {16, 1});
  network.SoftmaxLoss("loss", network.Linear("fc", x, 10));
  const Trace trace = Lower(network);
  const auto image = std::ranges::find_if(trace.tensors, [](const Tensor& tensor) {
    return tensor.kind == TensorKind::kInput && tensor.shape.size() == 4;
  });
  const auto whole = static_cast<TensorId>(image - trace.tensors.begin());
  const Bytes least = LeastMmcnnMemory(trace, device_.alignment).size;
  EXPECT_LT(least, image->size);
  const policies::DividedInference divided = DivideForMmcnn(trace, least, device_.alignment);
  divided.trace.Validate();
  EXPECT_EQ(std::ranges::count_if(divided.trace.tensors,
                                  [&](const Tensor& tensor) { return tensor.part_of == whole; }),
            8);
  EXPECT_GT(std::ranges::count_if(divided.trace.ops,
                                  [](const Op& op) { return op.type == OpType::kAvgPool2d; }),
            1);
  ExpectSameBits(trace, Limits(trace, 12), {std::nullopt, 1, 2});
}

bool AddsUp(const Op& op) { return op.Accumulates(0); }

TEST_F(DividedInference, AConvolutionAddsUpSlicesOfItsInputChannels) {
  const Trace trace = Lower(testing::Deep());
  const Bytes least = LeastMmcnnMemory(trace, device_.alignment).size;
  const Trace divided = DivideForMmcnn(trace, least, device_.alignment).trace;
  divided.Validate();
  const auto added = static_cast<size_t>(std::ranges::count_if(divided.ops, AddsUp));
  EXPECT_GT(added, 64u);
  // The rows gathered for one output row are as large as the three rows that they are copied from.
  const Bytes three_rows(3 * 64 * 24 * 4);
  EXPECT_LT(least, 2 * three_rows);
  // Each slice has its own weights. All slices together have the weights of the layer.
  Bytes parts;
  const auto weight = std::ranges::find(divided.tensors, "conv2.weight", &Tensor::name);
  for (const Tensor& tensor : divided.tensors) {
    if (tensor.part_of == static_cast<TensorId>(weight - divided.tensors.begin())) {
      parts += tensor.size;
    }
  }
  EXPECT_EQ(parts, weight->size);
  ExpectSameBits(trace, Limits(trace, 1), {std::nullopt, 1});
}

// Rows have 17 floats, so one of four channels begins at a multiple of 16 bytes. Aligned and
// unaligned ops have separate costs.
TEST_F(DividedInference, SignaturesTellWhereOperandsAreNotAligned) {
  const Trace trace = Lower(testing::DeepOn(17));
  const Bytes least = LeastMmcnnMemory(trace, device_.alignment).size;
  const Trace divided = DivideForMmcnn(trace, least, device_.alignment).trace;
  std::map<bool, int> count;
  for (const Op& op : divided.ops) {
    if (op.type != OpType::kConv2d || op.IntAttribute("out_channels") != 1) continue;
    const bool aligned = divided.OffsetInStorage(op.outputs[0]).count() % 16 == 0;
    EXPECT_EQ(op.slots[0].signature.ends_with(" unaligned"), !aligned) << op.name;
    ++count[aligned];
  }
  EXPECT_GT(count[true], 0);
  EXPECT_EQ(count[false], 3 * count[true]);
}

// This holds for every limit from the least memory on, even if finer bands would need more.
TEST_F(DividedInference, WhatDivisionNeedsStaysWithinTheLimit) {
  const Trace trace = Lower(BuildNetwork("googlenet"));
  const Bytes least = LeastMmcnnMemory(trace, device_.alignment).size;
  for (int eighths = 8; eighths < 24; ++eighths) {
    const Bytes limit(least.count() / 8 * eighths);
    const Trace divided = DivideForMmcnn(trace, limit, device_.alignment).trace;
    divided.Validate();
    const OpNeeds needs(divided, device_.alignment);
    Bytes most;
    for (size_t i = 0; i < divided.ops.size(); ++i) {
      const OpNeed need = needs.Of(static_cast<OpId>(i));
      most = std::max(most, need.maps + need.parameters);
    }
    EXPECT_LE(most, limit) << eighths;
  }
}

TEST_F(DividedInference, ALimitUnderTheLeastIsAnError) {
  const Trace trace = Lower(testing::Chain());
  const LeastMemory least = LeastMmcnnMemory(trace, device_.alignment);
  const auto policy =
      registry_.Make("mmcnn:limit=" + std::to_string((least.size - Bytes(1)).count()) + "B");
  try {
    testing::RunPolicy({Borrow(trace), device_, Borrow(cost_), Bytes::GiB(1)}, *policy);
    FAIL() << "expected a UsageError";
  } catch (const UsageError& error) {
    const Bytes limit = least.size - Bytes(1);
    EXPECT_THAT(error.what(), ::testing::HasSubstr(FormatBytes(limit, least.size) +
                                                   " is less than layer '" + least.layer));
    EXPECT_THAT(error.what(), ::testing::HasSubstr(FormatBytes(least.size, limit)));
    EXPECT_THAT(error.what(), ::testing::HasSubstr(std::to_string(least.size.count())));
  }
}

TEST_F(DividedInference, NothingIsDividedOrFetchedWhereAllFits) {
  const Trace trace = Lower(testing::Normalized());
  const auto policy = registry_.Make("mmcnn");
  const Outcome outcome =
      testing::RunPolicy({Borrow(trace), device_, Borrow(cost_), Bytes::GiB(1)}, *policy);
  EXPECT_EQ(*outcome.trace, trace);
  EXPECT_EQ(outcome.report.metrics.prefetched, Bytes(0));
}

// Checks the result of Algorithm 1 for a convolution and a linear layer in 40 KiB, on a device
// without alignment.
TEST_F(DividedInference, SlicesAreThoseOfAlgorithm1) {
  Network network("two", {16, 16, 16});
  network.SoftmaxLoss(
      "loss", network.Linear("fc", network.Conv("conv", 0, ConvSpec::Square(16, 3, 1, 1)), 10));
  const Trace trace = Lower(network);
  // conv: maps 32 KiB, parameters 9280 B. 8 KiB are free, so the weights come in two parts, fetched
  // from the start. fc: maps 16 KiB and 40 B, parameters 163880 B. 24536 B are free, so the weights
  // would need seven parts, more than five.
  const policies::DividedInference divided = DivideForMmcnn(trace, Bytes::KiB(40), Bytes(1));
  // Two rows of fc's weights have 32776 B, which do not fit.
  std::vector<std::string> names;
  for (const Op& op : divided.trace.ops) names.push_back(op.name);
  ASSERT_EQ(names.size(), 13);
  EXPECT_EQ(names[0], "conv.fwd[0:8]");
  EXPECT_EQ(names[1], "conv.fwd[8:16]");
  EXPECT_EQ(names[2], "fc.fwd[0:1]");
  EXPECT_EQ(names[11], "fc.fwd[9:10]");
  EXPECT_EQ(names[12], "loss.fwd");
  divided.trace.Validate();
  EXPECT_EQ(divided.trace.ops[1].slots[0].signature,
            "conv2d.fwd in=16x16x16 out=8x16x16 kernel=3x3 stride=1x1 pad=1x1 groups=1 bias=1");
  EXPECT_EQ(2 * divided.trace.ops[1].flops(), trace.ops[0].flops());
  const TensorId weight = *FindInput(divided.trace.ops[3], Role::kWeight);
  EXPECT_EQ(divided.prefetch_from[Index(weight)], OpId{2});  // the layer loads its weights itself
}

// A policy that divides like mmcnn and then makes a mistake.
class Mistaken final : public Policy {
 public:
  Mistaken(std::unique_ptr<Policy> sound, void (*mistake)(Trace&))
      : sound_(std::move(sound)), mistake_(mistake) {}

  Preparation Prepare(const Trace& trace, const Device& device, const CostModel& cost,
                      const TrialRun& trial, const std::string& plan) override {
    Preparation prepared = sound_->Prepare(trace, device, cost, trial, plan);
    if (prepared.trace) mistake_(*prepared.trace);
    return prepared;
  }
  bool LivesOutside(const Trace& trace, TensorId id) override {
    return sound_->LivesOutside(trace, id);
  }
  void BeforeOp(PolicyContext& context, OpId op) override { sound_->BeforeOp(context, op); }
  void BeforeLaunch(PolicyContext& context, OpId op) override { sound_->BeforeLaunch(context, op); }
  bool OnAllocFailure(PolicyContext& context, Bytes size) override {
    return sound_->OnAllocFailure(context, size);
  }

 private:
  const std::unique_ptr<Policy> sound_;
  void (*const mistake_)(Trace&);
};

// Moves a view or a part of the last divided layer by one channel.
template <std::optional<TensorId> Tensor::*kOf>
void MoveByOneChannel(Trace& trace) {
  const auto last = std::find_if(trace.tensors.rbegin(), trace.tensors.rend(),
                                 [](const Tensor& t) { return t.*kOf && t.offset > Bytes(0); });
  ASSERT_NE(last, trace.tensors.rend());
  last->offset -= Bytes(last->size.count() / last->shape[kOf == &Tensor::alias_of ? 1 : 0]);
}

// Leaves out the upper row when rows are gathered for a band, so that all gathered rows lie one row
// too far down.
void ForgetOneRowOfAHalo(Trace& trace) {
  const auto gather = std::find_if(trace.ops.rbegin(), trace.ops.rend(), [](const Op& op) {
    return op.type == OpType::kRows && op.IntAttribute("first_row") > 0;
  });
  ASSERT_NE(gather, trace.ops.rend());
  SetAttribute(*gather, "first_row", gather->IntAttribute("first_row") + 1);
}

// Makes a term overwrite the sum of the earlier terms.
void OverwriteASum(Trace& trace) {
  const auto term = std::find_if(trace.ops.rbegin(), trace.ops.rend(), AddsUp);
  ASSERT_NE(term, trace.ops.rend());
  SetAttribute(*term, "accumulate", 0);
}

TEST_F(DividedInference, ATermThatOverwritesTheSumChangesBits) {
  const Trace trace = Lower(testing::Deep());
  const Bytes least = LeastMmcnnMemory(trace, device_.alignment).size;
  Policy in_core;
  Mistaken policy(registry_.Make("mmcnn"), OverwriteASum);
  EXPECT_NE(Run(trace, policy, least).maps, Run(trace, in_core, Bytes::GiB(1)).maps);
}

TEST_F(DividedInference, AMistakeByOneChannelOrRowChangesBits) {
  const Trace trace = Lower(testing::Chain());
  const Bytes least = LeastMmcnnMemory(trace, device_.alignment).size;
  Policy in_core;
  const Maps want = Run(trace, in_core, Bytes::GiB(1)).maps;
  EXPECT_EQ(Run(trace, *registry_.Make("mmcnn"), least).maps, want);
  for (const auto mistake : {MoveByOneChannel<&Tensor::alias_of>,
                             MoveByOneChannel<&Tensor::part_of>, ForgetOneRowOfAHalo}) {
    Mistaken policy(registry_.Make("mmcnn"), mistake);
    EXPECT_NE(Run(trace, policy, least).maps, want);
  }
}

}  // namespace
}  // namespace spillway::testing
