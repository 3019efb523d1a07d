#include "traces/import/pytorch_step.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <vector>

#include "tests/testing/files.h"
#include "tests/testing/lookup.h"
#include "traces/import/how_to_record.h"
#include "traces/liveness.h"

namespace spillway::testing {
namespace {

using ::spillway::testing::InputErrorOf;
using ::testing::ElementsAre;
using ::testing::IsEmpty;

constexpr int64_t kUs = 1000;

struct Ref {
  int64_t storage, bytes, offset = 0;
};

// The output of the two recorders for one step. Times are in microseconds; tensor elements have one
// byte.
class Step {
 public:
  explicit Step(bool gpu = true) : gpu_(gpu) {
    if (gpu) kineto_.device = "NVIDIA H200";
  }

  struct Node {
    std::string name;
    int64_t begin, end;
    std::vector<Ref> inputs = {}, outputs = {};
    std::string schema = "";
    int64_t parent = 0, sequence = -1;
    bool profiled = true;
  };
  // Adds a node and returns its number, by which the profiler knows the node too.
  int64_t Add(const Node& added) {
    ExecutionTrace::Node node;
    const int64_t id = std::ssize(execution_.nodes) + 1;
    node.id = node.record = id;
    node.parent = added.parent;
    node.sequence = added.sequence;
    node.name = added.name;
    node.schema = added.schema;
    for (const auto& [from, to] :
         {std::pair(&added.inputs, &node.inputs), std::pair(&added.outputs, &node.outputs)}) {
      for (const Ref& ref : *from) {
        to->push_back({ref.storage,
                       ref.offset,
                       ref.bytes,
                       1,
                       gpu_,
                       0,
                       static_cast<uint32_t>(&ref - from->data()),
                       {ref.bytes}});
      }
    }
    execution_.nodes.push_back(node);
    if (!added.profiled) return id;
    kineto_.operators.push_back({added.name, id, 100 + id, 1, added.begin * kUs, added.end * kUs});
    return id;
  }
  void Kernel(int64_t node, int64_t launched, int64_t begin, int64_t end, int64_t gpu = 0) {
    const int64_t correlation = std::ssize(kineto_.launches) + 1;
    kineto_.launches.push_back({correlation, launched * kUs});
    kineto_.activities.push_back({100 + node, correlation, gpu, 7, begin * kUs, end * kUs});
    kineto_.end = std::max(kineto_.end, end * kUs);
  }
  void Give(int64_t time, uint64_t address, int64_t bytes) {
    held_ += bytes;
    kineto_.memory.push_back(
        {std::ssize(kineto_.memory), time * kUs, 1, gpu_ ? 0 : -1, address, bytes, held_, 8192});
  }
  void Take(int64_t time, uint64_t address, int64_t bytes) { Give(time, address, -bytes); }

  ImportedStep Import() {
    std::ranges::stable_sort(kineto_.operators, {}, &KinetoTrace::Operator::begin);
    std::ranges::stable_sort(kineto_.memory, {}, &KinetoTrace::Memory::time);
    return ImportStep(kineto_, execution_, options_);
  }

  KinetoTrace kineto_;
  ExecutionTrace execution_;
  ImportOptions options_{"net",        2,        "PyTorch 2.11.0", Duration::Microseconds(99),
                         std::nullopt, "k.json", "e.json"};
  int64_t held_ = 1536;  // the two blocks of the weights and one block of no tensor

 private:
  const bool gpu_;
};

constexpr std::string_view kInPlace = "aten::f_(Tensor(a!) self) -> Tensor(a!)";

// The step y = relu_(mm(x, w)); s = sum(y's second half), its backward and w += dw. Kernels run
// after the host issued them; [..] is an operator, | the launch of its kernel. dw takes the block
// of y and is held to the end; w was held before.
//
//   time (us)     0    10   20   30   40   50   60   70   80   90   100  110  120
//   op 0          [   |]  randn -> x
//   op 1                    [   |]  in block h.0: mm x, w -> y
//   op 2                          [ |]  relu_ y
//   op 3                              [  |]  sum y -> s
//   op 4                                         [ |]  threshold_backward y -> dy
//   op 5                                              [   |]  mm x, dy -> dw
//   op 6                                                             [| ]  add_ w, dw
//   memory x       [-----------------------------------------------------]
//          y                 [----------------------]
//   workspace                 []  of op 1
//          s                          [----------------------------------]
//          dy                                    [---------]
//          dw                                          [-------------------------
//   kernels                      [0-------------[1---][2] [3]  [4][5---]      [6]
Step Drawn() {
  Step step;
  const int64_t randn = step.Add({"aten::randn", 0, 10, {}, {{2, 512}}});
  step.Give(2, 0x2000, 512);
  const int64_t block = step.Add({.name = "block: h.0", .begin = 20, .end = 39, .profiled = false});
  const int64_t mm = step.Add({.name = "aten::mm",
                               .begin = 20,
                               .end = 30,
                               .inputs = {{2, 512}, {1, 1024}},
                               .outputs = {{3, 512}},
                               .parent = block,
                               .sequence = 0});
  step.Give(22, 0x3000, 512);
  step.Give(24, 0x9000, 1024);
  step.Take(26, 0x9000, 1024);
  const int64_t relu = step.Add({.name = "aten::relu_",
                                 .begin = 32,
                                 .end = 38,
                                 .inputs = {{3, 512}},
                                 .outputs = {{3, 512}},
                                 .schema = std::string(kInPlace),
                                 .sequence = 1});
  const int64_t sum = step.Add({.name = "aten::sum",
                                .begin = 40,
                                .end = 48,
                                .inputs = {{3, 256, 256}},
                                .outputs = {{4, 4}},
                                .sequence = 2});
  step.Give(41, 0x4000, 512);
  const int64_t engine_relu =
      step.Add({"autograd::engine::evaluate_function: ReluBackward0", 60, 70});
  const int64_t relu_node = step.Add(
      {.name = "ReluBackward0", .begin = 61, .end = 69, .parent = engine_relu, .sequence = 1});
  const int64_t threshold = step.Add({.name = "aten::threshold_backward",
                                      .begin = 62,
                                      .end = 68,
                                      .inputs = {{3, 512}},
                                      .outputs = {{5, 512}},
                                      .parent = relu_node});
  step.Give(63, 0x5000, 512);
  step.Take(69, 0x3000, 512);
  const int64_t engine_mm = step.Add({.name = "autograd::engine::evaluate_function: MmBackward0",
                                      .begin = 72,
                                      .end = 84,
                                      .sequence = 0});
  const int64_t dmm = step.Add({.name = "aten::mm",
                                .begin = 73,
                                .end = 82,
                                .inputs = {{2, 512}, {5, 512}},
                                .outputs = {{3, 512}},
                                .parent = engine_mm});
  step.Give(74, 0x3000, 512);
  step.Take(83, 0x5000, 512);
  const int64_t optimizer =
      step.Add({.name = "Optimizer.step#SGD.step", .begin = 100, .end = 109, .profiled = false});
  const int64_t add = step.Add({.name = "aten::add_",
                                .begin = 102,
                                .end = 108,
                                .inputs = {{1, 1024}, {3, 512}},
                                .outputs = {{1, 1024}},
                                .schema = std::string(kInPlace),
                                .parent = optimizer});
  step.Take(110, 0x2000, 512);
  step.Take(110, 0x4000, 512);
  // The gaps between kernels are 1, 1, 3, 5 and 1 us. Before the last kernel the GPU waits for the
  // host.
  step.Kernel(randn, 8, 30, 60);
  step.Kernel(mm, 28, 61, 71);
  step.Kernel(relu, 36, 72, 77);
  step.Kernel(sum, 46, 80, 85);
  step.Kernel(threshold, 66, 90, 95);
  step.Kernel(dmm, 80, 96, 106);
  step.Kernel(add, 104, 120, 125);
  return step;
}

const Tensor& Find(const Trace& trace, std::string_view name) {
  return *std::ranges::find(trace.tensors, name, &Tensor::name);
}

// A storage is named after the first op that has it: x is randn.0, y is h.0/mm.1, w is
// h.0/mm.1.in1, and so on.
TEST(PyTorchImportTest, Ops) {
  const Trace trace = Drawn().Import().trace;
  struct Expected {
    const char* name;
    size_t layer;
    OpType type;
    Phase phase;
    std::vector<std::string> inputs, outputs;
    bool recomputable;
    double operators;
    int64_t time, host;
  };
  const std::vector<Expected> expected{
      {"randn.0", 0, OpType::kOther, Phase::kForward, {}, {"randn.0"}, false, 1, 30, 8},
      {"h.0/mm.1",
       1,
       OpType::kMatmul,
       Phase::kForward,
       {"randn.0", "h.0/mm.1.in1"},
       {"h.0/mm.1"},
       true,
       1,
       10,
       20},
      {"relu_.2", 2, OpType::kOther, Phase::kForward, {"h.0/mm.1"}, {"h.0/mm.1"}, false, 1, 5, 8},
      {"sum.3",
       3,
       OpType::kOther,
       Phase::kForward,
       {"h.0/mm.1[256:512]"},
       {"sum.3"},
       true,
       1,
       5,
       10},
      {"threshold_backward.4",
       2,
       OpType::kOther,
       Phase::kBackward,
       {"h.0/mm.1"},
       {"threshold_backward.4"},
       false,
       3,
       5,
       20},
      {"mm.5",
       1,
       OpType::kMatmul,
       Phase::kBackward,
       {"randn.0", "threshold_backward.4"},
       {"mm.5"},
       false,
       2,
       10,
       14},
      {"add_.6",
       4,
       OpType::kOther,
       Phase::kUpdate,
       {"h.0/mm.1.in1", "mm.5"},
       {"h.0/mm.1.in1"},
       false,
       1,
       5,
       24},
  };
  ASSERT_EQ(trace.ops.size(), expected.size());
  for (size_t i = 0; i < expected.size(); ++i) {
    const Expected& e = expected[i];
    const Op& op = trace.ops[i];
    SCOPED_TRACE(e.name);
    EXPECT_EQ(op.name, e.name);
    EXPECT_EQ(Index(op.layer), e.layer);
    EXPECT_EQ(op.type, e.type);
    EXPECT_EQ(op.phase, e.phase);
    EXPECT_EQ(op.batch, e.phase == Phase::kUpdate ? 1 : 2);
    EXPECT_EQ(Names(trace, op.inputs), e.inputs);
    EXPECT_EQ(Names(trace, op.outputs), e.outputs);
    EXPECT_EQ(op.recomputable, e.recomputable);
    EXPECT_EQ(op.FindAttribute("operators"), e.operators);
    EXPECT_EQ(op.recorded->time, Duration::Microseconds(e.time));
    EXPECT_EQ(op.recorded->gap, Duration::Microseconds(1));
    EXPECT_EQ(op.recorded->host, Duration::Microseconds(e.host));
    EXPECT_EQ(op.recorded->workspace, Bytes(i == 1 ? 1024 : 0));
  }
}

// The tensors have the types of the operands, and products the arithmetic of their first operand.
TEST(PyTorchImportTest, Types) {
  const auto import = [](DataType dtype, bool tf32) {
    Step step = Drawn();
    for (auto& node : step.execution_.nodes) {
      for (auto* refs : {&node.inputs, &node.outputs}) {
        for (auto& ref : *refs) ref.dtype = dtype;
      }
    }
    step.options_.tf32_matmuls = tf32;
    return step.Import().trace;
  };
  const auto arithmetic = [&](DataType dtype, bool tf32, size_t op = 1) {
    return import(dtype, tf32).ops[op].slots[0].arithmetic;
  };
  EXPECT_EQ(arithmetic(DataType::kBfloat16, false), Arithmetic::kBf16);
  EXPECT_EQ(arithmetic(DataType::kFloat16, true), Arithmetic::kFp16);
  EXPECT_EQ(arithmetic(DataType::kFloat8E4m3fn, true), Arithmetic::kFp8);
  EXPECT_EQ(arithmetic(DataType::kFloat32, true), Arithmetic::kTf32);
  EXPECT_EQ(arithmetic(DataType::kFloat32, false), Arithmetic::kFp32);
  EXPECT_EQ(arithmetic(DataType::kFloat64, true), Arithmetic::kFp32);
  EXPECT_EQ(arithmetic(DataType::kBfloat16, true, 2), Arithmetic::kFp32);  // relu_
  const Trace trace = import(DataType::kBfloat16, false);
  EXPECT_EQ(Find(trace, "h.0/mm.1").dtype, DataType::kBfloat16);
  EXPECT_EQ(Find(trace, "h.0/mm.1[256:512]").dtype, DataType::kBfloat16);
}

TEST(PyTorchImportTest, Tensors) {
  const Trace trace = Drawn().Import().trace;
  struct Expected {
    const char* name;
    TensorKind kind;
    int64_t size;
    std::optional<OpId> held_until = std::nullopt;
  };
  const std::vector<Expected> expected{
      {"randn.0", TensorKind::kInput, 512, OpId{6}},
      {"h.0/mm.1", TensorKind::kActivation, 512},
      {"sum.3", TensorKind::kActivation, 4, OpId{6}},
      {"threshold_backward.4", TensorKind::kGradient, 512},
      {"mm.5", TensorKind::kParameterGradient, 512},
      {"h.0/mm.1.in1", TensorKind::kParameter, 1024},
      {"h.0/mm.1[256:512]", TensorKind::kActivation, 256},
      {"unused", TensorKind::kOptimizerState, 512},
  };
  ASSERT_EQ(trace.tensors.size(), expected.size());
  for (size_t i = 0; i < expected.size(); ++i) {
    const Tensor& tensor = trace.tensors[i];
    EXPECT_EQ(tensor.name, expected[i].name);
    EXPECT_EQ(tensor.kind, expected[i].kind) << tensor.name;
    EXPECT_EQ(tensor.size, Bytes(expected[i].size)) << tensor.name;
    EXPECT_EQ(tensor.held_until, expected[i].held_until) << tensor.name;
  }
  const Tensor& view = Find(trace, "h.0/mm.1[256:512]");
  EXPECT_EQ(trace.tensor(*view.alias_of).name, "h.0/mm.1");
  EXPECT_EQ(view.offset, Bytes(256));
}

TEST(PyTorchImportTest, Whole) {
  const auto [trace, report] = Drawn().Import();
  EXPECT_EQ(trace.name, "net:2");
  EXPECT_EQ(trace.network, "net");
  EXPECT_EQ(trace.preset, "recorded");
  EXPECT_TRUE(trace.training);
  EXPECT_EQ(trace.recording,
            (Recording{"PyTorch 2.11.0", "NVIDIA H200", Duration::Microseconds(125),
                       Duration::Microseconds(99), Bytes(1536 + 2048), Bytes(8192)}));
  EXPECT_EQ(report.nodes, 12);
  EXPECT_EQ(report.operators, 10);
  EXPECT_EQ(report.joined, 10);
  EXPECT_EQ(report.saved, 2);  // x and y
  EXPECT_EQ(report.kernels, Duration::Microseconds(70));
  EXPECT_EQ(report.unjoined, Duration());
  EXPECT_EQ(report.unnamed, Bytes(0));
  EXPECT_EQ(report.unplaced, Bytes(0));
  EXPECT_EQ(report.unnamed_before, Bytes(512));
}

TEST(PyTorchImportTest, KernelsOfNoOperator) {
  Step step = Drawn();
  step.Kernel(900, 55, 86, 89);
  const auto [trace, report] = step.Import();
  ASSERT_EQ(trace.ops.size(), 8u);
  const Op& op = trace.ops[4];
  EXPECT_EQ(op.name, "kernel.4");
  EXPECT_EQ(op.phase, Phase::kForward);  // the phase of the launch before
  EXPECT_THAT(op.inputs, IsEmpty());
  EXPECT_THAT(op.outputs, IsEmpty());
  EXPECT_EQ(op.slots[0].signature, "kernel");
  EXPECT_EQ(report.unjoined, Duration::Microseconds(3));
  EXPECT_EQ(report.kernels, Duration::Microseconds(73));
}

// Memory that was allocated while `sum` ran, and is held beyond it, becomes an output of `sum`.
TEST(PyTorchImportTest, MemoryOfNoTensor) {
  Step step = Drawn();
  step.Give(43, 0x8000, 2048);
  step.Take(75, 0x8000, 2048);
  const auto [trace, report] = step.Import();
  EXPECT_EQ(report.unnamed, Bytes(2048));
  EXPECT_THAT(Names(trace, trace.ops[3].outputs), ElementsAre("sum.3", "sum.3.out1"));
  const Tensor& left = Find(trace, "sum.3.out1");
  EXPECT_EQ(left.size, Bytes(2048));
  EXPECT_EQ(left.held_until, OpId{4});
}

TEST(PyTorchImportTest, TensorsOfNoMemory) {
  Step step = Drawn();
  step.kineto_.memory.erase(step.kineto_.memory.begin() + 4);  // the allocation of s
  const auto [trace, report] = step.Import();
  EXPECT_EQ(report.unplaced, Bytes(4));
  EXPECT_EQ(trace.ops[3].outputs.size(), 1u);
}

TEST(PyTorchImportTest, AnOperatorIsOneNode) {
  Step step = Drawn();
  step.execution_.nodes.push_back(step.execution_.nodes[0]);
  step.execution_.nodes.back().id = 1000;
  const auto [trace, report] = step.Import();
  EXPECT_EQ(report.joined, report.operators);
  EXPECT_EQ(trace, Drawn().Import().trace);
}

// A snapshot tells how much of the held memory was requested; the rest was lost to rounding.
TEST(PyTorchImportTest, RequestedBefore) {
  Step step = Drawn();
  step.options_.requested_before = Bytes(1536 - 200);
  EXPECT_EQ(Find(step.Import().trace, "unused").size, Bytes(312));
  step.options_.requested_before = Bytes(1024);
  EXPECT_EQ(std::ranges::count(step.Import().trace.tensors, "unused", &Tensor::name), 0);
}

// If an operator launches kernels itself, the kernels of its inner operators belong to it.
TEST(PyTorchImportTest, KernelsOfInnerOperators) {
  for (const bool launches : {true, false}) {
    Step step;
    const int64_t outer = step.Add({"aten::outer", 0, 20, {{1, 512}}, {{2, 512}}});
    const int64_t inner = step.Add({.name = "aten::inner",
                                    .begin = 5,
                                    .end = 10,
                                    .inputs = {{1, 512}},
                                    .outputs = {{2, 512}},
                                    .parent = outer});
    step.Give(6, 0x2000, 512);
    if (launches) step.Kernel(outer, 3, 30, 32);
    step.Kernel(inner, 8, 33, 36);
    const Trace trace = step.Import().trace;
    ASSERT_EQ(trace.ops.size(), 1u);
    EXPECT_EQ(trace.ops[0].name, launches ? "outer.0" : "inner.0");
    EXPECT_EQ(trace.ops[0].recorded->time, Duration::Microseconds(launches ? 5 : 3));
    EXPECT_FALSE(trace.training);
  }
}

// Without a GPU, every operator that calls no other operator and creates or changes data is an op
// without a time.
TEST(PyTorchImportTest, WithoutGpu) {
  Step step(false);
  const int64_t linear = step.Add({"aten::linear", 0, 10, {{1, 512}}, {{2, 512}}});
  step.Add({.name = "aten::empty", .begin = 1, .end = 2, .outputs = {{2, 512}}, .parent = linear});
  step.Give(1, 0x2000, 512);
  step.Add({.name = "aten::mm",
            .begin = 3,
            .end = 9,
            .inputs = {{1, 512}},
            .outputs = {{2, 512}},
            .parent = linear});
  step.Add({"aten::view", 11, 12, {{2, 512}}, {{2, 512}}});
  step.Add({.name = "aten::relu_",
            .begin = 13,
            .end = 15,
            .inputs = {{2, 512}},
            .outputs = {{2, 512}},
            .schema = std::string(kInPlace)});
  const Trace trace = step.Import().trace;
  ASSERT_EQ(trace.ops.size(), 2u);
  EXPECT_EQ(trace.ops[0].name, "mm.0");
  EXPECT_EQ(trace.ops[1].name, "relu_.1");
  EXPECT_EQ(trace.ops[1].inputs, trace.ops[0].outputs);
  for (const Op& op : trace.ops) {
    EXPECT_EQ(*op.recorded, RecordedCost());
    EXPECT_THAT(op.attributes, IsEmpty());
  }
  EXPECT_EQ(trace.recording->device, "");
  EXPECT_EQ(trace.recording->step, Duration());
}

TEST(PyTorchImportTest, RefusesWhatIsNoStep) {
  const auto error = [](const auto& change, bool gpu = true) {
    Step step = gpu ? Drawn() : Step(false);
    change(step);
    return InputErrorOf([&] { step.Import(); });
  };
  const auto how_to = [](std::string_view message) {
    return fmt::format("{}{}", message, kHowToRecord);
  };
  const std::string different =
      how_to("k.json and e.json are of different runs or steps: 0 of 10 operators are in both");
  EXPECT_EQ(error([](Step& step) {
              for (auto& op : step.kineto_.operators) op.record += 1000;
            }),
            different);
  EXPECT_EQ(error([](Step& step) {
              for (auto& op : step.kineto_.operators) op.name += "!";
            }),
            different);
  EXPECT_EQ(error([](Step& step) {
              for (auto& op : step.kineto_.operators) op.record = 0;
            }),
            how_to("k.json: it was recorded without an execution trace ('Record function id' is "
                   "0), so that no operator can be found in e.json"));
  EXPECT_EQ(error([](Step& step) {
              for (auto& op : step.kineto_.operators) op.record = -1;
            }),
            how_to("k.json: its operators have no 'Record function id', which PyTorch 2.4 "
                   "introduced, so that no operator can be found in e.json"));
  EXPECT_EQ(error([](Step& step) { step.kineto_.memory.clear(); }),
            how_to("k.json: no memory events; record with profile_memory=True"));
  EXPECT_EQ(error([](Step& step) { step.kineto_.activities.clear(); }),
            how_to("k.json: memory events of a GPU but no kernels; record with the activity CUDA"));
  EXPECT_EQ(error([](Step& step) { step.Kernel(1, 111, 126, 127, 1); }),
            "k.json: activities of 2 GPUs, expected one: record one process for each GPU");
  EXPECT_EQ(error(
                [](Step& step) {
                  step.Add({"aten::empty", 0, 2, {}, {{1, 512}}});
                  step.Give(1, 0x1000, 512);
                },
                false),
            "e.json: no operator does anything");
}

TEST(PyTorchImportTest, CountsRequests) { EXPECT_EQ(RequestsOf(Drawn().kineto_), 6); }

// --- Recorded steps

// Returns the most bytes held at once if each storage lives until PyTorch freed it.
int64_t PeakHeld(const Trace& trace) {
  const Liveness liveness(trace);
  std::vector<int64_t> change(trace.ops.size() + 1);
  for (size_t i = 0; i < trace.tensors.size(); ++i) {
    const auto id = static_cast<TensorId>(i);
    const Tensor& tensor = trace.tensor(id);
    if (tensor.alias_of) continue;
    const bool stays =
        tensor.kind == TensorKind::kParameter || tensor.kind == TensorKind::kOptimizerState;
    const size_t begin = stays ? 0 : Index(*liveness.FirstUse(id));
    const size_t end = stays               ? trace.ops.size()
                       : tensor.held_until ? Index(*tensor.held_until) + 1
                                           : Index(*liveness.LastUse(id)) + 1;
    change[begin] += tensor.size.count();
    change[end] -= tensor.size.count();
  }
  int64_t held = 0, most = 0;
  for (size_t i = 0; i < trace.ops.size(); ++i) {
    held += change[i];
    most = std::max(most, held + trace.ops[i].recorded->workspace.count());
  }
  return most;
}

TEST(PyTorchImportTest, RecordedSteps) {
  struct Case {
    const char* name;
    int64_t peak;  // in bytes, counted by PyTorch's allocator
  };
  for (const Case& test : {Case{"gpt2-b4s512", 5114989576}, Case{"resnet50-b32", 3087486864}}) {
    SCOPED_TRACE(test.name);
    const auto path = [&](std::string_view kind) {
      return testing::InSource(
          fmt::format("tests/testing/recordings/pytorch/{}.{}.json.zst", test.name, kind));
    };
    TextStream kineto_text(path("kineto")), execution_text(path("et"));
    const KinetoTrace kineto = ReadKineto(kineto_text);
    const auto [trace, report] = ImportStep(kineto, ReadExecutionTrace(execution_text), {});
    EXPECT_EQ(report.broken_events, 0);
    EXPECT_EQ(report.broken_nodes, 0);
    EXPECT_EQ(report.joined, report.operators);
    EXPECT_EQ(report.unjoined, Duration());
    EXPECT_EQ(report.unnamed, Bytes(0));
    EXPECT_EQ(report.unplaced, Bytes(0));
    int64_t kernels = 0, recorded = 0;
    for (const auto& activity : kineto.activities) kernels += activity.end - activity.begin;
    for (const Op& op : trace.ops) recorded += op.recorded->time.picoseconds() / 1000;
    EXPECT_EQ(recorded, kernels);
    EXPECT_NEAR(static_cast<double>(PeakHeld(trace)), static_cast<double>(test.peak),
                0.01 * static_cast<double>(test.peak));
  }
}

}  // namespace
}  // namespace spillway::testing
