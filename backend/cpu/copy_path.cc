#include "backend/cpu/copy_path.h"

#include <algorithm>
#include <cstring>

namespace spillway::cpu {

void CpuCopyPath::CopyOut(std::optional<TensorId>, std::span<const std::byte> device,
                          const Block& host) {
  std::ranges::copy(device, host_.At(host).begin());
}

void CpuCopyPath::CopyIn(const Block& host, std::span<std::byte> device) const {
  std::ranges::copy(host_.At(host).first(device.size()), device.begin());
}

void CpuCopyPath::Read(const Block& host, std::span<std::byte> bytes) const {
  CopyIn({host.offset, Bytes(static_cast<int64_t>(bytes.size()))}, bytes);
}

CpuCompressedCopyPath::CpuCompressedCopyPath(Bytes host_memory, const HostCompression& compression)
    : CpuCopyPath(host_memory),
      compression_(compression),
      codec_(Growth{compression.fraction, compression.threads}),
      staging_(static_cast<size_t>(compression.piece.count())) {}

std::optional<TensorId> CpuCompressedCopyPath::Keeps(const Block& host) const {
  const auto owner = owners_.find(host.offset);
  if (owner == owners_.end() || !compression_.Keeps(owner->second)) return std::nullopt;
  return owner->second;
}

void CpuCompressedCopyPath::CopyOut(std::optional<TensorId> kept, std::span<const std::byte> device,
                                    const Block& host) {
  Forget(host);
  if (!kept) return CpuCopyPath::CopyOut(kept, device, host);
  CompressedPieces& pieces = stored_[host.offset];
  for (int64_t i = 0; i < compression_.pieces(host.size); ++i) {
    const auto begin = static_cast<size_t>((compression_.piece * i).count());
    const auto size = static_cast<size_t>(compression_.PieceOf(host.size, i).count());
    std::memcpy(staging_.data(), device.data() + begin, size);
    codec_.Compress(std::span(staging_).first(size), pieces.emplace_back(blocks_));
  }
  latest_[*kept] = Describe(*kept, pieces);
}

void CpuCompressedCopyPath::CopyIn(const Block& host, std::span<std::byte> device) const {
  const auto stored = stored_.find(host.offset);
  if (stored == stored_.end()) return CpuCopyPath::CopyIn(host, device);
  Decompress(stored->second, codec_, staging_, device);
}

std::span<std::byte> CpuCompressedCopyPath::Overwrite(const Block& host) {
  Forget(host);
  return CpuCopyPath::Overwrite(host);
}

void CpuCompressedCopyPath::Abandon(const Block& host) {
  // A block whose contents were compressed has not used its memory in the region, so it needs no
  // poison.
  if (!stored_.contains(host.offset)) return CpuCopyPath::Abandon(host);
  Forget(host);
}

std::vector<StoredContents> CpuCompressedCopyPath::stored() const {
  std::vector<StoredContents> contents;
  for (const auto& [storage, latest] : latest_) contents.push_back(latest);
  return contents;
}

void CpuCompressedCopyPath::Forget(const Block& host) {
  std::erase_if(stored_, [&](const auto& entry) {
    Bytes size;
    for (const CompressedData& piece : entry.second) size += piece.original();
    return Overlap({entry.first, size}, host);
  });
}

}  // namespace spillway::cpu
