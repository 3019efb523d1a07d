#include "sim/compression/zero_value.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <new>
#include <utility>

#include "traces/base/error.h"

namespace spillway::sim {
namespace {

constexpr size_t kLine = 64;  // chunks are padded to a multiple of this
constexpr size_t kMaskBytes = kChunkWords / 8;
// A packed chunk, with room for the bytes that kernels write behind its end.
constexpr size_t kScratchBytes = kMaskBytes + kChunkBytes + kLine;
// From this size on, results are written past the caches, so that they do not push out data in use.
constexpr size_t kStreamFrom = size_t{1} << 20;

constexpr size_t RoundUpTo(size_t size, size_t unit) { return (size + unit - 1) / unit * unit; }

size_t ChunkCount(size_t bytes) { return (bytes / 4 + kChunkWords - 1) / kChunkWords; }

// Returns the number of words of chunk `chunk`, if there are `words` in total.
size_t WordsOf(size_t chunk, size_t words) {
  return std::min(kChunkWords, words - chunk * kChunkWords);
}

size_t GroupsOf(size_t words) { return (words + kGroup - 1) / kGroup; }

// A group of which only the first words are used.
struct PartialGroup {
  std::array<std::byte, 4 * kGroup> words{};
};

// --- One chunk ----------------------------------------------------------------------------------

struct Packed {
  uint32_t size = 0;
  uint32_t digest = 0;
  size_t nonzero = 0;
};

// Packs a chunk into `scratch`, the mask before the values. If the result is not shorter than the
// words, `size` is the size of the words.
Packed PackChunk(const CodecKernels& kernels, const std::byte* words, size_t count,
                 std::byte* scratch) {
  ChunkSums sums;
  const size_t whole = count / kGroup;
  const size_t mask_bytes = 4 * GroupsOf(count);
  std::byte* const values = scratch + mask_bytes;
  size_t nonzero = kernels.pack(words, whole, scratch, values, sums);
  if (const size_t left = count % kGroup; left > 0) {
    PartialGroup group;
    std::memcpy(group.words.data(), words + 4 * whole * kGroup, 4 * left);
    nonzero += KernelsOf(CodecPath::kScalar)
                   .pack(group.words.data(), 1, scratch + 4 * whole, values + 4 * nonzero, sums);
  }
  Packed packed;
  packed.digest = sums.Digest();
  packed.nonzero = nonzero;
  const size_t size = nonzero == 0 ? 0 : std::min(mask_bytes + 4 * nonzero, 4 * count);
  packed.size = static_cast<uint32_t>(size);
  return packed;
}

// Returns true if the mask of a chunk stored in `size` bytes agrees with that size.
bool MaskAgrees(const CodecKernels& kernels, const std::byte* record, size_t size, size_t count) {
  const size_t groups = GroupsOf(count);
  if (kernels.count(record, groups) != size / 4 - groups) return false;
  if (count % kGroup == 0) return true;
  uint32_t last = 0;
  std::memcpy(&last, record + 4 * (groups - 1), sizeof(last));
  return last >> count % kGroup == 0;
}

// Unpacks a chunk. Returns false if it differs from the packed chunk. `words` has room for the
// chunk, and is a multiple of 64 with `stream`.
bool UnpackChunk(const CodecKernels& kernels, const std::byte* record, size_t size, uint32_t digest,
                 size_t count, std::byte* words, bool stream) {
  ChunkSums sums;
  if (size == 0) {
    std::memset(words, 0, 4 * count);
    return digest == sums.Digest();
  }
  const size_t whole = count / kGroup;
  const size_t left = count % kGroup;
  const CodecKernels& scalar = KernelsOf(CodecPath::kScalar);
  PartialGroup group;
  if (size == 4 * count) {
    std::memcpy(words, record, size);
    kernels.sum(words, whole, sums);
    std::memcpy(group.words.data(), words + 4 * whole * kGroup, 4 * left);
    if (left > 0) scalar.sum(group.words.data(), 1, sums);
    return digest == sums.Digest();
  }
  if (!MaskAgrees(kernels, record, size, count)) return false;
  const std::byte* const values = record + 4 * GroupsOf(count);
  const size_t taken = kernels.unpack(record, values, record + size, whole, words, stream, sums);
  if (left > 0) {
    scalar.unpack(record + 4 * whole, values + 4 * taken, record + size, 1, group.words.data(),
                  false, sums);
    std::memcpy(words + 4 * whole * kGroup, group.words.data(), 4 * left);
  }
  return digest == sums.Digest();
}

}  // namespace

// --- Memory -------------------------------------------------------------------------------------

Bytes Growth::BlockSize(Bytes data) const {
  return RoundUp(std::max(Bytes(1), Bytes(data.count() / (int64_t{fraction} * threads))),
                 Bytes::KiB(4));
}

Bytes CompressedSize(Bytes data, double density, const Growth& growth) {
  SPILLWAY_CHECK(density >= 0 && density <= 1);
  const auto words = static_cast<size_t>(data.count()) / 4;
  const size_t chunks = ChunkCount(4 * words);
  const Bytes block = growth.BlockSize(data);
  // Returns the padded size of one chunk with this share of words that are not zero.
  const auto stored = [&](size_t count) {
    const auto nonzero = static_cast<size_t>(std::llround(density * static_cast<double>(count)));
    if (nonzero == 0) return size_t{0};
    return RoundUpTo(std::min(4 * GroupsOf(count) + 4 * nonzero, 4 * count), kLine);
  };
  const auto parts = std::min(static_cast<size_t>(growth.threads), chunks);
  Bytes total;
  for (size_t p = 0; p < parts; ++p) {
    const size_t first = p * chunks / parts;
    const size_t end = (p + 1) * chunks / parts;
    const size_t bytes = (end - first - 1) * stored(kChunkWords) + stored(WordsOf(end - 1, words));
    total += RoundUp(Bytes(static_cast<int64_t>(bytes)), block);
  }
  return total;
}

void BlockPool::Free::operator()(std::byte* data) const { std::free(data); }

BlockPool::Memory BlockPool::Take(Bytes size) {
  const std::lock_guard lock(mutex_);
  Memory memory;
  std::vector<Memory>& kept = kept_[size];
  if (!kept.empty()) {
    memory = std::move(kept.back());
    kept.pop_back();
  } else {
    void* const data = std::aligned_alloc(4096, static_cast<size_t>(size.count()));
    if (data == nullptr) throw std::bad_alloc();
    memory.reset(static_cast<std::byte*>(data));
  }
  in_use_ += size;
  peak_ = std::max(peak_, in_use_);
  return memory;
}

void BlockPool::Give(Memory memory, Bytes size) {
  const std::lock_guard lock(mutex_);
  kept_[size].push_back(std::move(memory));
  in_use_ -= size;
}

Bytes BlockPool::in_use() const {
  const std::lock_guard lock(mutex_);
  return in_use_;
}

Bytes BlockPool::peak() const {
  const std::lock_guard lock(mutex_);
  return peak_;
}

CompressedData& CompressedData::operator=(CompressedData&& other) noexcept {
  if (this == &other) return *this;
  Clear();
  pool_ = other.pool_;
  original_ = other.original_;
  block_size_ = other.block_size_;
  chunks_ = std::move(other.chunks_);
  parts_ = std::move(other.parts_);
  rest_ = other.rest_;
  return *this;
}

Bytes CompressedData::held() const {
  int64_t blocks = 0;
  for (const Part& part : parts_) blocks += static_cast<int64_t>(part.blocks.size());
  return block_size_ * blocks;
}

int64_t CompressedData::nonzero() const {
  int64_t count = original_.count() % 4 == 0 ? 0 : 1;
  for (const Part& part : parts_) count += part.nonzero;
  return count;
}

void CompressedData::Clear() {
  for (Part& part : parts_) {
    for (BlockPool::Memory& block : part.blocks) pool_->Give(std::move(block), block_size_);
  }
  parts_.clear();
  chunks_.clear();
  original_ = Bytes(0);
}

// --- The codec ----------------------------------------------------------------------------------

ZeroValueCodec::ZeroValueCodec(const Growth& growth, std::optional<CodecPath> path)
    : growth_(growth), path_(path.value_or(CodecPaths().back())), workers_(growth.threads) {
  SPILLWAY_CHECK(growth.fraction >= 1);
}

void ZeroValueCodec::Compress(std::span<const std::byte> data, CompressedData& out) {
  out.Clear();
  const size_t chunks = ChunkCount(data.size());
  out.original_ = Bytes(static_cast<int64_t>(data.size()));
  out.block_size_ = growth_.BlockSize(out.original_);
  out.chunks_.resize(chunks);
  out.rest_ = 0;
  const size_t rest = data.size() % 4;
  if (rest > 0) std::memcpy(&out.rest_, data.data() + data.size() - rest, rest);
  const auto parts = std::min(static_cast<size_t>(growth_.threads), chunks);
  out.parts_.resize(parts);
  for (size_t p = 0; p < parts; ++p) {
    out.parts_[p].first_chunk = p * chunks / parts;
    out.parts_[p].chunk_count = (p + 1) * chunks / parts - p * chunks / parts;
  }
  try {
    workers_.Run(parts, [&](size_t p) { CompressPart(data, out, out.parts_[p]); });
  } catch (...) {
    out.Clear();
    throw;
  }
}

void ZeroValueCodec::CompressPart(std::span<const std::byte> data, CompressedData& out,
                                  CompressedData::Part& part) const {
  alignas(kLine) std::array<std::byte, kScratchBytes> scratch;
  const CodecKernels& kernels = KernelsOf(path_);
  const bool stream = data.size() >= kStreamFrom;
  const auto block_size = static_cast<size_t>(out.block_size_.count());
  for (size_t i = part.first_chunk; i < part.first_chunk + part.chunk_count; ++i) {
    const std::byte* const words = data.data() + i * kChunkBytes;
    const size_t count = WordsOf(i, data.size() / 4);
    const Packed packed = PackChunk(kernels, words, count, scratch.data());
    out.chunks_[i] = {packed.size, packed.digest};
    part.nonzero += static_cast<int64_t>(packed.nonzero);
    if (packed.size == 4 * count) std::memcpy(scratch.data(), words, packed.size);
    // A chunk continues in the next block if one is full. Blocks are multiples of a line.
    for (size_t left = RoundUpTo(packed.size, kLine), done = 0; left > 0;) {
      const size_t offset = part.used % block_size;
      if (offset == 0) part.blocks.push_back(out.pool_->Take(out.block_size_));
      const size_t bytes = std::min(left, block_size - offset);
      std::byte* const to = part.blocks.back().get() + offset;
      if (stream) {
        kernels.stream(scratch.data() + done, bytes, to);
      } else {
        std::memcpy(to, scratch.data() + done, bytes);
      }
      part.used += bytes;
      done += bytes;
      left -= bytes;
    }
  }
  if (stream) FenceStreams();
}

void ZeroValueCodec::Decompress(const CompressedData& data, std::span<std::byte> out) {
  SPILLWAY_CHECK(static_cast<int64_t>(out.size()) == data.original_.count());
  workers_.Run(data.parts_.size(), [&](size_t p) { DecompressPart(data, data.parts_[p], out); });
  const size_t rest = out.size() % 4;
  if (rest > 0) std::memcpy(out.data() + out.size() - rest, &data.rest_, rest);
}

void ZeroValueCodec::DecompressPart(const CompressedData& data, const CompressedData::Part& part,
                                    std::span<std::byte> out) const {
  alignas(kLine) std::array<std::byte, kScratchBytes> scratch;
  const CodecKernels& kernels = KernelsOf(path_);
  const bool stream =
      out.size() >= kStreamFrom && reinterpret_cast<uintptr_t>(out.data()) % kLine == 0;
  const auto block_size = static_cast<size_t>(data.block_size_.count());
  size_t position = 0;
  for (size_t i = part.first_chunk; i < part.first_chunk + part.chunk_count; ++i) {
    const CompressedData::Chunk& chunk = data.chunks_[i];
    const size_t bytes = RoundUpTo(chunk.size, kLine);
    const std::byte* record = nullptr;
    if (bytes > 0) {
      const size_t block = position / block_size;
      const size_t offset = position % block_size;
      record = part.blocks[block].get() + offset;
      if (offset + bytes > block_size) {
        const size_t here = block_size - offset;
        std::memcpy(scratch.data(), record, here);
        for (size_t done = here, next = block + 1; done < bytes; ++next) {
          const size_t more = std::min(bytes - done, block_size);
          std::memcpy(scratch.data() + done, part.blocks[next].get(), more);
          done += more;
        }
        record = scratch.data();
      }
    }
    position += bytes;
    if (!UnpackChunk(kernels, record, chunk.size, chunk.digest, WordsOf(i, out.size() / 4),
                     out.data() + i * kChunkBytes, stream)) {
      throw Error(fmt::format("chunk {} of {} of compressed data has changed in memory", i,
                              data.chunks_.size()));
    }
  }
  if (stream) FenceStreams();
}

}  // namespace spillway::sim
