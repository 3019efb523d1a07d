// The inner loops of the zero-value codec, one set for each kind of processor: words that are not
// zero are packed together, and spread out again, as a bit mask says.
//
// They check nothing: sizes and masks are verified before (zero_value.cc). All sets give the same
// bytes. Words are 32 bits at any address, little-endian; zero means that all bits are zero.

#ifndef SPILLWAY_SIM_COMPRESSION_CODEC_LOOPS_H_
#define SPILLWAY_SIM_COMPRESSION_CODEC_LOOPS_H_

#include <array>
#include <cstddef>
#include <cstdint>
#include <string_view>
#include <vector>

namespace spillway {

// Which instructions the inner loops use. All give the same bytes.
enum class CodecPath : uint8_t { kScalar, kAvx2, kAvx512 };
std::string_view Name(CodecPath path);

// Those that this machine can run, the fastest last; never empty.
std::vector<CodecPath> CodecPaths();

// Words whose mask bits share a word of the mask.
inline constexpr size_t kGroup = 32;

// Two running sums over the words of a chunk, in 16 lanes: word i belongs to lane i % 16. They tell
// chunks apart that differ in a bit, or in the order of words of a lane.
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
  // Packs whole groups: `mask` gets a word for each group, `values` the words that are not zero,
  // whose number is returned. `values` has room for 16 words more than the groups have.
  size_t (*pack)(const std::byte* words, size_t groups, std::byte* mask, std::byte* values,
                 ChunkSums& sums);
  // The reverse; returns how many values were taken, and reads none beyond `values_end`. With
  // `stream`, `words` is a multiple of 64 and is written past the caches.
  size_t (*unpack)(const std::byte* mask, const std::byte* values, const std::byte* values_end,
                   size_t groups, std::byte* words, bool stream, ChunkSums& sums);
  // Sums alone.
  void (*sum)(const std::byte* words, size_t groups, ChunkSums& sums);
  // Bits set in the words of a mask.
  size_t (*count)(const std::byte* mask, size_t groups);
  // Copies a multiple of 64 bytes past the caches. `to` is a multiple of 64.
  void (*stream)(const std::byte* from, size_t bytes, std::byte* to);
};

// REQUIRES: the path is one of `CodecPaths()`.
const CodecKernels& KernelsOf(CodecPath path);

// The order of writes past the caches with all later ones.
void FenceStreams();

}  // namespace spillway

#endif  // SPILLWAY_SIM_COMPRESSION_CODEC_LOOPS_H_
