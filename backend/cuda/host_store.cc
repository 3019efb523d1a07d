#include "backend/cuda/host_store.h"

#include <cuda.h>
#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "backend/cuda/cuda_error.h"
#include "backend/cuda/driver_entry.h"
#include "traces/base/error.h"

namespace spillway::cuda {
namespace {

// The interface of CUDA 11.7. In earlier ones, the driver supports cuStreamWaitValue32 only if
// configured to.
constexpr unsigned int kWaitValueVersion = 11070;
using WaitValue = CUresult(CUDAAPI*)(CUstream, CUdeviceptr, cuuint32_t, unsigned int);

size_t SizeOf(Bytes bytes) { return static_cast<size_t>(bytes.count()); }

std::atomic_ref<uint32_t> CounterOf(const PinnedBuffer& counter) {
  return std::atomic_ref(*reinterpret_cast<uint32_t*>(counter.data()));
}

}  // namespace

CudaHostStore::PieceEvent::PieceEvent() {
  SPILLWAY_CUDA_CALL(
      cudaEventCreateWithFlags(&event_, cudaEventDisableTiming | cudaEventBlockingSync));
}
CudaHostStore::PieceEvent::~PieceEvent() { cudaEventDestroy(event_); }

CudaHostStore::Lane::Lane(const HostCompression& compression)
    : staging(compression.piece * int64_t{compression.buffers}),
      codec(Growth{compression.fraction, compression.threads}),
      last(static_cast<size_t>(compression.buffers)) {
  CounterOf(counter).store(0);
}

CudaHostStore::CudaHostStore(const HostCompression& compression)
    : compression_(compression), out_(compression), in_(compression) {
  SPILLWAY_CUDA_CALL(cudaGetDevice(&device_));
  wait_value_ =
      reinterpret_cast<void*>(DriverEntry<WaitValue>("cuStreamWaitValue32", kWaitValueVersion));
  out_.thread = std::thread([this] { Work(out_, /*compresses=*/true); });
  in_.thread = std::thread([this] { Work(in_, /*compresses=*/false); });
}

CudaHostStore::~CudaHostStore() {
  {
    const std::lock_guard lock(mutex_);
    stop_ = true;
  }
  changed_.notify_all();
  out_.thread.join();
  in_.thread.join();
}

// --- Issue --------------------------------------------------------------------------------------

std::byte* CudaHostStore::BufferOf(Lane& lane, uint32_t number) const {
  const uint32_t buffer = (number - 1) % static_cast<uint32_t>(compression_.buffers);
  return lane.staging.data() + (compression_.piece * int64_t{buffer}).count();
}

cudaEvent_t CudaHostStore::NextEvent(Lane& lane) {
  if (lane.events.size() <= lane.used) lane.events.emplace_back();
  return lane.events[lane.used++].get();
}

void CudaHostStore::WaitFor(const Lane& lane, uint32_t number, cudaStream_t stream) const {
  const auto address = reinterpret_cast<CUdeviceptr>(lane.counter.data());
  const CUresult code = reinterpret_cast<WaitValue>(wait_value_)(
      reinterpret_cast<CUstream>(stream), address, number, CU_STREAM_WAIT_VALUE_GEQ);
  if (code != CUDA_SUCCESS) {
    throw Error(fmt::format("cuStreamWaitValue32: CUDA driver error {}", static_cast<int>(code)));
  }
}

void CudaHostStore::Enqueue(Lane& lane, Task task) {
  {
    const std::lock_guard lock(mutex_);
    lane.tasks.push_back(std::move(task));
  }
  changed_.notify_all();
}

void CudaHostStore::CopyOut(TensorId storage, const std::byte* device, const Block& host,
                            cudaStream_t stream) {
  const auto entry = std::make_shared<Entry>();
  entry->storage = storage;
  const int64_t pieces = compression_.pieces(host.size);
  entry->pieces.reserve(static_cast<size_t>(pieces));
  for (int64_t i = 0; i < pieces; ++i) entry->pieces.emplace_back(blocks_);
  stored_[host.offset] = entry;
  const auto buffers = static_cast<uint32_t>(compression_.buffers);
  for (int64_t i = 0; i < pieces; ++i) {
    Task task;
    task.entry = entry;
    task.piece = static_cast<size_t>(i);
    task.size = compression_.PieceOf(host.size, i);
    task.number = ++out_.issued;
    if (task.number > buffers) WaitFor(out_, task.number - buffers, stream);
    SPILLWAY_CUDA_CALL(cudaMemcpyAsync(BufferOf(out_, task.number),
                                       device + (compression_.piece * i).count(), SizeOf(task.size),
                                       cudaMemcpyDeviceToHost, stream));
    task.after = NextEvent(out_);
    SPILLWAY_CUDA_CALL(cudaEventRecord(task.after, stream));
    Enqueue(out_, std::move(task));
  }
}

void CudaHostStore::CopyIn(std::byte* device, const Block& host, cudaStream_t stream) {
  const std::shared_ptr<Entry> entry = stored_.at(host.offset);
  for (int64_t i = 0; i < compression_.pieces(host.size); ++i) {
    Task task;
    task.entry = entry;
    task.piece = static_cast<size_t>(i);
    task.size = compression_.PieceOf(host.size, i);
    task.number = ++in_.issued;
    const uint32_t number = task.number;
    const Bytes size = task.size;
    cudaEvent_t& last = in_.last[(number - 1) % in_.last.size()];
    task.after = last;  // the buffer is written again only after its last copy
    Enqueue(in_, std::move(task));
    WaitFor(in_, number, stream);
    SPILLWAY_CUDA_CALL(cudaMemcpyAsync(device + (compression_.piece * i).count(),
                                       BufferOf(in_, number), SizeOf(size), cudaMemcpyHostToDevice,
                                       stream));
    last = NextEvent(in_);
    SPILLWAY_CUDA_CALL(cudaEventRecord(last, stream));
  }
}

// --- The threads --------------------------------------------------------------------------------

// The counter is raised even if the work failed, because a stream must not wait for ever. `Finish`
// throws the exception.
void CudaHostStore::Work(Lane& lane, bool compresses) {
  static_cast<void>(cudaSetDevice(device_));
  std::unique_lock lock(mutex_);
  for (;;) {
    changed_.wait(lock, [&] { return stop_ || !lane.tasks.empty(); });
    if (lane.tasks.empty()) return;
    const Task task = std::move(lane.tasks.front());
    lane.tasks.pop_front();
    lane.busy = true;
    // The compression of this piece was issued earlier to the other thread.
    if (!compresses) {
      changed_.wait(lock, [&] { return task.entry->compressed > task.piece; });
    }
    lock.unlock();
    std::exception_ptr error;
    try {
      if (task.after != nullptr) SPILLWAY_CUDA_CALL(cudaEventSynchronize(task.after));
      compresses ? Compress(lane, task) : Decompress(lane, task);
    } catch (...) {
      error = std::current_exception();
    }
    lock.lock();
    if (error && !error_) error_ = error;
    if (compresses) task.entry->compressed = task.piece + 1;
    lane.busy = false;
    CounterOf(lane.counter).store(task.number, std::memory_order_release);
    changed_.notify_all();
  }
}

void CudaHostStore::Compress(Lane& lane, const Task& task) {
  Entry& entry = *task.entry;
  CompressedData& piece = entry.pieces[task.piece];
  lane.codec.Compress({BufferOf(lane, task.number), SizeOf(task.size)}, piece);
  if (task.piece + 1 < entry.pieces.size()) return;
  const StoredContents contents = Describe(entry.storage, entry.pieces);
  const std::lock_guard lock(mutex_);
  latest_[entry.storage] = contents;
}

void CudaHostStore::Decompress(Lane& lane, const Task& task) {
  const CompressedData& piece = task.entry->pieces[task.piece];
  if (piece.original() != task.size) throw Error("a piece to be decompressed was not stored");
  lane.codec.Decompress(piece, {BufferOf(lane, task.number), SizeOf(task.size)});
}

// --- Completion ---------------------------------------------------------------------------------

void CudaHostStore::Finish() {
  std::unique_lock lock(mutex_);
  changed_.wait(lock,
                [&] { return out_.tasks.empty() && !out_.busy && in_.tasks.empty() && !in_.busy; });
  // All copies have landed. No buffer is in use, so the next iteration can reuse the events.
  for (Lane* lane : {&out_, &in_}) {
    lane->used = 0;
    std::fill(lane->last.begin(), lane->last.end(), nullptr);
  }
  if (error_) std::rethrow_exception(std::exchange(error_, nullptr));
}

void CudaHostStore::Read(const Block& host, std::span<std::byte> bytes) const {
  ZeroValueCodec codec({compression_.fraction, 1});
  std::vector<std::byte> buffer(SizeOf(compression_.piece));
  sim::Decompress(stored_.at(host.offset)->pieces, codec, buffer, bytes);
}

std::vector<StoredContents> CudaHostStore::stored() const {
  const std::lock_guard lock(mutex_);
  std::vector<StoredContents> contents;
  for (const auto& [storage, latest] : latest_) contents.push_back(latest);
  return contents;
}

}  // namespace spillway::cuda
