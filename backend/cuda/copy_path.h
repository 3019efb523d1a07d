// Where the CUDA backend's copies to the host go: into pinned memory, or compressed into a store
// behind pinned staging buffers.

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

namespace spillway {

// All contents lie in pinned memory, at the offsets of the host pool.
class CudaCopyPath {
 public:
  // `pinned` outlives the path; null if nothing leaves the device.
  explicit CudaCopyPath(const PinnedBuffer* pinned) : pinned_(pinned) {}
  virtual ~CudaCopyPath() = default;

  // A storage has taken a block of the host pool; what a block holds is no longer needed.
  virtual void OnHostBlock(TensorId /*storage*/, const Block& /*host*/) {}
  virtual void Forget(const Block& /*host*/) {}

  // Enqueues the copy of host.size bytes.
  virtual void Copy(Direction direction, std::byte* device, const Block& host, cudaStream_t stream,
                    const Activity& activity);
  // The streams have completed: returns when what is behind them has.
  virtual void Finish() {}

  // The pinned memory of a block that is not compressed.
  virtual std::byte* At(const Block& host) const { return Pinned(host.offset, host.size); }
  // REQUIRES: nothing is pending.
  virtual void Read(const Block& host, std::span<std::byte> bytes) const;

  virtual std::vector<StoredContents> stored() const { return {}; }
  virtual Bytes stored_peak() const { return Bytes(0); }

 protected:
  std::byte* Pinned(Bytes offset, Bytes size) const;

 private:
  const PinnedBuffer* const pinned_;
};

// Storages that are not kept compressed have pinned memory each for itself, one after the other.
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
  std::map<Bytes, TensorId> owners_;  // of blocks of the host pool, by offset
  std::map<TensorId, Bytes> places_;  // where in pinned memory a storage lies
  Bytes placed_;
};

}  // namespace spillway

#endif  // SPILLWAY_BACKEND_CUDA_COPY_PATH_H_
