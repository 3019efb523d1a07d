// The zero-value codec on every path that this machine has: whatever the bytes, they come back, all
// paths write the same frame, and nothing but a frame is read.

#include <gmock/gmock.h>
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

namespace spillway {
namespace {

using ::testing::HasSubstr;
using ::testing::StartsWith;

using Data = std::vector<std::byte>;

Data OfWords(const std::vector<uint32_t>& words) {
  Data data(4 * words.size());
  if (!data.empty()) std::memcpy(data.data(), words.data(), data.size());
  return data;
}

// Of so many bytes; that share of the words is not zero.
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

  // Compresses, checks what is said of the result, and returns what comes back.
  Data RoundTrip(const Data& data) {
    CompressedData compressed(pool_);
    codec_.Compress(data, compressed);
    EXPECT_EQ(compressed.original(), Bytes(static_cast<int64_t>(data.size())));
    EXPECT_EQ(compressed.nonzero(), static_cast<int64_t>(WordsSet(data)));
    EXPECT_EQ(compressed.held(), pool_.in_use());
    Data out(data.size(), std::byte{0xa5});
    codec_.Decompress(compressed, out);

    const Data frame = ZeroValueCodec::Frame(compressed);
    EXPECT_EQ(ZeroValueCodec::OriginalSize(frame, "frame"), compressed.original());
    Data framed(data.size(), std::byte{0x5a});
    codec_.DecompressFrame(frame, framed, "frame");
    EXPECT_EQ(framed, out);
    // The simplest way to say it: one thread without vectors.
    ZeroValueCodec plain({8, 1}, CodecPath::kScalar);
    CompressedData reference(pool_);
    plain.Compress(data, reference);
    EXPECT_EQ(ZeroValueCodec::Frame(reference), frame);
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
      0x7fc12345U, 0xffffffffU,  // quiet ones with payloads
      0x7f800000U, 0U,          0U, 0U, std::bit_cast<uint32_t>(-1.5F)};
  std::vector<uint32_t> words;
  for (size_t i = 0; i < 6000; ++i) words.push_back(some[i % some.size()]);
  const Data data = OfWords(words);
  EXPECT_EQ(RoundTrip(data), data);
  const Data negative_zeros = OfWords(std::vector<uint32_t>(5000, 0x80000000U));
  EXPECT_EQ(RoundTrip(negative_zeros), negative_zeros);
}

// Each position of a group, alone.
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
    // Nothing around it was written.
    for (size_t i = 0; i < shift; ++i) ASSERT_EQ(out[i], std::byte{0x77});
    for (size_t i = shift + data.size(); i < out.size(); ++i) ASSERT_EQ(out[i], std::byte{0x77});
  }
}

// Large enough to be written past the caches.
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
  // The model of the simulator knows the same.
  const double density =
      static_cast<double>(compressed.nonzero()) / static_cast<double>(compressed.words());
  EXPECT_EQ(CompressedSize(compressed.original(), density, growth()), compressed.held());
  codec_.Compress(data, compressed);  // in the same blocks
  EXPECT_EQ(pool_.peak(), compressed.held());
  compressed.Clear();
  EXPECT_EQ(pool_.in_use(), Bytes(0));
  EXPECT_EQ(compressed.held(), Bytes(0));
}

// --- Frames of others ---------------------------------------------------------------------------

class CodecFrame : public CodecContract {
 protected:
  Data FrameOf(const Data& data) {
    CompressedData compressed(pool_);
    codec_.Compress(data, compressed);
    return ZeroValueCodec::Frame(compressed);
  }
  // What the parser says against it; empty if it takes it.
  std::string Refusal(const Data& frame) {
    try {
      Data out(static_cast<size_t>(ZeroValueCodec::OriginalSize(frame, "f").count()));
      codec_.DecompressFrame(frame, out, "f");
    } catch (const InputError& error) {
      return error.what();
    }
    return {};
  }
};

INSTANTIATE_TEST_SUITE_P(All, CodecFrame, ::testing::ValuesIn(Paths()), [](const auto& test) {
  return std::string(Name(test.param.path)) + "_" + std::to_string(test.param.threads);
});

TEST_P(CodecFrame, RefusesEveryTruncation) {
  const Data frame = FrameOf(Random(kChunkBytes + 1001, 0.3));
  ASSERT_EQ(Refusal(frame), "");
  for (size_t size = 0; size < frame.size(); ++size) {
    ASSERT_THAT(Refusal(Data(frame.begin(), frame.begin() + static_cast<ptrdiff_t>(size))),
                StartsWith("f: byte "))
        << size;
  }
  Data longer = frame;
  longer.push_back(std::byte{0});
  EXPECT_THAT(Refusal(longer), HasSubstr("bytes of chunks, expected"));
}

TEST_P(CodecFrame, RefusesEveryFlippedBit) {
  const Data frame = FrameOf(Random(1403, 0.5));
  for (size_t bit = 0; bit < 8 * frame.size(); ++bit) {
    Data flipped = frame;
    flipped[bit / 8] ^= std::byte{static_cast<uint8_t>(1U << bit % 8)};
    ASSERT_THAT(Refusal(flipped), StartsWith("f: byte ")) << bit;
  }
}

TEST_P(CodecFrame, SaysWhatIsWrong) {
  const Data frame = FrameOf(Random(1403, 0.5));
  const auto with = [&](size_t byte, uint8_t value) {
    Data changed = frame;
    changed[byte] = std::byte{value};
    return Refusal(changed);
  };
  EXPECT_THAT(with(0, 'X'), HasSubstr("not compressed data"));
  EXPECT_THAT(with(4, 2), HasSubstr("version 2, expected 1"));
  EXPECT_THAT(with(16, 1), HasSubstr("words, expected 4096"));
  EXPECT_THAT(with(15, 0x7f), HasSubstr("do not make"));
  EXPECT_THAT(with(22, 1), HasSubstr("do not make"));
  EXPECT_THAT(with(frame.size() - 1, 0xfe), HasSubstr("chunk 0 is not what was compressed"));
}

}  // namespace
}  // namespace spillway
