// The inner loops of the zero-value codec, one set for each kind of processor. They pack the words
// that are not zero, and spread them out again as a bit mask says.
//
// The loops check nothing; zero_value.cc verifies sizes and masks first. All sets give the same
// bytes. Words are 32 bits at any address, little-endian. A word is zero if all its bits are zero.

#ifndef SPILLWAY_SIM_COMPRESSION_CODEC_LOOPS_H_
#define SPILLWAY_SIM_COMPRESSION_CODEC_LOOPS_H_

#include <array>
#include <cstddef>
#include <cstdint>
#include <string_view>
#include <vector>

namespace spillway::sim {

// The instructions that the inner loops use. All paths give the same bytes.
enum class CodecPath : uint8_t { kScalar, kAvx2, kAvx512 };
std::string_view Name(CodecPath path);

// Returns the paths that this machine can run, the fastest last; never empty.
std::vector<CodecPath> CodecPaths();

// Number of words whose mask bits form one word of the mask.
inline constexpr size_t kGroup = 32;

// Two running sums over the words of a chunk, in 16 lanes: word i belongs to lane i % 16. The sums
// differ between chunks that differ in one bit, or in the order of words in a lane.
struct ChunkSums {
  std::array<uint32_t, 16> plain{};
  std::array<uint32_t, 16> weighted{};

  void Add(size_t index, uint32_t word) {
    uint32_t& sum = plain[index % plain.size()];
    sum += word;
    weighted[index % plain.size()] += sum;
  }
  uint32_t Digest() const;
};

struct CodecKernels {
  // Packs whole groups. `mask` gets one word for each group, and `values` gets the words that are
  // not zero; returns the number of values. `values` has room for 16 words more than the groups
  // have.
  size_t (*pack)(const std::byte* words, size_t groups, std::byte* mask, std::byte* values,
                 ChunkSums& sums);
  // Reverses `pack`. Returns the number of values taken, and reads no value beyond `values_end`.
  // With `stream`, `words` is a multiple of 64 and is written past the caches.
  size_t (*unpack)(const std::byte* mask, const std::byte* values, const std::byte* values_end,
                   size_t groups, std::byte* words, bool stream, ChunkSums& sums);
  // Only adds the words to the sums.
  void (*sum)(const std::byte* words, size_t groups, ChunkSums& sums);
  // Returns the number of bits set in the words of a mask.
  size_t (*count)(const std::byte* mask, size_t groups);
  // Copies `bytes`, a multiple of 64, past the caches. `to` is a multiple of 64.
  void (*stream)(const std::byte* from, size_t bytes, std::byte* to);
};

// Returns the loops of a path. REQUIRES: the path is one of `CodecPaths()`.
const CodecKernels& KernelsOf(CodecPath path);

// Orders writes past the caches before all later writes.
void FenceStreams();

}  // namespace spillway::sim

#endif  // SPILLWAY_SIM_COMPRESSION_CODEC_LOOPS_H_
