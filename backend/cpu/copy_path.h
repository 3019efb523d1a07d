// Where the CPU backend's copies out of the device go: into a region that stands for a pool
// outside, or, on the host, compressed into a store.

#ifndef SPILLWAY_BACKEND_CPU_COPY_PATH_H_
#define SPILLWAY_BACKEND_CPU_COPY_PATH_H_

#include <cstddef>
#include <map>
#include <optional>
#include <span>
#include <vector>

#include "backend/cpu/region.h"
#include "sim/compression/pieces.h"
#include "sim/core/compression.h"
#include "sim/core/executor.h"

namespace spillway {

// All contents lie in the region.
class CpuCopyPath {
 public:
  explicit CpuCopyPath(Bytes pool) : host_(pool) {}
  virtual ~CpuCopyPath() = default;

  // At issue: a storage has taken a block; the storage that a copy into a block will be kept
  // compressed for, if any; an `InputError` if the block lies beyond the pool.
  virtual void OnHostBlock(TensorId /*storage*/, const Block& /*host*/) {}
  virtual std::optional<TensorId> Keeps(const Block& /*host*/) const { return std::nullopt; }
  void Check(const Block& host) const { host_.At(host); }

  // As the commands run.
  virtual void CopyOut(std::optional<TensorId> kept, std::span<const std::byte> device,
                       const Block& host);
  virtual void CopyIn(const Block& host, std::span<std::byte> device) const;

  // The bytes of a block, to be overwritten by contents from elsewhere.
  virtual std::span<std::byte> Overwrite(const Block& host) { return host_.At(host); }
  // No command needs what the block holds.
  virtual void Abandon(const Block& host) { Poison(host_.At(host)); }
  void Read(const Block& host, std::span<std::byte> bytes) const;

  virtual std::vector<StoredContents> stored() const { return {}; }
  virtual Bytes stored_peak() const { return Bytes(0); }

 private:
  Region host_;
};

// What the host keeps compressed goes through a staging buffer and never touches its block of the
// region.
class CpuCompressedCopyPath final : public CpuCopyPath {
 public:
  CpuCompressedCopyPath(Bytes host_memory, const HostCompression& compression);

  void OnHostBlock(TensorId storage, const Block& host) override { owners_[host.offset] = storage; }
  std::optional<TensorId> Keeps(const Block& host) const override;
  void CopyOut(std::optional<TensorId> kept, std::span<const std::byte> device,
               const Block& host) override;
  void CopyIn(const Block& host, std::span<std::byte> device) const override;
  std::span<std::byte> Overwrite(const Block& host) override;
  void Abandon(const Block& host) override;
  std::vector<StoredContents> stored() const override;
  Bytes stored_peak() const override { return blocks_.peak(); }

 private:
  // Forgets what is kept for blocks that overlap this one.
  void Forget(const Block& host);

  const HostCompression compression_;
  BlockPool blocks_;
  mutable ZeroValueCodec codec_;               // its threads are idle between calls
  std::map<Bytes, TensorId> owners_;           // of blocks, by offset
  std::map<Bytes, CompressedPieces> stored_;   // likewise
  std::map<TensorId, StoredContents> latest_;  // of each storage, as it was compressed last
  mutable std::vector<std::byte> staging_;
};

}  // namespace spillway

#endif  // SPILLWAY_BACKEND_CPU_COPY_PATH_H_
