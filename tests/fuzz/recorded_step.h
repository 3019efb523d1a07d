// Helpers for the targets of PyTorch's traces: a small training step, recorded by both of PyTorch's
// recorders, and the properties of the import of any two files.

#ifndef SPILLWAY_TESTS_FUZZ_RECORDED_STEP_H_
#define SPILLWAY_TESTS_FUZZ_RECORDED_STEP_H_

#include <optional>
#include <string>
#include <string_view>

#include "tests/fuzz/property.h"
#include "traces/format.h"
#include "traces/import/pytorch_step.h"

namespace spillway::fuzz {

// The step computes y = mm(x, w), its backward and the update of w.
constexpr std::string_view kKineto =
    R"json({"deviceProperties": [{"id": 0, "name": "GPU"}], "traceEvents": [
{"ph": "X", "cat": "cpu_op", "name": "aten::mm", "tid": 1, "ts": 10.000, "dur": 9.000,
 "args": {"External id": 11, "Record function id": 1}},
{"ph": "X", "cat": "cpu_op", "name": "autograd::engine::evaluate_function: MmBackward0", "tid": 1, "ts": 20.000, "dur": 9.000,
 "args": {"External id": 12, "Record function id": 2}},
{"ph": "X", "cat": "cpu_op", "name": "aten::mm", "tid": 1, "ts": 21.000, "dur": 7.000,
 "args": {"External id": 13, "Record function id": 3}},
{"ph": "X", "cat": "cpu_op", "name": "aten::add_", "tid": 1, "ts": 30.000, "dur": 9.000,
 "args": {"External id": 14, "Record function id": 4}},
{"ph": "X", "cat": "cuda_runtime", "name": "launch", "ts": 14.000, "dur": 1.000,
 "args": {"External id": 11, "correlation": 1}},
{"ph": "X", "cat": "kernel", "name": "gemm", "ts": 16.000, "dur": 9.500,
 "args": {"External id": 11, "correlation": 1, "device": 0, "stream": 7}},
{"ph": "X", "cat": "cuda_runtime", "name": "launch", "ts": 23.000, "dur": 1.000,
 "args": {"External id": 13, "correlation": 2}},
{"ph": "X", "cat": "kernel", "name": "gemm", "ts": 26.000, "dur": 9.500,
 "args": {"External id": 13, "correlation": 2, "device": 0, "stream": 7}},
{"ph": "X", "cat": "gpu_memset", "name": "set", "ts": 37.000, "dur": 1.500,
 "args": {"External id": 14, "device": 0, "stream": 7}},
{"ph": "i", "name": "[memory]", "tid": 1, "ts": 11.000, "args": {"Total Reserved": 4096,
 "Total Allocated": 2048, "Bytes": 512, "Device Id": 0, "Device Type": 1, "Addr": 4096, "Ev Idx": 1}},
{"ph": "i", "name": "[memory]", "tid": 1, "ts": 12.000, "args": {"Total Reserved": 4096,
 "Total Allocated": 2560, "Bytes": 512, "Device Id": 0, "Device Type": 1, "Addr": 8192, "Ev Idx": 2}},
{"ph": "i", "name": "[memory]", "tid": 1, "ts": 13.000, "args": {"Total Reserved": 4096,
 "Total Allocated": 2048, "Bytes": -512, "Device Id": 0, "Device Type": 1, "Addr": 8192, "Ev Idx": 3}},
{"ph": "i", "name": "[memory]", "tid": 1, "ts": 22.000, "args": {"Total Reserved": 4096,
 "Total Allocated": 2560, "Bytes": 512, "Device Id": 0, "Device Type": 1, "Addr": 8192, "Ev Idx": 4}},
{"ph": "i", "name": "[memory]", "tid": 1, "ts": 35.000, "args": {"Total Reserved": 4096,
 "Total Allocated": 2048, "Bytes": -512, "Device Id": 0, "Device Type": 1, "Addr": 4096, "Ev Idx": 5}}
]})json";
constexpr std::string_view kExecutionTrace = R"json({"schema": "1.1.1-chakra.0.0.4", "nodes": [
{"id": 2, "name": "aten::mm", "ctrl_deps": 1,
 "inputs": {"values": [[3,4,0,16,4,"cuda:0"],[5,6,0,64,4,"cuda:0"]], "shapes": [[2,8],[8,8]]},
 "outputs": {"values": [[7,8,0,16,4,"cuda:0"]], "shapes": [[2,8]]},
 "attrs": [{"name": "rf_id", "value": 1},{"name": "seq_id", "value": 5},
 {"name": "op_schema", "value": "aten::mm(Tensor self, Tensor mat2) -> Tensor"}]},
{"id": 9, "name": "autograd::engine::evaluate_function: MmBackward0", "ctrl_deps": 1,
 "attrs": [{"name": "rf_id", "value": 2},{"name": "seq_id", "value": 5}]},
{"id": 10, "name": "aten::mm", "ctrl_deps": 9,
 "inputs": {"values": [[3,4,0,16,4,"cuda:0"],[7,8,8,8,4,"cuda:0"]], "shapes": [[8,2],[2,4]]},
 "outputs": {"values": [[11,12,0,64,4,"cuda:0"]], "shapes": [[8,8]]},
 "attrs": [{"name": "rf_id", "value": 3},{"name": "seq_id", "value": -1}]},
{"id": 13, "name": "Optimizer.step#SGD.step", "ctrl_deps": 1},
{"id": 14, "name": "aten::add_", "ctrl_deps": 13,
 "inputs": {"values": [[[5,6,0,64,4,"cuda:0"]],[11,12,0,64,4,"cuda:0"],1], "shapes": [[[8,8]],[8,8],[]]},
 "outputs": {"values": [], "shapes": []},
 "attrs": [{"name": "rf_id", "value": 4},
 {"name": "op_schema", "value": "aten::_foreach_add_(Tensor(a!)[] self, Tensor other) -> ()"}]}
]})json";

inline void CheckImport(const KinetoTrace& kineto, const ExecutionTrace& execution) {
  std::optional<ImportedStep> step;
  if (!Runs([&] { step = ImportStep(kineto, execution, {}); })) return;
  const Trace& trace = step->trace;
  const ImportReport& report = step->report;
  trace.Validate();
  SPILLWAY_CHECK(report.joined <= report.operators && report.unjoined <= report.kernels);
  for (const Bytes size : {report.unnamed_before, report.unnamed, report.unplaced}) {
    SPILLWAY_CHECK(size >= Bytes(0));
  }
  Duration kernels;
  for (const auto& activity : kineto.activities) {
    kernels += Duration::Nanoseconds(activity.end - activity.begin);
  }
  SPILLWAY_CHECK(report.kernels == kernels);
  for (const Op& op : trace.ops) kernels -= op.recorded->time;
  SPILLWAY_CHECK(kernels == Duration());
  std::string text;
  if (!Runs([&] { text = FormatTrace(trace); })) return;
  SPILLWAY_CHECK(ParseTrace(text, "trace") == trace);
}

// Reads both texts and imports them together.
inline void Import(std::string_view kineto_text, std::string_view execution_text) {
  std::optional<KinetoTrace> kineto;
  std::optional<ExecutionTrace> execution;
  Accepts("kineto", "", [&] {
    TextStream stream(std::string(kineto_text), "kineto");
    kineto = ReadKineto(stream);
  });
  Accepts("execution", "", [&] {
    TextStream stream(std::string(execution_text), "execution");
    execution = ReadExecutionTrace(stream);
  });
  if (kineto && execution) CheckImport(*kineto, *execution);
}

}  // namespace spillway::fuzz

#endif  // SPILLWAY_TESTS_FUZZ_RECORDED_STEP_H_
