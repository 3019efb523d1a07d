// Makes a trace of one training step that PyTorch ran from its profiler's trace and its execution
// trace.
//
// With a GPU, the trace has one op for each operator that launched work on the GPU, in the order in
// which the host launched it. The op's time is the time of its kernels. Without a GPU, it has one
// op for each operator that calls no other operator and moves data. A tensor is a storage, or a
// part of one that an op uses. It lives as long as PyTorch held it (`Tensor::held_until`).
//
// Nothing that cannot be joined is dropped, and the report counts it: kernels without operator
// become ops without operands, and memory without tensor becomes a tensor that stays or a
// workspace.

#ifndef SPILLWAY_TRACES_IMPORT_PYTORCH_STEP_H_
#define SPILLWAY_TRACES_IMPORT_PYTORCH_STEP_H_

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>

#include "traces/base/units.h"
#include "traces/import/execution_trace.h"
#include "traces/import/kineto.h"
#include "traces/trace.h"

namespace spillway::traces {

struct ImportOptions {
  std::string network;  // "gpt2"; the trace's name is "gpt2:4"
  int64_t batch = 1;    // samples per step, which the files do not contain
  std::string framework = "PyTorch";
  Duration plain_step = {};  // the time of a step without the profiler; 0: not known
  // Requested bytes that were held when the step began, if a snapshot tells. The profiler knows
  // this size only rounded to blocks.
  std::optional<Bytes> requested_before = {};
  std::string kineto_file = "the Kineto trace", execution_trace_file = "the execution trace";
  // True if products of float32 matrices, or convolutions, ran in TF32.
  bool tf32_matmuls = false, tf32_convolutions = false;
};

struct ImportReport {
  int64_t nodes = 0, broken_nodes = 0;  // nodes in the execution trace
  int64_t broken_events = 0;            // broken events of the profiler
  int64_t operators = 0, joined = 0;    // operators of the profiler, and how many are also nodes
  int64_t saved = 0;                    // storages of forward that backward reads
  Duration kernels;                     // sum of the kernels' times on the GPU
  Duration unjoined;                    // time of kernels without operator
  Bytes peak_allocated;                 // peak bytes of the allocator
  Bytes unnamed_before;                 // held before and throughout the step, used by no op
  Bytes unnamed;                        // allocated in the step, held across ops, used by no op
  Bytes unplaced;                       // tensors for which no allocation was found
};

struct ImportedStep {
  Trace trace;
  ImportReport report;
};

// Throws `InputError` if the two traces are of different runs, have no memory events, or are of
// several GPUs.
ImportedStep ImportStep(const KinetoTrace& kineto, const ExecutionTrace& execution,
                        const ImportOptions& options);

// Facts from a memory snapshot of the same program. The last iteration is the one that made the
// last `RequestsOf` the profile.
struct SnapshotPeaks {
  Bytes last_requested;    // peak requested bytes in the last iteration
  Bytes held_before_last;  // requested bytes held when the last iteration began
  Bytes reserved;          // peak bytes of the recorded segments
};
// Returns the number of memory requests on GPUs in a step.
int64_t RequestsOf(const KinetoTrace& kineto);

// Returns the peaks on the GPU of the profile. Throws `InputError` if the snapshot cannot be read
// or has fewer requests than the profile.
SnapshotPeaks PeaksOf(const std::filesystem::path& snapshot, const KinetoTrace& kineto);

}  // namespace spillway::traces

#endif  // SPILLWAY_TRACES_IMPORT_PYTORCH_STEP_H_
