// Makes a trace of one training step that PyTorch has run, from what its profiler and its execution
// trace say of it.
//
// One op for each operator that launched work on the GPU, in the order in which the host launched
// it, with the time of its kernels; without a GPU one for each operator that calls no other and
// moves data. A tensor is a storage, or a part of one that an op uses. It lives as long as PyTorch
// held it (`Tensor::held_until`). What the files do not join is not dropped: kernels of no operator
// become ops without operands, memory of no tensor becomes a tensor that stays or a workspace, and
// the report counts both.

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

namespace spillway {

struct ImportOptions {
  std::string network;  // "gpt2"; the trace's name is "gpt2:4"
  int64_t batch = 1;    // samples of a step; the files do not say
  std::string framework = "PyTorch";
  Duration plain_step = {};  // of a step without the profiler; 0: not known
  // What was requested and held when the step began, where a snapshot tells; the profiler knows it
  // rounded to blocks.
  std::optional<Bytes> requested_before = {};
  std::string kineto_file = "the Kineto trace", execution_trace_file = "the execution trace";
};

struct ImportReport {
  int64_t nodes = 0, broken_nodes = 0;  // of the execution trace
  int64_t broken_events = 0;            // of the profiler
  int64_t operators = 0, joined = 0;    // of the profiler, and those that are nodes too
  int64_t saved = 0;                    // storages of forward that backward reads
  Duration kernels;                     // the sum of their times on the GPU
  Duration unjoined;                    // of these, of no operator
  Bytes peak_allocated;                 // the most that the allocator had given out
  Bytes unnamed_before;                 // held before and after that no operator uses
  Bytes unnamed;                        // given out in the step, held over ops, used by none
  Bytes unplaced;                       // of tensors for which no memory was given out
};

struct ImportedStep {
  Trace trace;
  ImportReport report;
};

// Throws `InputError` if the two are of different runs, have no memory events, or are of several
// GPUs.
ImportedStep ImportStep(const KinetoTrace& kineto, const ExecutionTrace& execution,
                        const ImportOptions& options);

// What a memory snapshot says of the same program. Its last iteration made so many requests.
struct SnapshotPeaks {
  Bytes last_requested;    // the most that was requested at once in it
  Bytes held_before_last;  // requested and held when the last iteration began
  Bytes reserved;          // by the segments recorded
};
// Throws `InputError` if the snapshot cannot be read or has fewer requests.
SnapshotPeaks PeaksOf(const std::filesystem::path& snapshot, int64_t requests);

// The requests for memory of a step.
int64_t RequestsOf(const KinetoTrace& kineto);

}  // namespace spillway

#endif  // SPILLWAY_TRACES_IMPORT_PYTORCH_STEP_H_
