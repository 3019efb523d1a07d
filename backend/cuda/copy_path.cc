#include "backend/cuda/copy_path.h"

#include <algorithm>

#include "traces/base/error.h"

namespace spillway::cuda {

std::byte* CudaCopyPath::Pinned(Bytes offset, Bytes size) const {
  SPILLWAY_CHECK(pinned_ != nullptr && offset + size <= pinned_->size());
  return pinned_->data() + offset.count();
}

void CudaCopyPath::Copy(Direction direction, std::byte* device, const Block& host,
                        cudaStream_t stream, const Activity& activity) {
  const bool to_host = direction == Direction::kToHost;
  std::byte* const pinned = At(host);
  SPILLWAY_CUDA_CALL(
      cudaMemcpyAsync(to_host ? pinned : device, to_host ? device : pinned,
                      static_cast<size_t>(host.size.count()),
                      to_host ? cudaMemcpyDeviceToHost : cudaMemcpyHostToDevice, stream),
      activity);
}

void CudaCopyPath::Read(const Block& host, std::span<std::byte> bytes) const {
  std::copy_n(At({host.offset, Bytes(static_cast<int64_t>(bytes.size()))}), bytes.size(),
              bytes.data());
}

void CudaCompressedCopyPath::OnHostBlock(TensorId storage, const Block& host) {
  owners_[host.offset] = storage;
  store_.Forget(host);
  if (store_.Keeps(storage) || places_.contains(storage)) return;
  places_[storage] = placed_;
  placed_ += host.size;
}

void CudaCompressedCopyPath::Copy(Direction direction, std::byte* device, const Block& host,
                                  cudaStream_t stream, const Activity& activity) {
  const TensorId storage = owners_.at(host.offset);
  if (direction == Direction::kToHost && store_.Keeps(storage)) {
    store_.CopyOut(storage, device, host, stream);
  } else if (direction == Direction::kToDevice && store_.Holds(host)) {
    store_.CopyIn(device, host, stream);
  } else {
    CudaCopyPath::Copy(direction, device, host, stream, activity);
  }
}

std::byte* CudaCompressedCopyPath::At(const Block& host) const {
  return Pinned(places_.at(owners_.at(host.offset)), host.size);
}

void CudaCompressedCopyPath::Read(const Block& host, std::span<std::byte> bytes) const {
  store_.Holds(host) ? store_.Read(host, bytes) : CudaCopyPath::Read(host, bytes);
}

}  // namespace spillway::cuda
