#include "backend/cuda/recorder.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <map>
#include <optional>
#include <set>
#include <tuple>
#include <utility>

#include "backend/cuda/cuda_error.h"
#include "backend/cuda/device_memory.h"
#include "backend/cuda/dnn_library.h"
#include "backend/cuda/elementwise.h"
#include "backend/cuda/kernels.h"
#include "backend/cuda/stream.h"
#include "traces/base/error.h"
#include "traces/ops/op_table.h"

namespace spillway::cuda {
namespace {

constexpr double kFp32Tolerance = 1e-3;
constexpr double kTf32Tolerance = 1e-2;
constexpr double kBf16Tolerance = 2e-2;
constexpr int kLeastRepeats = 5;
// Launches shorter than `kShort` are timed in groups that last about `kGroupTime`.
constexpr Duration kShort = Duration::Microseconds(50);
constexpr Duration kGroupTime = Duration::Microseconds(200);
constexpr int64_t kLargestGroup = 64;

// One entry to record. The first op of the trace with its signature stands for all ops with that
// signature.
struct Job {
  const Op* op = nullptr;
  size_t slot = 0;
  int64_t batch = 0;

  const Slot& slot_data() const { return op->slots[slot]; }
};

// Returns the distinct (signature, batch) pairs to record, sorted by both.
std::vector<Job> FindJobs(const Trace& trace, const RecordOptions& options) {
  std::map<std::pair<std::string_view, int64_t>, Job> jobs;
  for (const Op& op : trace.ops) {
    for (size_t slot = 0; slot < op.slots.size(); ++slot) {
      const std::string& signature = op.slots[slot].signature;
      if (!options.only) {
        jobs.try_emplace({signature, op.batch}, Job{&op, slot, op.batch});
        continue;
      }
      const auto end = options.only->upper_bound({signature, op.batch});
      for (auto key = options.only->lower_bound({signature, 1}); key != end; ++key) {
        if (key->second != op.batch && !RowOf(op.type).algorithms) continue;
        jobs.try_emplace({signature, key->second}, Job{&op, slot, key->second});
      }
    }
  }
  std::vector<Job> sorted;
  for (const auto& [key, job] : jobs) sorted.push_back(job);
  return sorted;
}

Elements ElementsOf(const DeviceRange& range) {
  return {range.data, range.type == DataType::kBfloat16};
}
int64_t CountOf(const DeviceRange& range) { return range.size.count() / ElementSize(range.type); }

OperandTypes TypesOf(const Trace& trace, const Op& op) {
  OperandTypes types;
  for (const TensorId id : op.inputs) types.inputs.push_back(trace.tensor(id).dtype);
  for (const TensorId id : op.outputs) types.outputs.push_back(trace.tensor(id).dtype);
  return types;
}

// The memory of one op's operands. Tensors of one storage share its memory.
class OpMemory {
 public:
  OpMemory(const Trace& trace, const Op& op, uint64_t seed, cudaStream_t stream) : op_(op) {
    for (const auto* list : {&op.inputs, &op.outputs, &op.scratch}) {
      for (const TensorId id : *list) Allocate(trace, id);
    }
    inputs_ = Ranges(trace, op.inputs);
    outputs_ = Ranges(trace, op.outputs);
    uint64_t sequence = seed << 16;
    for (auto& [root, buffer] : buffers_) {
      const DeviceRange range{buffer.data(), buffer.size(), trace.tensor(root).dtype};
      FillUniform(ElementsOf(range), CountOf(range), ++sequence, 1, stream);
    }
    for (const auto& [role, classes] :
         {std::pair{Role::kLabels, "elements"}, std::pair{Role::kIndices, "vocabulary"}}) {
      const auto labels = InputIndex(op, role);
      if (!labels) continue;
      const DeviceRange& range = inputs_.at(*labels);
      FillLabels(reinterpret_cast<int32_t*>(range.data), CountOf(range),
                 static_cast<int32_t>(op.IntAttribute(classes)), ++sequence, stream);
    }
    // These operands are never negative.
    const bool several = op.phase == Phase::kUpdate && StepOf(op).inputs.repeats;
    const size_t parts = several ? ParameterCount(op, inputs_.size(), outputs_.size()) : 1;
    for (const Role role : {op.phase == Phase::kForward ? Role::kRunningVar : Role::kInvStd,
                            Role::kSecondMoment, Role::kStep}) {
      for (size_t part = 0; part < parts; ++part) {
        const auto positive = InputIndex(op, role, part);
        if (!positive) continue;
        const DeviceRange& range = inputs_.at(*positive);
        FillUniform(ElementsOf(range), CountOf(range), ++sequence, 0.5f, stream, 1);
      }
    }
  }

  std::span<const DeviceRange> inputs() const { return inputs_; }
  std::span<const DeviceRange> outputs() const { return outputs_; }

 private:
  void Allocate(const Trace& trace, TensorId id) {
    const TensorId root = trace.Root(id);
    if (buffers_.contains(root)) return;
    const Bytes size = trace.tensor(root).size;
    try {
      buffers_.emplace(root, DeviceBuffer(std::max(size, Bytes(4))));
    } catch (const EnvironmentError&) {
      throw;
    } catch (const Error& error) {
      throw Error(fmt::format("the operands of op '{}' do not fit: tensor '{}': {}", op_.name,
                              trace.tensor(root).name, error.what()));
    }
  }

  std::vector<DeviceRange> Ranges(const Trace& trace, const std::vector<TensorId>& ids) const {
    std::vector<DeviceRange> ranges;
    for (const TensorId id : ids) {
      std::byte* const storage = buffers_.at(trace.Root(id)).data();
      const Tensor& tensor = trace.tensor(id);
      ranges.push_back({storage + trace.OffsetInStorage(id).count(), tensor.size, tensor.dtype});
    }
    return ranges;
  }

  const Op& op_;
  std::map<TensorId, DeviceBuffer> buffers_;  // by storage
  std::vector<DeviceRange> inputs_;
  std::vector<DeviceRange> outputs_;
};

// Returns the outputs that the slot writes, which verification examines.
std::vector<DeviceRange> ResultsOf(const Op& op, const Slot& slot,
                                   std::span<const DeviceRange> outputs) {
  if (op.slots.size() == 1 && slot.name != "bwd_filter") return {outputs.begin(), outputs.end()};
  return {outputs[slot.name == "bwd_filter" ? OutputIndex(op, Role::kDweight).value() : 0]};
}

// Returns the forward op that computes the result that a max pooling backward op reads. With
// unrelated data, no element would be a maximum and the kernel would be too fast.
Op PoolForward(const Op& backward) {
  Op forward = backward;
  forward.phase = Phase::kForward;
  forward.slots = {{"fwd", "", 0, Bytes(0)}};
  return forward;
}

class Recorder {
 public:
  Recorder(const Trace& trace, const RecordOptions& options)
      : trace_(trace),
        options_(options),
        tolerance_(
            options.tolerance.value_or(options.math == "tf32" ? kTf32Tolerance : kFp32Tolerance)),
        kernels_({.math = options.math, .seed = options.seed}),
        comparison_(Bytes(sizeof(Comparison))) {}

  CostTable Run() {
    CostTable table;
    table.workload = trace_.name;
    table.provenance = MakeProvenance();
    const std::vector<Job> jobs = FindJobs(trace_, options_);
    // This check precedes all measurements, so that an op without an implementation fails at once
    // rather than after minutes.
    for (const Job& job : jobs) {
      static_cast<void>(
          kernels_.Candidates(*job.op, job.slot, job.batch, TypesOf(trace_, *job.op)));
    }
    WarmUpClocks();
    progress_.entries = jobs.size();
    for (const Job& job : jobs) {
      progress_.signature = job.slot_data().signature;
      progress_.batch = job.batch;
      Report("");
      table.entries.push_back(Measure(job));
      if (options_.measured) options_.measured(table.provenance, table.entries.back());
      ++progress_.entry;
    }
    return table;
  }

 private:
  void Report(std::string_view note) {
    if (!options_.progress) return;
    progress_.note = note;
    options_.progress(progress_);
  }

  Provenance MakeProvenance() const;
  void WarmUpClocks();
  CostEntry Measure(const Job& job);
  std::optional<RecordedKernel> TryCandidate(const Job& job, const Candidate& candidate,
                                             const OpMemory& memory, bool check,
                                             std::vector<DeviceBuffer>& references);
  RecordedKernel Time(const Job& job, const SlotLaunch& launch);
  std::optional<std::string> CheckResults(std::span<const DeviceRange> results,
                                          std::vector<DeviceBuffer>& references);
  std::optional<std::string> CheckResult(const DeviceRange& result, const DeviceBuffer* reference);
  // Returns the time of one launch, measured as `count` launches between two events. The stream is
  // held busy for `spin` beforehand.
  Duration TimeGroup(const Op& op, const SlotLaunch& launch, int64_t count, Duration spin);

  const Trace& trace_;
  const RecordOptions& options_;
  const double tolerance_;
  CudaStream stream_;
  CudaKernels kernels_;
  DeviceBuffer comparison_;
  TimingEvent start_;
  TimingEvent end_;
  RecordProgress progress_;
  std::string last_drop_;  // the latest note on a dropped algorithm
};

Provenance Recorder::MakeProvenance() const {
  cudaDeviceProp properties{};
  SPILLWAY_CUDA_CALL(cudaGetDeviceProperties(&properties, options_.device));
  Provenance provenance;
  provenance.gpu = properties.name;
  provenance.driver = DriverVersion();
  provenance.cuda = RuntimeVersion();
  provenance.cudnn = DnnLibrary::Version();
  provenance.math = options_.math;
  provenance.date = DateNow();
  provenance.tool = ToolVersion();
  return provenance;
}

// Keeps the GPU busy with square GEMMs until its clocks have settled.
void Recorder::WarmUpClocks() {
  if (options_.clock_warmup <= Duration()) return;
  constexpr int64_t kExtent = 4096;
  const Bytes size(kExtent * kExtent * 4);
  Op op;
  op.name = "warm-up";
  op.type = OpType::kLinear;
  op.batch = kExtent;
  op.attributes = {{"in_features", kExtent}, {"out_features", kExtent}};
  op.slots = {{"fwd", "", 0, Bytes(0)}};
  const DeviceBuffer x(size), weight(size), y(size);
  FillUniform(x.floats(), kExtent * kExtent, 1, 1, stream_.get());
  FillUniform(weight.floats(), kExtent * kExtent, 2, 1, stream_.get());
  const DeviceRange inputs[] = {x.range(), weight.range()};
  const DeviceRange outputs[] = {y.range()};
  const SlotLaunch launch{.batch = kExtent, .inputs = inputs, .outputs = outputs, .workspace = {}};
  const Duration until = HostClock() + options_.clock_warmup;
  while (HostClock() < until) {
    for (int i = 0; i < 8; ++i) kernels_.Launch(op, launch, stream_.get());
    stream_.Synchronize();
  }
}

CostEntry Recorder::Measure(const Job& job) {
  const Op& op = *job.op;
  const OpMemory memory(trace_, op, options_.seed, stream_.get());
  if (op.type == OpType::kMaxPool2d && op.phase == Phase::kBackward) {
    const Op forward = PoolForward(op);
    kernels_.Launch(forward,
                    {.batch = op.batch,
                     .inputs = memory.inputs().subspan(InputIndex(op, Role::kX).value(), 1),
                     .outputs = memory.inputs().subspan(InputIndex(op, Role::kY).value(), 1),
                     .workspace = {}},
                    stream_.get());
  }
  CostEntry entry;
  entry.signature = job.slot_data().signature;
  entry.batch = job.batch;
  std::vector<DeviceBuffer> references;  // the results of the first algorithm
  const std::vector<Candidate> candidates =
      kernels_.Candidates(op, job.slot, job.batch, TypesOf(trace_, op));
  for (const Candidate& candidate : candidates) {
    std::optional<RecordedKernel> kernel =
        TryCandidate(job, candidate, memory, candidates.size() > 1, references);
    if (kernel) entry.kernels.push_back(std::move(*kernel));
  }
  if (entry.kernels.empty()) {
    throw Error(fmt::format("no algorithm works for {} at batch {} (op '{}'); {}", entry.signature,
                            entry.batch, op.name, last_drop_));
  }
  const auto key = [](const RecordedKernel& kernel) {
    return std::tie(kernel.kernel.time, kernel.kernel.workspace, kernel.kernel.algorithm);
  };
  std::sort(entry.kernels.begin(), entry.kernels.end(),
            [&](const RecordedKernel& a, const RecordedKernel& b) { return key(a) < key(b); });
  return entry;
}

// Returns the measured kernel, or nullopt if the candidate was dropped. Checks its results if
// `check`. Throws if the cause of a failure is not the candidate.
std::optional<RecordedKernel> Recorder::TryCandidate(const Job& job, const Candidate& candidate,
                                                     const OpMemory& memory, bool check,
                                                     std::vector<DeviceBuffer>& references) {
  const auto drop = [&](std::string_view why) {
    last_drop_ = fmt::format("algorithm {} dropped: {}", candidate.algorithm, why);
    Report(last_drop_);
    return std::nullopt;
  };
  const std::optional<DeviceBuffer> workspace = DeviceBuffer::TryAllocate(candidate.workspace);
  if (!workspace) {
    return drop(fmt::format("no memory for its workspace of {}", FormatBytes(candidate.workspace)));
  }
  const SlotLaunch launch{.slot = job.slot,
                          .algorithm = candidate.algorithm,
                          .batch = job.batch,
                          .inputs = memory.inputs(),
                          .outputs = memory.outputs(),
                          .workspace = workspace->range()};
  RecordedKernel recorded;
  try {
    if (check) {
      // The results are zeroed first, so that algorithms that accumulate and algorithms that
      // overwrite give comparable results.
      const std::vector<DeviceRange> results =
          ResultsOf(*job.op, job.slot_data(), memory.outputs());
      for (const DeviceRange& result : results) {
        SPILLWAY_CUDA_CALL(cudaMemsetAsync(result.data, 0, static_cast<size_t>(result.size.count()),
                                           stream_.get()));
      }
      kernels_.Launch(*job.op, launch, stream_.get());
      const std::optional<std::string> problem = CheckResults(results, references);
      if (problem) return drop(*problem);
    }
    recorded = Time(job, launch);
  } catch (const EnvironmentError&) {
    throw;
  } catch (const InputError&) {
    throw;
  } catch (const Error& error) {
    static_cast<void>(cudaGetLastError());
    // If the GPU no longer responds, this call fails too and reports the true cause.
    SPILLWAY_CUDA_CALL(cudaDeviceSynchronize(),
                       {job.op->name, job.slot_data().name, candidate.algorithm});
    return drop(error.what());
  }
  recorded.kernel.algorithm = candidate.algorithm;
  recorded.kernel.workspace = candidate.workspace;
  recorded.kernel.deterministic = candidate.deterministic;
  return recorded;
}

// Returns a description of the first error in the results, or nullopt if they are good. The first
// good results become the references.
std::optional<std::string> Recorder::CheckResults(std::span<const DeviceRange> results,
                                                  std::vector<DeviceBuffer>& references) {
  const bool compare = options_.verify && !references.empty();
  for (size_t i = 0; i < results.size(); ++i) {
    const auto problem = CheckResult(results[i], compare ? &references[i] : nullptr);
    if (problem) return problem;
  }
  if (!options_.verify || compare) return std::nullopt;
  std::vector<DeviceBuffer> copies;
  for (const DeviceRange& result : results) {
    std::optional<DeviceBuffer> copy = DeviceBuffer::TryAllocate(result.size);
    if (!copy) {
      Report("not verified: no memory for a second result");
      return std::nullopt;
    }
    SPILLWAY_CUDA_CALL(cudaMemcpyAsync(copy->data(), result.data,
                                       static_cast<size_t>(result.size.count()),
                                       cudaMemcpyDeviceToDevice, stream_.get()));
    copies.push_back(std::move(*copy));
  }
  references = std::move(copies);
  return std::nullopt;
}

// Returns a description of the first error in `result`, which a good one does not have: it is
// finite, and near to the reference if there is one.
std::optional<std::string> Recorder::CheckResult(const DeviceRange& result,
                                                 const DeviceBuffer* reference) {
  const ConstElements values = ElementsOf(result);
  auto* on_device = reinterpret_cast<Comparison*>(comparison_.data());
  Compare(values, {reference != nullptr ? reference->data() : nullptr, values.bf16},
          CountOf(result), on_device, stream_.get());
  Comparison found;
  SPILLWAY_CUDA_CALL(
      cudaMemcpyAsync(&found, on_device, sizeof(found), cudaMemcpyDeviceToHost, stream_.get()));
  stream_.Synchronize();
  if (found.not_finite != 0) return "its result is not finite";
  const double largest = std::bit_cast<float>(found.largest_bits);
  const double difference = std::bit_cast<float>(found.difference_bits);
  const double tolerance = values.bf16 ? std::max(tolerance_, kBf16Tolerance) : tolerance_;
  if (difference <= tolerance * largest) return std::nullopt;
  return fmt::format(
      "its result differs from the first algorithm's by {:.2g}, its largest element is {:.2g}",
      difference, largest);
}

Duration Recorder::TimeGroup(const Op& op, const SlotLaunch& launch, int64_t count, Duration spin) {
  if (spin > Duration()) Spin(spin.picoseconds() / 1000, stream_.get());
  start_.Record(stream_);
  for (int64_t i = 0; i < count; ++i) kernels_.Launch(op, launch, stream_.get());
  end_.Record(stream_);
  SPILLWAY_CUDA_CALL(cudaEventSynchronize(end_.get()),
                     {op.name, op.slots[launch.slot].name, launch.algorithm});
  return Divide(Elapsed(start_, end_), count);
}

RecordedKernel Recorder::Time(const Job& job, const SlotLaunch& launch) {
  const Op& op = *job.op;
  static_cast<void>(TimeGroup(op, launch, 1, Duration()));  // loads code and builds plans
  // The host's time for one launch determines how long to hold the stream.
  stream_.Synchronize();
  const Duration before = HostClock();
  kernels_.Launch(op, launch, stream_.get());
  const Duration host = HostClock() - before;
  stream_.Synchronize();

  const auto spin = [&](int64_t count) {
    return std::min(Divide(host * count * 3, 2) + Duration::Microseconds(30), kLongestSpin);
  };
  const Duration once = TimeGroup(op, launch, 1, spin(1));
  int64_t group = 1;
  if (once < kShort) {
    const int64_t wanted = kGroupTime.picoseconds() / std::max<int64_t>(once.picoseconds(), 1);
    group = std::clamp<int64_t>(wanted, 1, kLargestGroup);
  }

  std::vector<Duration> times;
  Duration measured;
  const auto repeats = [&] { return static_cast<int>(times.size()); };
  const int least = std::max(options_.min_repeats, kLeastRepeats);
  while (repeats() < std::max(options_.max_repeats, least)) {
    if (repeats() >= least && measured >= options_.min_time) break;
    if (repeats() >= kLeastRepeats && measured >= options_.max_time) break;
    times.push_back(TimeGroup(op, launch, group, spin(group)));
    measured += times.back() * group;
  }
  std::sort(times.begin(), times.end());
  RecordedKernel recorded;
  // An op whose operands share their storage may launch nothing. A time of 0 is not valid, so the
  // least is 1 ps.
  recorded.kernel.time =
      Duration::Picoseconds(std::max<int64_t>(std::llround(Percentile(times, 0.5)), 1));
  recorded.repeats = repeats();
  recorded.spread = Spread(times);
  return recorded;
}

}  // namespace

CostTable Record(const Trace& trace, const RecordOptions& options) {
  RequireDevice(options.device);
  SPILLWAY_CUDA_CALL(cudaSetDevice(options.device));
  return Recorder(trace, options).Run();
}

std::string DescribeCudaDevice(int device) {
  RequireDevice(device);
  cudaDeviceProp properties{};
  SPILLWAY_CUDA_CALL(cudaGetDeviceProperties(&properties, device));
  return fmt::format("{}, {}, compute capability {}.{}", properties.name,
                     FormatBytes(Bytes(static_cast<int64_t>(properties.totalGlobalMem))),
                     properties.major, properties.minor);
}

}  // namespace spillway::cuda
