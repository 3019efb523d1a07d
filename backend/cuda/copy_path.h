// The destinations of the CUDA backend's copies to the host. Contents go into pinned memory, or are
// compressed into a store behind pinned staging buffers.

#ifndef SPILLWAY_BACKEND_CUDA_COPY_PATH_H_
#define SPILLWAY_BACKEND_CUDA_COPY_PATH_H_

#include <cuda_runtime_api.h>

#include <cstddef>
#include <map>
#include <span>
#include <vector>

#include "backend/cuda/cuda_error.h"
#include "backend/cuda/device_memory.h"
#include "backend/cuda/host_store.h"
#include "sim/core/allocator.h"
#include "sim/core/compression.h"
#include "sim/core/cost_model.h"
#include "sim/core/executor.h"

namespace spillway::cuda {

// A copy path that keeps all contents in pinned memory, at the offsets of the host pool.
class CudaCopyPath {
 public:
  // REQUIRES: `pinned` outlives the path. It is null if nothing leaves the device.
  explicit CudaCopyPath(const PinnedBuffer* pinned) : pinned_(pinned) {}
  virtual ~CudaCopyPath() = default;

  // Notes that a storage has taken a block of the host pool.
  virtual void OnHostBlock(TensorId /*storage*/, const Block& /*host*/) {}
  // Notes that the contents of a block are no longer needed.
  virtual void Forget(const Block& /*host*/) {}

  // Enqueues a copy of host.size bytes on the stream.
  virtual void Copy(Direction direction, std::byte* device, const Block& host, cudaStream_t stream,
                    const Activity& activity);
  // Waits for host threads that still work on copies. REQUIRES: the streams have completed.
  virtual void Finish() {}

  // Returns the pinned memory of a block that is not compressed.
  virtual std::byte* At(const Block& host) const { return Pinned(host.offset, host.size); }
  // Copies the contents of a block to `bytes`. REQUIRES: nothing issued is pending.
  virtual void Read(const Block& host, std::span<std::byte> bytes) const;

  virtual std::vector<StoredContents> stored() const { return {}; }
  virtual Bytes stored_peak() const { return Bytes(0); }

 protected:
  std::byte* Pinned(Bytes offset, Bytes size) const;

 private:
  const PinnedBuffer* const pinned_;
};

// A copy path that keeps some storages compressed. Every other storage has its own range of pinned
// memory, and these ranges follow one another.
class CudaCompressedCopyPath final : public CudaCopyPath {
 public:
  CudaCompressedCopyPath(const PinnedBuffer* pinned, const HostCompression& compression)
      : CudaCopyPath(pinned), store_(compression) {}

  void OnHostBlock(TensorId storage, const Block& host) override;
  void Forget(const Block& host) override { store_.Forget(host); }
  void Copy(Direction direction, std::byte* device, const Block& host, cudaStream_t stream,
            const Activity& activity) override;
  void Finish() override { store_.Finish(); }
  std::byte* At(const Block& host) const override;
  void Read(const Block& host, std::span<std::byte> bytes) const override;
  std::vector<StoredContents> stored() const override { return store_.stored(); }
  Bytes stored_peak() const override { return store_.peak(); }

 private:
  CudaHostStore store_;
  std::map<Bytes, TensorId> owners_;  // owners of blocks of the host pool, by offset
  std::map<TensorId, Bytes> places_;  // offset of a storage in pinned memory
  Bytes placed_;                      // bytes of pinned memory in use
};

}  // namespace spillway::cuda

#endif  // SPILLWAY_BACKEND_CUDA_COPY_PATH_H_
