// A lossless codec for data with many zeros, such as the outputs of ReLU: a bit mask that says
// which words are not zero, and those words. vDNN++ (section IV-C) compresses offloaded feature
// maps so.
//
// A word is 32 bits, and zero only if all its bits are: negative zero, denormals and every payload
// of a NaN come back as they were. Data is cut into chunks of 16 KiB that are independent of one
// another, so that threads share the work; memory for the result is taken in blocks of a fixed
// fraction of the data as it turns out to be needed, for counting zeros first would take as long
// again.

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

namespace spillway {

inline constexpr size_t kChunkWords = 4096;
inline constexpr size_t kChunkBytes = 4 * kChunkWords;

// How compressed data grows: by blocks of 1 / (fraction * threads) of the data, each thread by its
// own, and at least of 4 KiB. The authors of vDNN++ take 8 for the fraction; more waste less.
struct Growth {
  int fraction = 32;
  int threads = 1;

  // The size of a block for so many bytes of data: a multiple of 4 KiB.
  Bytes BlockSize(Bytes data) const;
};

// The memory that data of this size takes compressed if `density` of its words, in [0, 1], are not
// zero, evenly over all chunks: whole blocks.
Bytes CompressedSize(Bytes data, double density, const Growth& growth);

// Pageable memory for compressed data, in blocks that are kept for the next taker of their size.
// Safe to use from several threads.
class BlockPool {
 public:
  struct Free {
    void operator()(std::byte* data) const;
  };
  using Memory = std::unique_ptr<std::byte[], Free>;

  // At a multiple of 64. Throws `std::bad_alloc`.
  Memory Take(Bytes size);
  void Give(Memory memory, Bytes size);

  Bytes in_use() const;
  Bytes peak() const;  // most bytes in use at once since the last `ResetPeak`
  void ResetPeak();

 private:
  mutable std::mutex mutex_;
  std::map<Bytes, std::vector<Memory>> kept_;
  Bytes in_use_, peak_;
};

// Data that was compressed, in blocks of a pool, which outlives it.
class CompressedData {
 public:
  explicit CompressedData(BlockPool& pool) : pool_(&pool) {}
  ~CompressedData() { Clear(); }
  CompressedData(CompressedData&&) = default;
  CompressedData& operator=(CompressedData&& other) noexcept;
  CompressedData(const CompressedData&) = delete;
  CompressedData& operator=(const CompressedData&) = delete;

  Bytes original() const { return original_; }
  // Bytes of memory held, in whole blocks.
  Bytes held() const;
  // Words that are not zero, and all words; a rest of up to three bytes counts as one of each.
  int64_t nonzero() const;
  int64_t words() const { return (original_.count() + 3) / 4; }

  // Gives the blocks back.
  void Clear();

 private:
  friend class ZeroValueCodec;

  // One chunk. `size` says how it is stored: 0 for nothing but zeros, that of the chunk for the
  // words as they are, else a mask and values.
  struct Chunk {
    uint32_t size = 0;
    uint32_t digest = 0;
  };
  // What one thread wrote: consecutive chunks, each padded to a multiple of 64 bytes.
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
  uint32_t rest_ = 0;  // the last one to three bytes, where the size is no multiple of four
};

class ZeroValueCodec {
 public:
  // `path`: the fastest if not given; REQUIRES: one of `CodecPaths()`. REQUIRES: growth.threads and
  // growth.fraction are at least 1.
  explicit ZeroValueCodec(const Growth& growth, std::optional<CodecPath> path = std::nullopt);

  // Replaces what `out` holds. Throws `std::bad_alloc`; then `out` is empty.
  void Compress(std::span<const std::byte> data, CompressedData& out);

  // REQUIRES: `out` has data.original() bytes. Throws `Error` if the data has changed in memory
  // since it was compressed; what `out` holds is undefined then.
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

}  // namespace spillway

#endif  // SPILLWAY_SIM_COMPRESSION_ZERO_VALUE_H_
