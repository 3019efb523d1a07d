#include "backend/cuda/cuda_backend.h"

#include <cuda_runtime_api.h>
#include <fmt/format.h>
#include <nvtx3/nvToolsExt.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstdlib>
#include <deque>
#include <iterator>
#include <map>
#include <numeric>
#include <optional>
#include <utility>
#include <vector>

#include "backend/common/held_commands.h"
#include "backend/common/synthetic_data.h"
#include "backend/common/top1.h"
#include "backend/cuda/activity_trace.h"
#include "backend/cuda/copy_path.h"
#include "backend/cuda/cuda_error.h"
#include "backend/cuda/device_memory.h"
#include "backend/cuda/dnn_library.h"
#include "backend/cuda/elementwise.h"
#include "backend/cuda/kernels.h"
#include "backend/cuda/peer_memory.h"
#include "backend/cuda/run_memory.h"
#include "backend/cuda/stream.h"
#include "sim/core/wait_filter.h"
#include "traces/base/error.h"
#include "traces/ops/op_table.h"

namespace spillway::cuda {
namespace {

// Returns the i-th element. Elements are created at their first use and kept for later iterations.
template <typename T>
T& Grown(std::deque<T>& list, size_t i) {
  while (list.size() <= i) list.emplace_back();
  return list[i];
}

struct StreamState {
  void ForgetIteration() {
    issued.clear();
    ended.clear();
  }
  void RecordEnd(size_t i) {
    Grown(ends, i).Record(stream);
    ended[i] = true;
  }

  CudaStream stream;
  std::deque<OrderEvent> ends;               // the end of command i of this iteration, if ended[i]
  std::vector<bool> ended;                   // whether the end of command i has been recorded
  std::deque<bool> awaited;                  // whether any iteration so far waited for command i
  std::deque<TimingEvent> start, end;        // time stamps of command i in a stamped iteration
  OrderEvent asleep{cudaEventBlockingSync};  // lets the host sleep until everything has completed
  TimingEvent drained;                       // everything issued has completed
  std::vector<Duration> issued;              // host time of issue of this iteration's commands
};

// Returns for each op the index of the first op of the trace that computes the same on other
// operands. A network in slices has twenty and more ops of each kind.
std::vector<size_t> FirstOfKind(const Trace& trace) {
  std::map<std::string, size_t> kinds;
  std::vector<size_t> first;
  first.reserve(trace.ops.size());
  for (const Op& op : trace.ops) {
    std::string kind = fmt::format("{} {} {}", Name(op.type), Name(op.phase), op.batch);
    for (const Slot& slot : op.slots) kind += fmt::format(" {}:{}", slot.name, slot.signature);
    for (const auto& [name, value] : op.attributes) kind += fmt::format(" {}={}", name, value);
    first.push_back(kinds.try_emplace(std::move(kind), first.size()).first->second);
  }
  return first;
}

// The most graphs that a run creates. Creating a graph takes longer the more graphs exist: nine
// minutes were not enough for half a million.
constexpr size_t kMostGraphs = 100'000;

// The kernels of one op as a graph, which the host launches with a single call. Without a graph,
// cuDNN takes hundreds of microseconds on each launch to find the kernels again.
class KernelGraph {
 public:
  // Captures the kernels that `launch` puts on the stream. The stream does not run them.
  template <typename Launch>
  KernelGraph(cudaStream_t stream, const Activity& activity, const Launch& launch) {
    SPILLWAY_CUDA_CALL(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal), activity);
    cudaGraph_t graph = nullptr;
    try {
      launch();
    } catch (...) {
      cudaStreamEndCapture(stream, &graph);
      if (graph != nullptr) cudaGraphDestroy(graph);
      throw;
    }
    SPILLWAY_CUDA_CALL(cudaStreamEndCapture(stream, &graph), activity);
    const cudaError_t code = cudaGraphInstantiate(&graph_, graph, 0);
    cudaGraphDestroy(graph);
    CheckCuda(code, "cudaGraphInstantiate", activity);
  }
  ~KernelGraph() { cudaGraphExecDestroy(graph_); }
  KernelGraph(const KernelGraph&) = delete;
  KernelGraph& operator=(const KernelGraph&) = delete;

  void Launch(cudaStream_t stream, const Activity& activity) const {
    SPILLWAY_CUDA_CALL(cudaGraphLaunch(graph_, stream), activity);
  }

 private:
  cudaGraphExec_t graph_ = nullptr;
};

// Returns the id of the i-th command of an iteration on a stream.
uint64_t CommandId(Stream stream, size_t i) { return uint64_t{Index(stream)} << 32 | i; }

// Marks a range of host time for profilers.
class NvtxRange {
 public:
  explicit NvtxRange(const char* name) { nvtxRangePushA(name); }
  ~NvtxRange() { nvtxRangePop(); }
  NvtxRange(const NvtxRange&) = delete;
  NvtxRange& operator=(const NvtxRange&) = delete;
};

// Makes all streams share one hardware channel of the compute engine, unless the user has set
// CUDA_DEVICE_MAX_CONNECTIONS. CUDA reads this variable when it starts.
//
// On a shared channel, a copy that waits delays the kernels behind it, each time by some
// microseconds. On separate channels, work that waits for other work polls for it, which slows
// copies down. On an H200 this costs up to 12 % for copies to the host and 8 % for copies from the
// host. It occurs under graphs and under cuDNN's tiled FFT, which creates its own streams.
void ShareChannels() { setenv("CUDA_DEVICE_MAX_CONNECTIONS", "1", /*overwrite=*/0); }

cudaDeviceProp Properties(const CudaMachine::Options& options) {
  const int device = options.device;
  if (!options.short_copies) ShareChannels();
  RequireDevice(device);
  SPILLWAY_CUDA_CALL(cudaSetDevice(device));
  cudaDeviceProp properties;
  SPILLWAY_CUDA_CALL(cudaGetDeviceProperties(&properties, device));
  return properties;
}

}  // namespace

struct CudaMachine::Impl {
  explicit Impl(const Options& options)
      : device(options.device),
        properties(Properties(options)),
        kernels({options.math, options.dropout_seed}) {
    UseStreams(PoolId::kHost);
    CalibrateSpin();
  }

  // Creates the streams of all pools up to `pool`.
  void UseStreams(PoolId pool) {
    while (streams.size() <= Index(StreamOf(pool, Direction::kToHost))) streams.emplace_back();
  }

  // Returns pinned memory of at least `size`. Keeps the largest buffer requested so far, because
  // pinned memory is slow to allocate.
  PinnedBuffer& Pinned(Bytes size) {
    if (!pinned || pinned->size() < size) {
      pinned.reset();
      pinned.emplace(size);
    }
    return *pinned;
  }

  // Measures by how much back-to-back busy waits exceed the requested time.
  void CalibrateSpin() {
    constexpr int kSpins = 100;
    constexpr auto kAsked = Duration::Microseconds(20);
    const CudaStream& stream = streams[0].stream;
    TimingEvent start, end;
    for (int warm = 0; warm < 2; ++warm) {
      Spin(Duration::Milliseconds(2).picoseconds() / 1000, stream.get());
      start.Record(stream);
      for (int i = 0; i < kSpins; ++i) Spin(kAsked.picoseconds() / 1000, stream.get());
      end.Record(stream);
      stream.Synchronize();
    }
    spin_excess = std::max(Duration(), Divide(Elapsed(start, end), kSpins) - kAsked);
  }

  const int device;
  cudaDeviceProp properties;
  CudaKernels kernels;
  std::deque<StreamState> streams;  // by stream, up to the last one that a run has used
  TimingEvent begin;
  std::optional<PinnedBuffer> pinned;
  std::optional<ActivityTrace> activity;  // created when a run first needs it
  Duration spin_excess;
};

namespace {

class CudaBackend final : public Executor {
 public:
  CudaBackend(const Trace& trace, const CostModel& cost, const CudaRunOptions& options,
              CudaMachine::Impl& machine, const PinnedBuffer* pinned);
  ~CudaBackend() override;

  std::string_view Name() const override { return "cuda"; }
  Event Enqueue(const Launch& launch, std::span<const Wait> waits) override;
  Event Copy(PoolId pool, Direction direction, const Block& device, const Block& outside,
             Bytes size, std::span<const Wait> waits) override;
  void Synchronize() override;
  StreamTimes TakeTimeline() override;
  void OnAllocate(const Block& block) override { memory_.OnAllocate(block); }
  void OnFree(const Block& block) override { memory_.OnFree(block); }
  void OnDriverCall(const DriverCall& call) override { memory_.OnDriverCall(call); }
  void OnAbandon(const Block& block, PoolId pool) override {
    if (pool == PoolId::kHost) copies_->Forget(block);
  }
  void OnOutsideBlock(TensorId tensor, const Block& block, PoolId pool) override {
    if (pool == PoolId::kHost) copies_->OnHostBlock(tensor, block);
  }
  void OnArrive(TensorId tensor, const Block& block, PoolId pool) override;

  std::optional<float> loss() const override { return loss_; }
  std::vector<int64_t> top1() const override { return top1_; }
  void Read(const Block& block, PoolId pool, std::span<std::byte> bytes) const override;
  std::vector<Duration> iteration_times() const override { return iteration_times_; }
  std::vector<StoredContents> stored() const override { return copies_->stored(); }
  Bytes stored_peak() const override { return copies_->stored_peak(); }

 private:
  int64_t DeviceAddress(const Block& block) const {
    return static_cast<int64_t>(reinterpret_cast<intptr_t>(memory_.At(block).data));
  }
  // Sets `ranges` to the operands, which lie in the blocks.
  void DeviceRanges(std::span<const TensorId> operands, std::span<const Block> blocks,
                    std::vector<DeviceRange>& ranges) const;

  // Returns true if the end of command `i` is recorded as an event. An event delays the next kernel
  // by some 2 us on an H200. Therefore all ends are recorded only in the first iteration. Later, an
  // end is recorded if an earlier iteration waited for it or `Throttle` will.
  bool RecordsEnd(Stream stream, size_t i) const;
  // Makes the stream `waiting` wait for `event`.
  void WaitFor(const Event& event, const CudaStream& waiting, const Activity& activity);
  bool stamped() const { return iteration_ == options_.stamped_iteration; }
  bool traced() const { return stamped() && options_.timeline == CudaTimeline::kActivity; }
  bool stamped_by_events() const { return stamped() && !traced(); }
  // Returns true if commands are held until all commands of the iteration are known. They are not
  // held if the allocator or the compressed copy path has work to do between two commands.
  bool holds() const { return options_.backing == Backing::kArena && !options_.compression; }
  Event EnqueueNow(const Launch& launch, std::span<const Wait> waits);
  Event CopyNow(PoolId pool, Direction direction, const Block& device, const Block& outside,
                Bytes size, std::span<const Wait> waits);
  void BeginIteration();
  // `Begin` and `End` enclose the work that one command enqueues.
  void Begin(Stream stream, std::span<const Wait> waits, const Activity& activity);
  Event End(Stream stream);
  void LaunchKernels(const Op& op, const Launch& launch);
  // Runs the op's slots. If the same kernels have run on the same addresses before, launches them
  // as a graph.
  void LaunchOnce(const Op& op, const Launch& launch);
  void RunSlots(const Op& op, const Launch& launch);
  // Waits until the host is less than 2 * `launch_ahead` ops ahead of the GPU. If it is about 60
  // ops ahead, the driver's queue is full, and the host polls for a free place in it.
  void Throttle() const;
  void TakeTime(Duration time) const;
  // Enqueues copies of the loss and, if `top1` is wanted, of the probabilities to the host.
  void TakeLoss(const Op& op, const Launch& launch);
  void Write(const Block& block, PoolId pool, std::span<const std::byte> bytes);

  const Trace& trace_;
  const CostModel& cost_;
  const CudaRunOptions options_;
  const SyntheticSource synthetic_;
  CudaMachine::Impl& machine_;
  RunMemory memory_;
  const std::unique_ptr<CudaCopyPath> copies_;  // for the host pool
  std::optional<PeerMemory> peer_;
  PinnedBuffer loss_landing_;  // the losses of all loss ops of an iteration

  HeldCommands held_;
  int iteration_ = 1;
  bool begun_ = false;
  WaitFilter<kStreamCount> waited_;  // waits made in this iteration
  Duration host_begin_;
  std::vector<Duration> iteration_times_;
  std::optional<float> loss_;
  size_t pending_losses_ = 0;               // number of losses on their way to the host
  std::deque<PinnedBuffer> probabilities_;  // on their way to the host, if `top1` is wanted
  int64_t classes_ = 0;
  std::vector<int64_t> top1_;
  const std::vector<size_t> first_of_kind_;
  // Graphs by kind of op, operand addresses and kernels. An entry is null until its key occurs for
  // the second time.
  std::map<std::vector<int64_t>, std::unique_ptr<KernelGraph>> graphs_;
  std::vector<int64_t> key_;
  std::vector<DeviceRange> inputs_, outputs_;  // kept between ops to save allocations
};

std::unique_ptr<CudaCopyPath> MakeCopyPath(const PinnedBuffer* pinned,
                                           const std::optional<HostCompression>& compression) {
  if (!compression) return std::make_unique<CudaCopyPath>(pinned);
  return std::make_unique<CudaCompressedCopyPath>(pinned, *compression);
}

int64_t LossCount(const Trace& trace) {
  return std::ranges::count_if(
      trace.ops, [](const Op& op) { return OutputIndex(op, Role::kLoss).has_value(); });
}

CudaBackend::CudaBackend(const Trace& trace, const CostModel& cost, const CudaRunOptions& options,
                         CudaMachine::Impl& machine, const PinnedBuffer* pinned)
    : trace_(trace),
      cost_(cost),
      options_(options),
      synthetic_(trace, options.seed),
      machine_(machine),
      memory_(options.backing, options.memory),
      copies_(MakeCopyPath(pinned, options.compression)),
      loss_landing_(Bytes(std::max<int64_t>(LossCount(trace), 1) * int64_t{sizeof(float)})),
      first_of_kind_(FirstOfKind(trace)) {
  if (options.peer) peer_.emplace(machine.device, options.peer->gpu, options.peer->memory);
}

CudaBackend::~CudaBackend() {
  // Work in flight may still use the memory that this object frees.
  static_cast<void>(cudaDeviceSynchronize());
}

// --- Contents -----------------------------------------------------------------------------------

void CudaBackend::DeviceRanges(std::span<const TensorId> operands, std::span<const Block> blocks,
                               std::vector<DeviceRange>& ranges) const {
  ranges.clear();
  for (size_t i = 0; i < blocks.size(); ++i) {
    ranges.push_back(memory_.At(blocks[i]));
    if (i < operands.size()) ranges.back().type = trace_.tensor(operands[i]).dtype;
  }
}

void CudaBackend::OnArrive(TensorId id, const Block& block, PoolId pool) {
  const Tensor& tensor = trace_.tensor(id);
  const Block contents{block.offset, tensor.size};
  const auto size = static_cast<size_t>(tensor.size.count());
  if (options_.given) {
    std::vector<std::byte> bytes(size);
    if (options_.given(id, bytes)) return Write(contents, pool, bytes);
  }
  const SyntheticData data = synthetic_.Of(id, static_cast<uint64_t>(iteration_ - 1));
  const int64_t first = FirstElement(tensor);
  if (pool == PoolId::kHost) return Fill(data, {copies_->At(contents), size}, first);
  if (pool != PoolId::kDevice) {
    std::vector<std::byte> bytes(size);
    Fill(data, bytes, first);
    return peer_->Write(contents, bytes);
  }
  std::byte* const out = memory_.At(contents).data;
  const int64_t count = tensor.size.count() / ElementSize(tensor.dtype);
  cudaStream_t const stream = machine_.streams[Index(Stream::kCompute)].stream.get();
  switch (data.kind) {
    case DataKind::kZero:
      SPILLWAY_CUDA_CALL(cudaMemsetAsync(out, 0, static_cast<size_t>(tensor.size.count()), stream));
      return;
    case DataKind::kUniform:
      return FillUniform({out, data.bf16}, count, data.seed, data.scale, stream, data.centre,
                         first);
    case DataKind::kLabels:
      return FillLabels(reinterpret_cast<int32_t*>(out), count, data.classes, data.seed, stream);
  }
}

void CudaBackend::Write(const Block& block, PoolId pool, std::span<const std::byte> bytes) {
  if (pool == PoolId::kHost) {
    std::ranges::copy(bytes, copies_->At(block));
    return;
  }
  if (pool != PoolId::kDevice) return peer_->Write(block, bytes);
  const CudaStream& compute = machine_.streams[Index(Stream::kCompute)].stream;
  SPILLWAY_CUDA_CALL(cudaMemcpyAsync(memory_.At(block).data, bytes.data(), bytes.size(),
                                     cudaMemcpyHostToDevice, compute.get()));
  compute.Synchronize();  // the caller may free `bytes` after the return
}

void CudaBackend::Read(const Block& block, PoolId pool, std::span<std::byte> bytes) const {
  if (pool == PoolId::kHost) return copies_->Read(block, bytes);
  if (pool != PoolId::kDevice) return peer_->Read(block, bytes);
  const Block contents{block.offset, Bytes(static_cast<int64_t>(bytes.size()))};
  SPILLWAY_CUDA_CALL(
      cudaMemcpy(bytes.data(), memory_.At(contents).data, bytes.size(), cudaMemcpyDeviceToHost));
}

// --- Issue --------------------------------------------------------------------------------------

void CudaBackend::BeginIteration() {
  if (begun_) return;
  begun_ = true;
  const CudaStream& compute = machine_.streams[Index(Stream::kCompute)].stream;
  compute.Synchronize();  // waits until the inputs have arrived
  if (traced()) machine_.activity->Start();
  machine_.begin.Record(compute);
  host_begin_ = HostClock();
}

void CudaBackend::Begin(Stream stream, std::span<const Wait> waits, const Activity& activity) {
  BeginIteration();
  StreamState& state = machine_.streams[Index(stream)];
  WaitFilter<kStreamCount>::Newest newest;
  for (const Wait& wait : waits) newest.Add(Index(wait.event.stream), wait.event.sequence);
  waited_.Take(Index(stream), newest, [&](size_t other, uint32_t sequence) {
    WaitFor({static_cast<Stream>(other), sequence}, state.stream, activity);
  });
  if (stamped_by_events()) Grown(state.start, state.issued.size()).Record(state.stream);
  if (traced()) machine_.activity->BeginCommand(CommandId(stream, state.issued.size()));
}

void CudaBackend::WaitFor(const Event& event, const CudaStream& waiting, const Activity& activity) {
  StreamState& state = machine_.streams[Index(event.stream)];
  const size_t i = event.sequence - 1;
  Grown(state.awaited, i) = true;
  // An end recorded only now covers everything issued on the stream so far. This is more than
  // needed, which is safe.
  if (!state.ended[i]) state.RecordEnd(i);
  SPILLWAY_CUDA_CALL(cudaStreamWaitEvent(waiting.get(), state.ends[i].get(), 0), activity);
}

bool CudaBackend::RecordsEnd(Stream stream, size_t i) const {
  if (iteration_ == 1) return true;
  if (stream == Stream::kCompute && i % static_cast<size_t>(options_.launch_ahead) == 0) {
    return true;  // `Throttle` waits for it
  }
  const auto& awaited = machine_.streams[Index(stream)].awaited;
  return i < awaited.size() && awaited[i];
}

Event CudaBackend::End(Stream stream) {
  StreamState& state = machine_.streams[Index(stream)];
  const size_t i = state.issued.size();
  if (traced()) machine_.activity->EndCommand();
  if (stamped_by_events()) Grown(state.end, i).Record(state.stream);
  state.ended.push_back(false);
  if (RecordsEnd(stream, i)) state.RecordEnd(i);
  state.issued.push_back(HostClock() - host_begin_);
  return {stream, static_cast<uint32_t>(state.issued.size())};
}

Event CudaBackend::Enqueue(const Launch& launch, std::span<const Wait> waits) {
  return holds() ? held_.Enqueue(launch, waits) : EnqueueNow(launch, waits);
}

Event CudaBackend::Copy(PoolId pool, Direction direction, const Block& device, const Block& outside,
                        Bytes size, std::span<const Wait> waits) {
  return holds() ? held_.Copy(pool, direction, device, outside, size, waits)
                 : CopyNow(pool, direction, device, outside, size, waits);
}

Event CudaBackend::EnqueueNow(const Launch& launch, std::span<const Wait> waits) {
  const Op& op = trace_.op(launch.op);
  const NvtxRange range(op.name.c_str());
  Throttle();
  Begin(Stream::kCompute, waits, {op.name, {}, {}});
  if (options_.work == CudaWork::kSpin) {
    if (launch.host) TakeTime(*launch.host);
    const Duration time = launch.time + launch.gap - machine_.spin_excess;
    if (time > Duration()) {
      Spin(time.picoseconds() / 1000, machine_.streams[Index(Stream::kCompute)].stream.get());
    }
  } else {
    LaunchKernels(op, launch);
  }
  return End(Stream::kCompute);
}

// Busy-waits until `time` after the previous compute command was issued, less the time that it
// takes to issue the next command.
void CudaBackend::TakeTime(Duration time) const {
  constexpr Duration kToIssue = Duration::Microseconds(6);
  const auto& issued = machine_.streams[Index(Stream::kCompute)].issued;
  const Duration until =
      host_begin_ + (issued.empty() ? Duration() : issued.back()) + time - kToIssue;
  while (HostClock() < until) {
  }
}

void CudaBackend::LaunchKernels(const Op& op, const Launch& launch) {
  // With `Backing::kBlocks`, addresses change between iterations. A graph would rarely be launched
  // again, and capturing one costs more than the call.
  const bool by_library = RowOf(op.type).library == Library::kConvolution;
  if (by_library && options_.backing != Backing::kBlocks) {
    LaunchOnce(op, launch);
  } else {
    RunSlots(op, launch);
  }
  if (stamped() && !launch.recompute) TakeLoss(op, launch);
}

void CudaBackend::LaunchOnce(const Op& op, const Launch& launch) {
  key_.clear();
  key_.push_back(static_cast<int64_t>(first_of_kind_[Index(launch.op)]));
  for (const auto blocks : {launch.inputs, launch.outputs}) {
    for (const Block& block : blocks) key_.push_back(DeviceAddress(block));
  }
  key_.push_back(launch.workspace.size > Bytes(0) ? DeviceAddress(launch.workspace) : 0);
  for (const KernelRun& run : launch.runs) {
    key_.insert(key_.end(), {run.slot, run.kernel, run.batch});
  }
  const auto entry = graphs_.find(key_);
  // The first launch is not captured: libraries then make preparations that must not be captured.
  if (entry == graphs_.end()) {
    if (graphs_.size() < kMostGraphs) graphs_.emplace(key_, nullptr);
    return RunSlots(op, launch);
  }
  cudaStream_t const stream = machine_.streams[Index(Stream::kCompute)].stream.get();
  const Activity activity{op.name, {}, {}};
  std::unique_ptr<KernelGraph>& graph = entry->second;
  if (!graph) {
    graph = std::make_unique<KernelGraph>(stream, activity, [&] { RunSlots(op, launch); });
  }
  graph->Launch(stream, activity);
}

void CudaBackend::RunSlots(const Op& op, const Launch& launch) {
  cudaStream_t const stream = machine_.streams[Index(Stream::kCompute)].stream.get();
  DeviceRanges(op.inputs, launch.inputs, inputs_);
  DeviceRanges(op.outputs, launch.outputs, outputs_);
  SlotLaunch part;
  part.inputs = inputs_;
  part.outputs = outputs_;
  if (launch.workspace.size > Bytes(0)) part.workspace = memory_.At(launch.workspace);
  for (const KernelRun& run : launch.runs) {
    if (run.slot != part.slot) part.first = 0;
    part.slot = run.slot;
    part.batch = run.batch;
    part.algorithm = cost_.Kernels(op, run.slot, run.batch)[run.kernel].algorithm;
    machine_.kernels.Launch(op, part, stream);
    part.first += run.batch;
  }
}

void CudaBackend::Throttle() const {
  const StreamState& compute = machine_.streams[Index(Stream::kCompute)];
  const size_t issued = compute.issued.size();
  const auto ahead = static_cast<size_t>(options_.launch_ahead);
  if (issued < 2 * ahead || issued % ahead != 0) return;
  SPILLWAY_CUDA_CALL(cudaEventSynchronize(compute.ends[issued - 2 * ahead].get()));
}

void CudaBackend::TakeLoss(const Op& op, const Launch& launch) {
  const std::optional<size_t> loss = OutputIndex(op, Role::kLoss);
  if (!loss || *loss >= launch.outputs.size()) return;
  SPILLWAY_CUDA_CALL(
      cudaMemcpyAsync(loss_landing_.data() + pending_losses_ * sizeof(float),
                      memory_.At(launch.outputs[*loss]).data, sizeof(float), cudaMemcpyDeviceToHost,
                      machine_.streams[Index(Stream::kCompute)].stream.get()),
      {op.name, {}, {}});
  ++pending_losses_;
  if (!options_.given) return;
  const DeviceRange y = memory_.At(launch.outputs[OutputIndex(op, Role::kY).value()]);
  classes_ = op.IntAttribute("elements");
  const Bytes size(op.batch * PositionsOf(op) * classes_ * static_cast<int64_t>(sizeof(float)));
  PinnedBuffer& probabilities = probabilities_.emplace_back(size);
  SPILLWAY_CUDA_CALL(cudaMemcpyAsync(probabilities.data(), y.data,
                                     static_cast<size_t>(size.count()), cudaMemcpyDeviceToHost,
                                     machine_.streams[Index(Stream::kCompute)].stream.get()),
                     {op.name, {}, {}});
}

Event CudaBackend::CopyNow(PoolId pool, Direction direction, const Block& device,
                           const Block& outside, Bytes size, std::span<const Wait> waits) {
  const bool to_host = direction == Direction::kToHost;
  const Stream stream = StreamOf(pool, direction);
  const NvtxRange range(to_host ? "offload" : "prefetch");
  const Activity activity{to_host ? "copy out of the device" : "copy to the device", {}, {}};
  Begin(stream, waits, activity);
  std::byte* const data = memory_.At({device.offset, size}).data;
  const Block block{outside.offset, size};
  cudaStream_t const queue = machine_.streams[Index(stream)].stream.get();
  if (pool == PoolId::kHost) {
    copies_->Copy(direction, data, block, queue, activity);
  } else {
    peer_->Copy(direction, data, block, queue, activity);
  }
  return End(stream);
}

// --- Completion ---------------------------------------------------------------------------------

void CudaBackend::Synchronize() {
  held_.Release([&](auto&... command) { EnqueueNow(command...); },
                [&](auto&... command) { CopyNow(command...); });
  if (!begun_) return;
  for (const StreamState& state : machine_.streams) state.drained.Record(state.stream);
  for (StreamState& state : machine_.streams) {
    state.asleep.Record(state.stream);
    SPILLWAY_CUDA_CALL(cudaEventSynchronize(state.asleep.get()));
  }
  copies_->Finish();
  if (pending_losses_ == 0) return;
  const auto* const losses = reinterpret_cast<const float*>(loss_landing_.data());
  loss_ = std::accumulate(losses, losses + std::exchange(pending_losses_, 0), 0.0f);
  top1_.clear();
  for (const PinnedBuffer& probabilities : probabilities_) {
    const auto* const y = reinterpret_cast<const float*>(probabilities.data());
    const auto count = static_cast<size_t>(probabilities.size().count()) / sizeof(float);
    std::ranges::copy(Top1({y, count}, classes_), std::back_inserter(top1_));
  }
  probabilities_.clear();
}

StreamTimes CudaBackend::TakeTimeline() {
  StreamTimes times;
  Duration iteration;
  std::map<uint64_t, ActivityTrace::Interval> ran;
  if (begun_ && traced()) ran = machine_.activity->Stop();
  // Commands without any kernel are the copies of a policy's Plan, which belong to no iteration.
  const bool iterated = !machine_.streams[Index(Stream::kCompute)].issued.empty();
  for (size_t s = 0; s < machine_.streams.size(); ++s) {
    StreamState& state = machine_.streams[s];
    const size_t count = state.issued.size();
    times[s].resize(count);
    if (count == 0) continue;
    const Duration drained = Elapsed(machine_.begin, state.drained);
    iteration = std::max(iteration, drained);
    for (size_t i = 0; i < count; ++i) {
      // All times are rounded relative to one origin, which keeps their order.
      times[s][i].issued = state.issued[i];
      if (traced()) {
        // A command that ran nothing gets an empty interval at the end of the previous command.
        const auto interval = ran.find(CommandId(static_cast<Stream>(s), i));
        const Duration before = i == 0 ? Duration() : times[s][i - 1].end;
        times[s][i].start = interval == ran.end() ? before : interval->second.start;
        times[s][i].end = interval == ran.end() ? before : interval->second.end;
      } else if (stamped()) {
        times[s][i].start = Elapsed(machine_.begin, state.start[i]);
        times[s][i].end = Elapsed(machine_.begin, state.end[i]);
      }
    }
    if (!stamped()) times[s].back().end = drained;
    state.ForgetIteration();
  }
  if (iterated) {
    iteration_times_.push_back(iteration);
    ++iteration_;
  }
  begun_ = false;
  held_.EndIteration();
  waited_.Clear();
  return times;
}

}  // namespace

std::vector<std::string> DescribePeers(int device) {
  RequireDevice(device);
  int count = 0;
  SPILLWAY_CUDA_CALL(cudaGetDeviceCount(&count));
  std::vector<std::string> peers;
  for (int peer = 0; peer < count; ++peer) {
    if (peer == device) continue;
    cudaDeviceProp properties{};
    SPILLWAY_CUDA_CALL(cudaGetDeviceProperties(&properties, peer));
    peers.push_back(fmt::format(
        "GPU {}, {}: {}", peer, properties.name,
        ReachesPeer(device, peer) ? "reached directly" : "copies are staged through the host"));
  }
  return peers;
}

CudaMachine::CudaMachine(const Options& options) : impl_(std::make_unique<Impl>(options)) {}
CudaMachine::~CudaMachine() = default;

std::unique_ptr<Executor> CudaMachine::Open(const Trace& trace, const CostModel& cost,
                                            const CudaRunOptions& options) {
  PinnedBuffer* const pinned =
      options.host_memory > Bytes(0) ? &impl_->Pinned(options.host_memory) : nullptr;
  if (options.peer) impl_->UseStreams(options.peer->pool);
  for (StreamState& state : impl_->streams) {
    state.ForgetIteration();
    state.awaited.clear();
  }
  if (options.timeline == CudaTimeline::kActivity && !impl_->activity) impl_->activity.emplace();
  return std::make_unique<CudaBackend>(trace, cost, options, *impl_, pinned);
}

std::string CudaMachine::gpu() const { return impl_->properties.name; }
std::string CudaMachine::cudnn() const { return DnnLibrary::Version(); }
Bytes CudaMachine::free_memory() const { return FreeDeviceMemory(); }

}  // namespace spillway::cuda
