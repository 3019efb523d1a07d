// The destinations of the CPU backend's copies out of the device. Each pool outside the device is a
// region. The host can instead compress contents into a store.

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

namespace spillway::cpu {

// A copy path that keeps all contents uncompressed in the region.
class CpuCopyPath {
 public:
  explicit CpuCopyPath(Bytes pool) : host_(pool) {}
  virtual ~CpuCopyPath() = default;

  // The next three are called when a command is issued.
  // Notes that the block now belongs to the storage.
  virtual void OnHostBlock(TensorId /*storage*/, const Block& /*host*/) {}
  // Returns the storage that owns the block if its contents are kept compressed, nullopt otherwise.
  virtual std::optional<TensorId> Keeps(const Block& /*host*/) const { return std::nullopt; }
  // Throws `InputError` if the block lies beyond the pool.
  void Check(const Block& host) const { host_.At(host); }

  // `CopyOut` and `CopyIn` are called when a command runs. `kept` is the result of `Keeps` when the
  // copy was issued.
  virtual void CopyOut(std::optional<TensorId> kept, std::span<const std::byte> device,
                       const Block& host);
  virtual void CopyIn(const Block& host, std::span<std::byte> device) const;

  // Returns the bytes of a block, for the caller to overwrite with contents from elsewhere.
  virtual std::span<std::byte> Overwrite(const Block& host) { return host_.At(host); }
  // Discards the contents of a block. REQUIRES: no command still needs them.
  virtual void Abandon(const Block& host) { Poison(host_.At(host)); }
  void Read(const Block& host, std::span<std::byte> bytes) const;

  virtual std::vector<StoredContents> stored() const { return {}; }
  virtual Bytes stored_peak() const { return Bytes(0); }

 private:
  Region host_;
};

// A copy path that keeps some contents compressed on the host. Compressed contents pass through a
// staging buffer and never touch their block of the region.
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
  // Forgets the compressed contents of all blocks that overlap `host`.
  void Forget(const Block& host);

  const HostCompression compression_;
  BlockPool blocks_;
  mutable ZeroValueCodec codec_;               // its threads are idle between calls
  std::map<Bytes, TensorId> owners_;           // owners of blocks, by block offset
  std::map<Bytes, CompressedPieces> stored_;   // by block offset
  std::map<TensorId, StoredContents> latest_;  // latest compression of each storage
  mutable std::vector<std::byte> staging_;
};

}  // namespace spillway::cpu

#endif  // SPILLWAY_BACKEND_CPU_COPY_PATH_H_
