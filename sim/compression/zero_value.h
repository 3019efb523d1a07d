// A lossless codec for data with many zeros, such as the outputs of ReLU. It stores the words that
// are not zero, and a bit mask that tells their positions. vDNN++ (section IV-C) compresses
// offloaded feature maps in this way.
//
// A word is 32 bits and counts as zero only if all its bits are zero: negative zero, denormals and
// every NaN payload are preserved. Data is cut into independent chunks of 16 KiB, so that threads
// share the work. Memory for the result is taken when needed, in blocks of a fixed fraction of the
// data, because counting zeros first would double the time.

#ifndef SPILLWAY_SIM_COMPRESSION_ZERO_VALUE_H_
#define SPILLWAY_SIM_COMPRESSION_ZERO_VALUE_H_

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <vector>

#include "sim/compression/codec_loops.h"
#include "sim/compression/workers.h"
#include "traces/base/units.h"

namespace spillway::sim {

inline constexpr size_t kChunkWords = 4096;
inline constexpr size_t kChunkBytes = 4 * kChunkWords;

// The growth of compressed data. Each thread takes its own blocks of 1 / (fraction * threads) of
// the data, at least 4 KiB each. The authors of vDNN++ use 8 for the fraction; larger values waste
// less memory.
struct Growth {
  int fraction = 32;
  int threads = 1;

  // Returns the size of a block for `data` bytes, a multiple of 4 KiB.
  Bytes BlockSize(Bytes data) const;
};

// Returns the memory, in whole blocks, that data of this size takes when compressed. `density` is
// the share of its words, in [0, 1], that are not zero, evenly over all chunks.
Bytes CompressedSize(Bytes data, double density, const Growth& growth);

// Pageable memory for compressed data, in blocks that are kept for the next request of their size.
// Safe to use from several threads.
class BlockPool {
 public:
  struct Free {
    void operator()(std::byte* data) const;
  };
  using Memory = std::unique_ptr<std::byte[], Free>;

  // Returns memory aligned to 64 bytes. Throws `std::bad_alloc`.
  Memory Take(Bytes size);
  void Give(Memory memory, Bytes size);

  Bytes in_use() const;
  Bytes peak() const;  // most bytes in use at once

 private:
  mutable std::mutex mutex_;
  std::map<Bytes, std::vector<Memory>> kept_;
  Bytes in_use_, peak_;
};

// Compressed data in blocks of a pool. The pool outlives the data.
class CompressedData {
 public:
  explicit CompressedData(BlockPool& pool) : pool_(&pool) {}
  ~CompressedData() { Clear(); }
  CompressedData(CompressedData&&) = default;
  CompressedData& operator=(CompressedData&& other) noexcept;
  CompressedData(const CompressedData&) = delete;
  CompressedData& operator=(const CompressedData&) = delete;

  Bytes original() const { return original_; }
  // Returns the bytes of memory held, in whole blocks.
  Bytes held() const;
  // The number of words that are not zero, and of all words. A rest of up to three bytes counts as
  // one word that is not zero.
  int64_t nonzero() const;
  int64_t words() const { return (original_.count() + 3) / 4; }

  // Gives the blocks back to the pool.
  void Clear();

 private:
  friend class ZeroValueCodec;

  // One chunk. `size` tells how it is stored: 0 for only zeros, the chunk's size for the words as
  // they are, otherwise a mask and values.
  struct Chunk {
    uint32_t size = 0;
    uint32_t digest = 0;
  };
  // The chunks written by one thread. They are consecutive, each padded to a multiple of 64 bytes.
  struct Part {
    size_t first_chunk = 0;
    size_t chunk_count = 0;
    size_t used = 0;  // bytes
    int64_t nonzero = 0;
    std::vector<BlockPool::Memory> blocks;
  };

  BlockPool* pool_;
  Bytes original_;
  Bytes block_size_;
  std::vector<Chunk> chunks_;
  std::vector<Part> parts_;
  uint32_t rest_ = 0;  // the last one to three bytes, if the size is not a multiple of four
};

class ZeroValueCodec {
 public:
  // `path` is the fastest by default. REQUIRES: the path is one of `CodecPaths()`; growth.threads
  // and growth.fraction are at least 1.
  explicit ZeroValueCodec(const Growth& growth, std::optional<CodecPath> path = std::nullopt);

  // Replaces the contents of `out`. Throws `std::bad_alloc`; then `out` is empty.
  void Compress(std::span<const std::byte> data, CompressedData& out);

  // Decompresses `data`. REQUIRES: `out` has data.original() bytes. Throws `Error` if the data has
  // changed in memory since it was compressed; then the contents of `out` are undefined.
  void Decompress(const CompressedData& data, std::span<std::byte> out);

 private:
  void CompressPart(std::span<const std::byte> data, CompressedData& out,
                    CompressedData::Part& part) const;
  void DecompressPart(const CompressedData& data, const CompressedData::Part& part,
                      std::span<std::byte> out) const;

  const Growth growth_;
  const CodecPath path_;
  Workers workers_;
};

}  // namespace spillway::sim

#endif  // SPILLWAY_SIM_COMPRESSION_ZERO_VALUE_H_
