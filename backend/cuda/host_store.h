// The host's side of compressed offload on a GPU: pinned staging buffers, threads that compress and
// decompress behind them, and the pageable store.
//
// The host program only enqueues. A stream waits, on the device, for a counter in pinned memory
// that the threads raise: of pieces compressed, whose buffers are free again, or of pieces
// decompressed, which can be copied. Every wait is for work that was issued before it, so that the
// waits cannot form a cycle. The threads sleep until a copy has landed.

#ifndef SPILLWAY_BACKEND_CUDA_HOST_STORE_H_
#define SPILLWAY_BACKEND_CUDA_HOST_STORE_H_

#include <cuda_runtime_api.h>

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <exception>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <thread>
#include <vector>

#include "backend/cuda/device_memory.h"
#include "sim/compression/pieces.h"
#include "sim/core/allocator.h"
#include "sim/core/compression.h"
#include "sim/core/executor.h"

namespace spillway {

class CudaHostStore {
 public:
  // Pins the staging buffers. Throws `Error` if the host has not that much memory, and
  // `EnvironmentError` if the driver cannot make a stream wait for a counter.
  explicit CudaHostStore(const HostCompression& compression);
  // REQUIRES: nothing that was enqueued is pending.
  ~CudaHostStore();
  CudaHostStore(const CudaHostStore&) = delete;
  CudaHostStore& operator=(const CudaHostStore&) = delete;

  bool Keeps(TensorId storage) const { return compression_.Keeps(storage); }

  // Enqueues the copy of a storage out of device memory, into the store in the place of `host`.
  void CopyOut(TensorId storage, const std::byte* device, const Block& host, cudaStream_t stream);
  // Enqueues the copy of what is stored for `host`, into device memory. REQUIRES: `Holds`.
  void CopyIn(std::byte* device, const Block& host, cudaStream_t stream);
  bool Holds(const Block& host) const { return stored_.contains(host.offset); }
  // What is enqueued already still gets the contents.
  void Forget(const Block& host) { stored_.erase(host.offset); }

  // Returns when the threads have nothing left to do; throws what one of them has thrown.
  // REQUIRES: the streams have completed. Begins a new iteration.
  void Finish();

  // Copies what is stored for `host` out. REQUIRES: `Holds`, and nothing is pending.
  void Read(const Block& host, std::span<std::byte> bytes) const;

  // As of the last `Finish`.
  std::vector<StoredContents> stored() const;
  Bytes peak() const { return blocks_.peak(); }

 private:
  // An event for each piece, kept for the next iteration.
  class PieceEvent {
   public:
    PieceEvent();
    ~PieceEvent();
    PieceEvent(const PieceEvent&) = delete;
    PieceEvent& operator=(const PieceEvent&) = delete;
    cudaEvent_t get() const { return event_; }

   private:
    cudaEvent_t event_ = nullptr;
  };
  struct Entry {
    TensorId storage{};
    CompressedPieces pieces;
    size_t compressed = 0;  // pieces that are there
  };
  struct Task {
    std::shared_ptr<Entry> entry;
    size_t piece = 0;
    Bytes size;
    uint32_t number = 0;          // of all pieces of this direction, from 1
    cudaEvent_t after = nullptr;  // to be waited for first, if any
  };
  // One direction: a thread that takes tasks in order, with its codec and its buffers.
  struct Lane {
    explicit Lane(const HostCompression& compression);
    PinnedBuffer staging;
    PinnedBuffer counter{Bytes(sizeof(uint32_t))};  // pieces done, modulo 2^32
    ZeroValueCodec codec;
    std::deque<Task> tasks;
    bool busy = false;
    uint32_t issued = 0;
    std::deque<PieceEvent> events;  // of this iteration's pieces
    size_t used = 0;                // of those
    std::vector<cudaEvent_t> last;  // by buffer: the copy that used it last, null if none
    std::thread thread;
  };

  std::byte* BufferOf(Lane& lane, uint32_t number) const;
  cudaEvent_t NextEvent(Lane& lane);
  void WaitFor(const Lane& lane, uint32_t number, cudaStream_t stream) const;
  void Enqueue(Lane& lane, Task task);
  void Work(Lane& lane, bool compresses);
  void Compress(Lane& lane, const Task& task);
  void Decompress(Lane& lane, const Task& task);

  const HostCompression compression_;
  int device_ = 0;
  void* wait_value_ = nullptr;  // cuStreamWaitValue32

  BlockPool blocks_;
  std::map<Bytes, std::shared_ptr<Entry>> stored_;  // by offset in the host pool; host program only

  mutable std::mutex mutex_;  // of all below, and of the lanes' tasks and entries' counts
  std::condition_variable changed_;
  bool stop_ = false;
  std::exception_ptr error_;
  std::map<TensorId, StoredContents> latest_;
  Lane out_, in_;
};

}  // namespace spillway

#endif  // SPILLWAY_BACKEND_CUDA_HOST_STORE_H_
