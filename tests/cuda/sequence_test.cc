// Compares the CUDA kernels of the ops of transformers with the CPU kernels in double, on a real
// GPU, in float32 and bfloat16.

#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <map>
#include <random>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "backend/cpu/kernels.h"
#include "tests/cuda/kernels_fixture.h"
#include "traces/lowering/lowering.h"
#include "traces/ops/op_table.h"
#include "traces/zoo/zoo.h"

namespace spillway::testing {
namespace {

float FromBf16(uint16_t bits) { return std::bit_cast<float>(uint32_t{bits} << 16); }
uint16_t ToBf16(float value) {  // rounds to nearest, to even
  const auto bits = std::bit_cast<uint32_t>(value);
  return static_cast<uint16_t>((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

// The bytes of a storage on the GPU, from numbers.
std::vector<std::byte> ToBytes(const Array& values, DataType type) {
  std::vector<std::byte> bytes(values.size() * static_cast<size_t>(ElementSize(type)));
  for (size_t i = 0; i < values.size(); ++i) {
    const auto value = static_cast<float>(values[i]);
    if (type == DataType::kBfloat16) {
      reinterpret_cast<uint16_t*>(bytes.data())[i] = ToBf16(value);
    } else if (type == DataType::kInt32) {
      reinterpret_cast<int32_t*>(bytes.data())[i] = static_cast<int32_t>(value);
    } else {
      reinterpret_cast<float*>(bytes.data())[i] = value;
    }
  }
  return bytes;
}

Array FromBytes(const std::vector<std::byte>& bytes, DataType type) {
  Array values(bytes.size() / static_cast<size_t>(ElementSize(type)));
  for (size_t i = 0; i < values.size(); ++i) {
    values[i] = type == DataType::kBfloat16
                    ? FromBf16(reinterpret_cast<const uint16_t*>(bytes.data())[i])
                    : reinterpret_cast<const float*>(bytes.data())[i];
  }
  return values;
}

// Returns the update of the master weights alone, which is what the CPU kernels compute.
Op WithoutShortParameters(Op op) {
  std::vector<TensorId> inputs, outputs;
  for (size_t i = 0; i < op.inputs.size(); i += 6) {
    for (const size_t at : {2, 1, 3, 4, 5}) inputs.push_back(op.inputs[i + at]);
  }
  for (size_t i = 0; i < op.outputs.size(); i += 5) {
    for (const size_t at : {1, 2, 3, 4}) outputs.push_back(op.outputs[i + at]);
  }
  op.inputs = std::move(inputs);
  op.outputs = std::move(outputs);
  for (Attribute& attribute : op.attributes) {
    if (attribute.name == "master") attribute.value = 0;
  }
  return op;
}

class SequenceKernelsTest : public KernelsTest {
 protected:
  // The numbers in each storage of an op's operands.
  using Storages = std::map<TensorId, Array>;

  // Returns the type of the elements of a storage. Traces do not say that labels are whole numbers.
  static DataType TypeOf(const Trace& trace, TensorId root) {
    const Tensor& tensor = trace.tensor(root);
    return tensor.name.starts_with("labels") ? DataType::kInt32 : tensor.dtype;
  }

  static Bytes SizeOf(const Trace& trace, TensorId root) { return trace.tensor(root).size; }

  Storages Draw(const Trace& trace, const Op& op) {
    Storages storages;
    const auto draw = [&](TensorId id, double low, double high) {
      const Tensor& root = trace.tensor(trace.Root(id));
      std::uniform_real_distribution<float> uniform(static_cast<float>(low),
                                                    static_cast<float>(high));
      Array values(static_cast<size_t>(root.size.count() / ElementSize(root.dtype)));
      for (double& value : values) {
        value = uniform(random_);
        if (root.dtype == DataType::kBfloat16) value = FromBf16(ToBf16(static_cast<float>(value)));
      }
      storages[trace.Root(id)] = values;
    };
    for (const auto* list : {&op.inputs, &op.outputs}) {
      for (const TensorId id : *list) draw(id, -1, 1);
    }
    const auto draw_role = [&](Role role, double low, double high, bool whole) {
      const bool several = op.phase == Phase::kUpdate && StepOf(op).inputs.repeats;
      const size_t parts = several ? ParameterCount(op, op.inputs.size(), op.outputs.size()) : 1;
      for (size_t part = 0; part < parts; ++part) {
        const auto i = InputIndex(op, role, part);
        if (!i) continue;
        draw(op.inputs[*i], low, high);
        if (!whole) continue;
        for (double& value : storages[trace.Root(op.inputs[*i])]) value = std::floor(value);
      }
    };
    if (InputIndex(op, Role::kIndices)) {
      draw_role(Role::kIndices, 0, op.NumberAttribute("vocabulary") * 0.999, true);
    }
    if (InputIndex(op, Role::kLabels)) {
      draw_role(Role::kLabels, 0, op.NumberAttribute("elements") * 0.999, true);
    }
    if (op.phase != Phase::kForward) draw_role(Role::kInvStd, 0.5, 1.5, false);
    draw_role(Role::kSecondMoment, 0.1, 1, false);
    draw_role(Role::kSquareSum, 0.1, 1, false);
    draw_role(Role::kStep, 0, 5, true);
    return storages;
  }

  // Runs the op in double.
  static void RunOnCpu(const Trace& trace, const Op& op, Storages& storages) {
    std::map<TensorId, std::vector<std::byte>> memory;
    const auto bytes = [](const Trace& in, TensorId root, int64_t elements) {
      return static_cast<size_t>(elements) * (TypeOf(in, root) == DataType::kInt32 ? 4 : 8);
    };
    for (const auto& [root, values] : storages) {
      auto& to = memory[root];
      to.resize(bytes(trace, root, static_cast<int64_t>(values.size())) + 64);
      for (size_t i = 0; i < values.size(); ++i) {
        if (TypeOf(trace, root) == DataType::kInt32) {
          reinterpret_cast<int32_t*>(to.data())[i] = static_cast<int32_t>(values[i]);
        } else {
          reinterpret_cast<double*>(to.data())[i] = values[i];
        }
      }
    }
    const auto spans = [&](const std::vector<TensorId>& ids) {
      std::vector<std::span<std::byte>> list;
      for (const TensorId id : ids) {
        const Tensor& tensor = trace.tensor(id);
        const TensorId root = trace.Root(id);
        const int64_t first = trace.OffsetInStorage(id).count() / ElementSize(tensor.dtype);
        const int64_t count = tensor.size.count() / ElementSize(tensor.dtype);
        list.push_back(std::span(memory.at(root))
                           .subspan(bytes(trace, root, first), bytes(trace, root, count)));
      }
      return list;
    };
    const bool master = op.Flag("master");
    const Op run = master ? WithoutShortParameters(op) : op;
    RunOp<double>(run, {}, spans(run.inputs), spans(run.outputs), kSeed);
    for (auto& [root, values] : storages) {
      if (TypeOf(trace, root) == DataType::kInt32) continue;
      const auto* from = reinterpret_cast<const double*>(memory.at(root).data());
      std::copy_n(from, values.size(), values.begin());
    }
    for (size_t i = 0; master && i < op.outputs.size(); i += 5) {
      storages[trace.Root(op.outputs[i])] = storages[trace.Root(op.outputs[i + 1])];
    }
  }

  // Runs the op on the GPU. `algorithms` are those of its slots.
  Storages RunOnGpu(const Trace& trace, const Op& op, Storages storages,
                    const std::vector<std::string>& algorithms, const std::vector<int64_t>& parts) {
    std::map<TensorId, DeviceBuffer> memory;
    for (const auto& [root, values] : storages) {
      const std::vector<std::byte> bytes = ToBytes(values, TypeOf(trace, root));
      DeviceBuffer& to = memory[root] = DeviceBuffer(SizeOf(trace, root));
      SPILLWAY_CUDA_CALL(cudaMemcpy(to.data(), bytes.data(), bytes.size(), cudaMemcpyHostToDevice));
    }
    const auto ranges = [&](const std::vector<TensorId>& ids) {
      std::vector<DeviceRange> list;
      for (const TensorId id : ids) {
        const Tensor& tensor = trace.tensor(id);
        list.push_back({memory.at(trace.Root(id)).data() + trace.OffsetInStorage(id).count(),
                        tensor.size, tensor.dtype});
      }
      return list;
    };
    const std::vector<DeviceRange> inputs = ranges(op.inputs), outputs = ranges(op.outputs);
    for (size_t slot = 0; slot < op.slots.size(); ++slot) {
      int64_t first = 0;
      for (const int64_t batch : parts) {
        Bytes needed;
        for (const Candidate& candidate :
             kernels_->Candidates(op, slot, batch, TypesOf(trace, op))) {
          needed = std::max(needed, candidate.workspace);
        }
        const DeviceBuffer workspace(needed);
        kernels_->Launch(op,
                         {.slot = slot,
                          .algorithm = algorithms[slot],
                          .first = first,
                          .batch = batch,
                          .inputs = inputs,
                          .outputs = outputs,
                          .workspace = workspace.range()},
                         nullptr);
        SPILLWAY_CUDA_CALL(cudaDeviceSynchronize());
        first += batch;
      }
    }
    for (auto& [root, values] : storages) {
      if (TypeOf(trace, root) == DataType::kInt32) continue;
      std::vector<std::byte> bytes(static_cast<size_t>(SizeOf(trace, root).count()));
      SPILLWAY_CUDA_CALL(
          cudaMemcpy(bytes.data(), memory.at(root).data(), bytes.size(), cudaMemcpyDeviceToHost));
      values = FromBytes(bytes, trace.tensor(root).dtype);
    }
    return storages;
  }

  static OperandTypes TypesOf(const Trace& trace, const Op& op) {
    OperandTypes types;
    for (const TensorId id : op.inputs) types.inputs.push_back(trace.tensor(id).dtype);
    for (const TensorId id : op.outputs) types.outputs.push_back(trace.tensor(id).dtype);
    return types;
  }

  // Fails unless each element of the outputs differs from `want` by at most `tolerance` times the
  // largest magnitude.
  static void ExpectClose(const Trace& trace, const Op& op, const Storages& got,
                          const Storages& want, double tolerance, const std::string& what) {
    for (size_t i = 0; i < op.outputs.size(); ++i) {
      const TensorId root = trace.Root(op.outputs[i]);
      const Array& values = want.at(root);
      double largest = 0, worst = 0;
      size_t at = 0;
      for (size_t j = 0; j < values.size(); ++j) {
        largest = std::max(largest, std::abs(values[j]));
        const double error = std::abs(got.at(root)[j] - values[j]);
        if (error <= worst) continue;  // not for NaN
        worst = error;
        at = j;
        if (std::isnan(error)) break;
      }
      ASSERT_LE(worst, tolerance * largest)
          << trace.name << " " << op.name << ' ' << what << ": output " << i << " of "
          << op.outputs.size() << ", element " << at << " of " << values.size() << ": got "
          << got.at(root)[at] << ", want " << values[at];
    }
  }

  void Check(const Trace& trace, const Op& op, double tolerance) {
    const Storages drawn = Draw(trace, op);
    Storages want = drawn;
    RunOnCpu(trace, op, want);
    const std::vector<std::string> usual(op.slots.size(), "default");
    const Storages got = RunOnGpu(trace, op, drawn, usual, {op.batch});
    ExpectClose(trace, op, got, want, tolerance, "");
    if (HasFatalFailure()) return;
    EXPECT_EQ(RunOnGpu(trace, op, drawn, usual, {op.batch}), got) << op.name << ": not repeatable";
    if (op.batch > 1 && !Holds(op, StepOf(op).whole_batch)) {
      ExpectClose(trace, op, RunOnGpu(trace, op, drawn, usual, {1, op.batch - 1}), want, tolerance,
                  "in parts");
    }
    for (const Candidate& candidate : kernels_->Candidates(op, 0, op.batch, TypesOf(trace, op))) {
      ExpectClose(trace, op, RunOnGpu(trace, op, drawn, {candidate.algorithm}, {op.batch}), want,
                  tolerance, candidate.algorithm);
    }
  }

  // Checks each op of the network's trace that differs from the ops before it in more than the
  // layer.
  void CheckNetwork(const Network& network, LoweringOptions options, double tolerance) {
    const Trace trace = LowerNetwork(network, options);
    std::set<std::string> seen;
    for (const Op& op : trace.ops) {
      if (op.type == OpType::kConv2d || op.type == OpType::kFork) continue;
      std::string kind = op.slots[0].signature;
      for (const Attribute& attribute : op.attributes) {
        kind += " " + attribute.name + "=" + std::to_string(attribute.value);
      }
      for (const DataType type : TypesOf(trace, op).inputs) kind += Name(type);
      if (seen.insert(kind).second) Check(trace, op, tolerance);
      if (HasFatalFailure()) return;
    }
  }

  // Checks the normalisations of a network without products of matrices.
  void CheckNorm(OpType type, int64_t width, Precision precision = Precision::kFp32,
                 double tolerance = 1e-5) {
    Network network = Network::OfTokens("norm", 3);
    const LayerNode x = network.Embedding("words", network.image(), 5, width);
    const LayerNode y = type == OpType::kLayerNorm ? network.LayerNorm("norm", x, 1e-5)
                                                   : network.RmsNorm("norm", x, 1e-5);
    network.SoftmaxLoss("loss", y);
    CheckNetwork(network, {.batch = 2, .precision = precision}, tolerance);
  }

  void CheckNetworks(Precision precision, double tolerance) {
    constexpr AttentionKind kMath = AttentionKind::kMath;
    const auto check = [&](const Network& network, int64_t batch, bool training = true,
                           OpType rule = OpType::kAdamW) {
      LoweringOptions options{.batch = batch, .training = training, .precision = precision};
      if (training) options.optimizer = rule;
      CheckNetwork(network, options, tolerance);
    };
    check(BuildGpt("gpt", 7, {.width = 12, .layers = 1, .heads = 3, .vocabulary = 11}, kMath), 2);
    check(BuildGpt("one", 1, {.width = 1, .layers = 1, .heads = 1, .vocabulary = 1}, kMath), 1,
          true, OpType::kAdam);
    check(BuildGpt("odd", 33, {.width = 39, .layers = 1, .heads = 1, .vocabulary = 129}, kMath), 3);
    check(BuildGpt("wide", 64, {.width = 256, .layers = 1, .heads = 4, .vocabulary = 512}, kMath),
          4, true, OpType::kSgd);
    check(BuildGpt("inferred", 5, {.width = 8, .layers = 1, .heads = 2, .vocabulary = 9}, kMath), 2,
          false);
    check(BuildBert("bert", 9, {.width = 16, .layers = 1, .heads = 2, .vocabulary = 21}, kMath), 2);
    check(BuildVit("vit", 20, {.width = 24, .layers = 1, .heads = 2, .patch = 5}, kMath), 2);
    check(BuildLlama(
              "llama", 5,
              {.width = 24, .layers = 1, .heads = 6, .kv_heads = 2, .ffn = 21, .vocabulary = 17},
              kMath),
          2);
    check(BuildLlama("tied", 40,
                     {.width = 44,
                      .layers = 1,
                      .heads = 2,
                      .kv_heads = 1,
                      .ffn = 64,
                      .vocabulary = 100,
                      .tied = true},
                     kMath),
          2);
    for (const OpType type : {OpType::kLayerNorm, OpType::kRmsNorm}) {
      for (const int64_t width : {700, 1100}) CheckNorm(type, width, precision, tolerance);
    }
  }
};

// The gradient of the embedding has several shares and a rest.
TEST_F(SequenceKernelsTest, ComputeMicroBatchesClippingAndChunks) {
  const Network network = BuildGpt(
      "gpt", 7, {.width = 67, .layers = 1, .heads = 1, .vocabulary = 1001}, AttentionKind::kMath);
  for (const auto& [precision, tolerance] :
       {std::pair(Precision::kFp32, 1e-5), {Precision::kBf16, 3.0 / 256}}) {
    CheckNetwork(
        network,
        {.batch = 2, .precision = precision, .accumulate = 2, .clip_norm = 0.1, .loss_chunks = 3},
        tolerance);
  }
}

TEST_F(SequenceKernelsTest, ComputeAsOnTheCpu) { CheckNetworks(Precision::kFp32, 1e-5); }

// Three units in the last place of bfloat16 at the largest element.
TEST_F(SequenceKernelsTest, ComputeInBfloat16) { CheckNetworks(Precision::kBf16, 3.0 / 256); }

// Three units in the last place, as the probabilities are rounded, too.
TEST_F(SequenceKernelsTest, FuseAttentionInBfloat16) {
  constexpr AttentionKind kFused = AttentionKind::kFused;
  const GptSpec gpt{.width = 64, .layers = 1, .heads = 2, .vocabulary = 9};
  LlamaSpec llama{.width = 64, .layers = 1, .heads = 4, .kv_heads = 2, .ffn = 24, .vocabulary = 9};
  // The library's tests have more shapes. Here, each one costs seconds for building its graphs.
  for (const Network& network :
       {BuildGpt("gpt", 128, gpt, kFused), BuildBert("bert", 50, gpt, kFused),
        BuildLlama("one", 1, llama, kFused), BuildLlama("llama", 50, llama, kFused)}) {
    CheckNetwork(network, {.batch = 2, .precision = Precision::kBf16}, 3.0 / 256);
    if (HasFatalFailure()) return;
  }
  EXPECT_THROW(CheckNetwork(BuildGpt("gpt", 8, gpt, kFused), {.batch = 1}, 1e-5), InputError);
}

// The rows of a word that occurs often are added in their order.
TEST_F(SequenceKernelsTest, EmbeddingOfFewWords) {
  const Network network = BuildGpt(
      "few", 600, {.width = 4, .layers = 0, .heads = 1, .vocabulary = 2}, AttentionKind::kMath);
  CheckNetwork(network, {.batch = 2}, 1e-5);
}

TEST_F(SequenceKernelsTest, LongRows) {
  for (const OpType type : {OpType::kLayerNorm, OpType::kRmsNorm}) {
    for (const int64_t width : {2052, 5000, 9001, 32768}) {
      CheckNorm(type, width);
      if (HasFatalFailure()) return;
    }
    EXPECT_THROW(CheckNorm(type, 32769), InputError);
  }
}

}  // namespace
}  // namespace spillway::testing
