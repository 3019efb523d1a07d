// Tests the zero-value codec on every path that this machine has. All bytes are restored, whichever
// paths wrote and read them, and every change in memory is detected.

#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include "sim/compression/zero_value.h"
#include "traces/base/error.h"

namespace spillway::testing {
namespace {

using Data = std::vector<std::byte>;

Data OfWords(const std::vector<uint32_t>& words) {
  Data data(4 * words.size());
  if (!data.empty()) std::memcpy(data.data(), words.data(), data.size());
  return data;
}

// Returns `bytes` bytes, of whose words a share `density` is not zero.
Data Random(size_t bytes, double density, uint64_t seed = 1) {
  std::mt19937_64 random(seed);
  std::vector<uint32_t> words(bytes / 4 + 1);
  for (uint32_t& word : words) {
    const bool set = static_cast<double>(random() % 1000000) < density * 1e6;
    word = set ? static_cast<uint32_t>(random()) | 1U : 0;
  }
  Data data = OfWords(words);
  data.resize(bytes);
  return data;
}

size_t WordsSet(const Data& data) {
  size_t count = 0;
  for (size_t i = 0; i + 4 <= data.size(); i += 4) {
    uint32_t word = 0;
    std::memcpy(&word, data.data() + i, 4);
    count += word != 0 ? 1 : 0;
  }
  return count + (data.size() % 4 == 0 ? 0 : 1);
}

struct Path {
  CodecPath path;
  int threads;
};

class CodecContract : public ::testing::TestWithParam<Path> {
 protected:
  Growth growth() const { return {8, GetParam().threads}; }

  // Compresses, checks the properties of the result, and returns the decompressed data.
  Data RoundTrip(const Data& data) {
    CompressedData compressed(pool_);
    codec_.Compress(data, compressed);
    EXPECT_EQ(compressed.original(), Bytes(static_cast<int64_t>(data.size())));
    EXPECT_EQ(compressed.nonzero(), static_cast<int64_t>(WordsSet(data)));
    EXPECT_EQ(compressed.held(), pool_.in_use());
    Data out(data.size(), std::byte{0xa5});
    codec_.Decompress(compressed, out);

    // Compare with the simplest codec, which has one thread and no vectors. Each codec reads the
    // data that the other wrote.
    ZeroValueCodec plain({8, 1}, CodecPath::kScalar);
    Data again(data.size(), std::byte{0x5a});
    plain.Decompress(compressed, again);
    EXPECT_EQ(again, out);
    plain.Compress(data, compressed);
    codec_.Decompress(compressed, again);
    EXPECT_EQ(again, out);
    return out;
  }

  BlockPool pool_;
  ZeroValueCodec codec_{growth(), GetParam().path};
};

std::vector<Path> Paths() {
  std::vector<Path> paths;
  for (const CodecPath path : CodecPaths()) {
    for (const int threads : {1, 3}) paths.push_back({path, threads});
  }
  return paths;
}

INSTANTIATE_TEST_SUITE_P(All, CodecContract, ::testing::ValuesIn(Paths()), [](const auto& test) {
  return std::string(Name(test.param.path)) + "_" + std::to_string(test.param.threads);
});

TEST_P(CodecContract, EmptyAndShorterThanAWord) {
  for (size_t size = 0; size < 9; ++size) {
    const Data data = Random(size, 1, size);
    EXPECT_EQ(RoundTrip(data), data) << size;
  }
}

TEST_P(CodecContract, EveryLengthAroundGroupsAndChunks) {
  for (const size_t around : {size_t{64}, size_t{128}, size_t{256}, kChunkBytes, 3 * kChunkBytes}) {
    for (size_t size = around - 9; size <= around + 9; ++size) {
      const Data data = Random(size, 0.4, size);
      ASSERT_EQ(RoundTrip(data), data) << size;
    }
  }
}

TEST_P(CodecContract, EveryDensity) {
  for (const double density : {0.0, 0.001, 0.03, 0.1, 0.5, 0.9, 0.96, 0.969, 0.98, 1.0}) {
    const Data data = Random(5 * kChunkBytes + 1236, density);
    EXPECT_EQ(RoundTrip(data), data) << density;
  }
}

TEST_P(CodecContract, BitsThatAreNotNumbers) {
  const std::vector<uint32_t> some{
      0x80000000U,               // negative zero
      1U,          0x807fffffU,  // denormals
      0x7f800001U,               // a signalling NaN
      0x7fc12345U, 0xffffffffU,  // quiet NaNs with payloads
      0x7f800000U, 0U,          0U, 0U, std::bit_cast<uint32_t>(-1.5F)};
  std::vector<uint32_t> words;
  for (size_t i = 0; i < 6000; ++i) words.push_back(some[i % some.size()]);
  const Data data = OfWords(words);
  EXPECT_EQ(RoundTrip(data), data);
  const Data negative_zeros = OfWords(std::vector<uint32_t>(5000, 0x80000000U));
  EXPECT_EQ(RoundTrip(negative_zeros), negative_zeros);
}

// The only word that is not zero is tried at each position of a group.
TEST_P(CodecContract, OneWord) {
  for (size_t i = 0; i < 70; ++i) {
    std::vector<uint32_t> words(70);
    words[i] = 0x80000000U;
    const Data data = OfWords(words);
    EXPECT_EQ(RoundTrip(data), data) << i;
  }
}

TEST_P(CodecContract, AnyAddress) {
  const Data data = Random(3 * kChunkBytes + 77, 0.5);
  for (size_t shift = 0; shift < 9; ++shift) {
    Data shifted(data.size() + shift);
    std::copy(data.begin(), data.end(), shifted.begin() + static_cast<ptrdiff_t>(shift));
    CompressedData compressed(pool_);
    codec_.Compress(std::span(shifted).subspan(shift), compressed);
    Data out(data.size() + shift + 64, std::byte{0x77});
    codec_.Decompress(compressed, std::span(out).subspan(shift, data.size()));
    EXPECT_TRUE(std::equal(data.begin(), data.end(), out.begin() + static_cast<ptrdiff_t>(shift)));
    // The bytes around the output were not written.
    for (size_t i = 0; i < shift; ++i) ASSERT_EQ(out[i], std::byte{0x77});
    for (size_t i = shift + data.size(); i < out.size(); ++i) ASSERT_EQ(out[i], std::byte{0x77});
  }
}

// The data are large enough to be written past the caches.
TEST_P(CodecContract, Megabytes) {
  Data data = Random((size_t{5} << 20) + 8, 0.5);
  std::fill(data.begin() + 100000, data.begin() + 1000000, std::byte{0});
  EXPECT_TRUE(RoundTrip(data) == data);
}

TEST_P(CodecContract, HoldsWholeBlocksAndGivesThemBack) {
  const Data data = Random(size_t{4} << 20, 0.25);
  CompressedData compressed(pool_);
  codec_.Compress(data, compressed);
  const Bytes block = growth().BlockSize(compressed.original());
  EXPECT_EQ(block, RoundUp(Bytes((4 << 20) / (8 * GetParam().threads)), Bytes::KiB(4)));
  EXPECT_EQ(compressed.held().count() % block.count(), 0);
  EXPECT_LT(compressed.held(), Bytes::MiB(2));
  // The simulator's model computes the same size.
  const double density =
      static_cast<double>(compressed.nonzero()) / static_cast<double>(compressed.words());
  EXPECT_EQ(CompressedSize(compressed.original(), density, growth()), compressed.held());
  codec_.Compress(data, compressed);  // reuses the same blocks
  EXPECT_EQ(pool_.peak(), compressed.held());
  compressed.Clear();
  EXPECT_EQ(pool_.in_use(), Bytes(0));
  EXPECT_EQ(compressed.held(), Bytes(0));
}

// At density 0.5 a chunk is stored as mask and words, at density 1 as its plain words.
TEST_P(CodecContract, NoticesEveryBitThatHasChangedInMemory) {
  for (const double density : {0.5, 1.0}) {
    const Data data = Random(1400, density);
    // The block that will hold the data: a pool gives out the block that was returned to it.
    ZeroValueCodec codec({1, 1}, GetParam().path);
    const Bytes size = Growth{1, 1}.BlockSize(Bytes(1400));
    BlockPool::Memory memory = pool_.Take(size);
    std::byte* const block = memory.get();
    pool_.Give(std::move(memory), size);
    CompressedData compressed(pool_);
    codec.Compress(data, compressed);
    ASSERT_EQ(compressed.held(), size);
    Data out(data.size());
    const size_t stored = density == 1.0 ? 1400 : 44 + 4 * WordsSet(data);
    for (size_t bit = 0; bit < 8 * stored; ++bit) {
      block[bit / 8] ^= std::byte{static_cast<uint8_t>(1U << bit % 8)};
      ASSERT_THROW(codec.Decompress(compressed, out), Error) << bit;
      block[bit / 8] ^= std::byte{static_cast<uint8_t>(1U << bit % 8)};
    }
    codec.Decompress(compressed, out);
    EXPECT_EQ(out, data);
  }
}

}  // namespace
}  // namespace spillway::testing
