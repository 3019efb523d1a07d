// The recorder: measures every kernel of a trace on a real GPU and returns a cost table.
//
// Each distinct (signature, batch) is measured alone on the device, on random operands that share
// storage as the trace's tensors do, with repeats back to back; operands that fit the L2 cache are
// therefore warm. Times exclude host gaps: the stream is held busy until all launches of a
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

namespace spillway {

// Reported before each entry with an empty note, and for each remark on an entry: an algorithm that
// was dropped and why. The views live until the callback returns.
struct RecordProgress {
  size_t entry = 0;    // from 0
  size_t entries = 0;  // how many there are
  std::string_view signature;
  int64_t batch = 0;
  std::string_view note;
};

struct RecordOptions {
  int device = 0;             // CUDA's number of the GPU
  std::string math = "fp32";  // "fp32" (fused multiply-add, no TF32) or "tf32"
  // A candidate is repeated until it has both `min_repeats`, at least five, and `min_time`. It
  // stops earlier at `max_time` if it has five, and at `max_repeats` if that is not less than the
  // minimum.
  int min_repeats = 10;
  int max_repeats = 200;
  Duration min_time = Duration::Milliseconds(50);
  Duration max_time = Duration::Milliseconds(500);
  uint64_t seed = 1;  // of the operands
  // The signatures and batches to record; a batch less than the op's own is a micro-batch. Not set:
  // every op's own.
  std::optional<std::set<std::pair<std::string, int64_t>>> only;
  // Drop a convolution algorithm whose result is further than `tolerance` from that of the entry's
  // first algorithm, as a fraction of the largest element. Not set: 1e-3 for fp32, 1e-2 for tf32.
  bool verify = true;
  std::optional<double> tolerance;
  Duration clock_warmup = Duration::Milliseconds(1000);  // of GEMMs, before the first measurement
  std::function<void(const RecordProgress&)> progress;   // may be empty
  // Called with each entry as soon as it is measured, by the thread that records; may be empty.
  std::function<void(const Provenance&, const CostEntry&)> measured;
};

// Measures slots of `trace`. Safe to call from several threads for different devices. Algorithms
// that fail (out of memory, not supported after all, a result that is not finite) are dropped with
// a note. Throws `EnvironmentError` that says what is missing if there is no usable GPU;
// `InputError` for an op that the kernel layer cannot execute; `Error` if an op does not fit into
// device memory or no algorithm of a slot works.
CostTable Record(const Trace& trace, const RecordOptions& options);

// "NVIDIA H200, 140 GiB, compute capability 9.0". Throws `EnvironmentError`.
std::string DescribeCudaDevice(int device = 0);

}  // namespace spillway

#endif  // SPILLWAY_BACKEND_CUDA_RECORDER_H_
