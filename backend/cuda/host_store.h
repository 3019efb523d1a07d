// The host's side of compressed offload on a GPU: pinned staging buffers, a pageable store, and the
// threads that compress and decompress between them.
//
// The host program only enqueues. A stream waits, on the device, for a counter in pinned memory
// that the threads raise. The counter of copies out counts compressed pieces, whose buffers are
// free again. The counter of copies in counts decompressed pieces, which are ready to be copied.
// Every wait is for work that was issued before it, so the waits cannot form a cycle. The threads
// sleep while they wait for a copy to complete.

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

namespace spillway::cuda {

class CudaHostStore {
 public:
  // Pins the staging buffers and starts the threads. Throws `Error` if the host has too little
  // memory, and `EnvironmentError` if the driver cannot make a stream wait for a counter.
  explicit CudaHostStore(const HostCompression& compression);
  // REQUIRES: nothing that was enqueued is pending.
  ~CudaHostStore();
  CudaHostStore(const CudaHostStore&) = delete;
  CudaHostStore& operator=(const CudaHostStore&) = delete;

  bool Keeps(TensorId storage) const { return compression_.Keeps(storage); }

  // Enqueues the copy of a storage out of device memory. The store keeps its contents in the place
  // of the block `host`.
  void CopyOut(TensorId storage, const std::byte* device, const Block& host, cudaStream_t stream);
  // Enqueues the copy of the contents stored for `host` into device memory. REQUIRES:
  // `Holds(host)`.
  void CopyIn(std::byte* device, const Block& host, cudaStream_t stream);
  bool Holds(const Block& host) const { return stored_.contains(host.offset); }
  // Forgets the contents stored for `host`. Copies already enqueued still get them.
  void Forget(const Block& host) { stored_.erase(host.offset); }

  // Waits until the threads are idle and begins a new iteration. Rethrows the first exception of a
  // thread. REQUIRES: the streams have completed.
  void Finish();

  // Decompresses the contents stored for `host` into `bytes`. REQUIRES: `Holds(host)`, and nothing
  // is pending.
  void Read(const Block& host, std::span<std::byte> bytes) const;

  // Return the contents of each storage as compressed last, and the peak size of the store. The
  // results are complete up to the last `Finish`.
  std::vector<StoredContents> stored() const;
  Bytes peak() const { return blocks_.peak(); }

 private:
  // A CUDA event of one piece, which later iterations reuse.
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
    size_t compressed = 0;  // number of pieces that are compressed
  };
  struct Task {
    std::shared_ptr<Entry> entry;
    size_t piece = 0;
    Bytes size;
    uint32_t number = 0;          // among all pieces of this direction, from 1
    cudaEvent_t after = nullptr;  // the thread waits for it first; null if there is none
  };
  // One direction of copies: a thread that takes tasks in order, its codec and its buffers.
  struct Lane {
    explicit Lane(const HostCompression& compression);
    PinnedBuffer staging;
    PinnedBuffer counter{Bytes(sizeof(uint32_t))};  // pieces done, modulo 2^32
    ZeroValueCodec codec;
    std::deque<Task> tasks;
    bool busy = false;
    uint32_t issued = 0;
    std::deque<PieceEvent> events;  // the events of this iteration's pieces
    size_t used = 0;                // number of events in use
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
  std::map<Bytes, std::shared_ptr<Entry>> stored_;  // by host pool offset; not used by threads

  // Guards all members below except the lanes, and `Lane::tasks`, `Lane::busy` and
  // `Entry::compressed`.
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  bool stop_ = false;
  std::exception_ptr error_;
  std::map<TensorId, StoredContents> latest_;
  Lane out_, in_;
};

}  // namespace spillway::cuda

#endif  // SPILLWAY_BACKEND_CUDA_HOST_STORE_H_
