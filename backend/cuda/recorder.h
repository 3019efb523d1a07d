// The recorder, which measures every kernel of a trace on a real GPU and returns a cost table.
//
// Each distinct (signature, batch) is measured alone on the device. Its operands are random and
// share storage as the trace's tensors do. Repeats run back to back, so operands that fit into the
// L2 cache are warm. Times exclude host gaps: the stream is held busy until all launches of a
// measurement are enqueued. The header includes no CUDA.

#ifndef SPILLWAY_BACKEND_CUDA_RECORDER_H_
#define SPILLWAY_BACKEND_CUDA_RECORDER_H_

#include <cstdint>
#include <functional>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "sim/core/cost_table.h"
#include "traces/base/units.h"
#include "traces/trace.h"

namespace spillway::cuda {

// Progress that is reported before each entry with an empty note, and for each remark on an entry,
// such as a dropped algorithm and the reason. The views live until the callback returns.
struct RecordProgress {
  size_t entry = 0;    // from 0
  size_t entries = 0;  // number of entries
  std::string_view signature;
  int64_t batch = 0;
  std::string_view note;
};

struct RecordOptions {
  int device = 0;             // CUDA's number of the GPU
  std::string math = "fp32";  // "fp32" (fused multiply-add, no TF32) or "tf32"
  // A candidate is repeated until it has both `min_repeats` repeats, at least five, and `min_time`.
  // It stops earlier at `max_time` if it has five repeats, and at `max_repeats` if that is not less
  // than the minimum.
  int min_repeats = 10;
  int max_repeats = 200;
  Duration min_time = Duration::Milliseconds(50);
  Duration max_time = Duration::Milliseconds(500);
  uint64_t seed = 1;  // for the operands
  // The signatures and batches to record. A batch smaller than the op's own batch is a micro-batch.
  // If not set, every op is recorded with its own batch.
  std::optional<std::set<std::pair<std::string, int64_t>>> only;
  // If `verify`, an algorithm is dropped if one of its results differs from that of the entry's
  // first algorithm by more than `tolerance`. The tolerance is a fraction of the result's largest
  // element. If not set, it is 1e-3 for fp32 and 1e-2 for tf32.
  bool verify = true;
  std::optional<double> tolerance;
  Duration clock_warmup = Duration::Milliseconds(1000);  // GEMMs run first for so long
  std::function<void(const RecordProgress&)> progress;   // may be empty
  // Called with each entry as soon as it is measured, on the thread that records. It may be empty.
  std::function<void(const Provenance&, const CostEntry&)> measured;
};

// Measures the slots of `trace`. It is safe to call this from several threads for different
// devices. Algorithms that fail are dropped with a note: out of memory, not supported after all, or
// a result that is not finite. Throws `EnvironmentError` that names the missing part if there is no
// usable GPU, and `InputError` for an op that the kernel layer cannot execute. Throws `Error` if an
// op does not fit into device memory or no algorithm of a slot works.
CostTable Record(const Trace& trace, const RecordOptions& options);

// Returns for example "NVIDIA H200, 140 GiB, compute capability 9.0". Throws `EnvironmentError` if
// there is no usable GPU with number `device`.
std::string DescribeCudaDevice(int device = 0);

}  // namespace spillway::cuda

#endif  // SPILLWAY_BACKEND_CUDA_RECORDER_H_
