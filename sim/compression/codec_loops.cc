#include "sim/compression/codec_loops.h"

#include <bit>
#include <cstring>

#include "traces/base/error.h"

#if defined(__x86_64__)
#include <immintrin.h>
#define SPILLWAY_X86 1
#endif

namespace spillway::sim {
namespace {

static_assert(std::endian::native == std::endian::little);

uint32_t Load(const std::byte* at) {
  uint32_t word = 0;
  std::memcpy(&word, at, sizeof(word));
  return word;
}

void Store(std::byte* at, uint32_t word) { std::memcpy(at, &word, sizeof(word)); }

// --- Any processor ------------------------------------------------------------------------------

size_t PackScalar(const std::byte* words, size_t groups, std::byte* mask, std::byte* values,
                  ChunkSums& sums) {
  size_t count = 0;
  for (size_t group = 0; group < groups; ++group) {
    uint32_t bits = 0;
    for (size_t i = 0; i < kGroup; ++i) {
      const uint32_t word = Load(words + 4 * (group * kGroup + i));
      Store(values + 4 * count, word);
      count += word != 0 ? 1 : 0;
      bits |= static_cast<uint32_t>(word != 0 ? 1 : 0) << i;
      sums.Add(i, word);
    }
    Store(mask + 4 * group, bits);
  }
  return count;
}

// Writes one group from `values`. Returns the number of values taken.
size_t UnpackGroup(uint32_t bits, const std::byte* values, std::byte* words, ChunkSums& sums) {
  size_t count = 0;
  for (size_t i = 0; i < kGroup; ++i) {
    uint32_t word = 0;
    if ((bits >> i & 1) != 0) word = Load(values + 4 * count++);
    Store(words + 4 * i, word);
    sums.Add(i, word);
  }
  return count;
}

size_t UnpackScalar(const std::byte* mask, const std::byte* values, const std::byte*, size_t groups,
                    std::byte* words, bool, ChunkSums& sums) {
  size_t count = 0;
  for (size_t group = 0; group < groups; ++group) {
    count +=
        UnpackGroup(Load(mask + 4 * group), values + 4 * count, words + 4 * group * kGroup, sums);
  }
  return count;
}

void SumScalar(const std::byte* words, size_t groups, ChunkSums& sums) {
  for (size_t i = 0; i < groups * kGroup; ++i) sums.Add(i, Load(words + 4 * i));
}

size_t CountScalar(const std::byte* mask, size_t groups) {
  size_t count = 0;
  for (size_t group = 0; group < groups; ++group) {
    count += static_cast<size_t>(std::popcount(Load(mask + 4 * group)));
  }
  return count;
}

void StreamScalar(const std::byte* from, size_t bytes, std::byte* to) {
  std::memcpy(to, from, bytes);
}

constexpr CodecKernels kScalar{PackScalar, UnpackScalar, SumScalar, CountScalar, StreamScalar};

#ifdef SPILLWAY_X86

// Input is prefetched this many bytes ahead: into the next chunk while the current one is still
// being written, and across pages, where processors do not prefetch by themselves.
constexpr size_t kAhead = 4096;

// Prefetches two lines. An address without memory does no harm.
inline void Prefetch(const std::byte* at) {
  _mm_prefetch(reinterpret_cast<const char*>(at), _MM_HINT_T0);
  _mm_prefetch(reinterpret_cast<const char*>(at + 64), _MM_HINT_T0);
}

// The values of one group, plus the bytes that the widest load reads behind them.
constexpr ptrdiff_t kLookAhead = 4 * (kGroup + 16);

// A copy of the last values of a chunk with room behind it, used once fewer values are left than
// loads may read.
class LastValues {
 public:
  // Copies the values and moves `values_end` to the end of the copy. Reads no byte beyond the
  // values.
  const std::byte* Take(const std::byte* values, const std::byte*& values_end) {
    std::memcpy(room_, values, static_cast<size_t>(values_end - values));
    values_end = room_ + sizeof(room_);
    return room_;
  }

 private:
  // All values that are left fit in the first half. Loads never go beyond the second half.
  std::byte room_[2 * kLookAhead] = {};
};

// --- AVX2 ---------------------------------------------------------------------------------------

#define SPILLWAY_AVX2 __attribute__((target("avx2,popcnt,bmi")))

// For each mask of eight bits, one byte per word: the source of each word when the set words are
// packed, and when they are spread.
struct Permutations {
  constexpr Permutations() {
    for (uint32_t bits = 0; bits < 256; ++bits) {
      uint64_t rank = 0;
      for (uint64_t i = 0; i < 8; ++i) {
        if ((bits >> i & 1) == 0) continue;
        pack[bits] |= i << 8 * rank;
        spread[bits] |= rank << 8 * i;
        ++rank;
      }
    }
  }
  std::array<uint64_t, 256> pack{};
  std::array<uint64_t, 256> spread{};
};
constexpr Permutations kPermutations;

SPILLWAY_AVX2 inline __m256i Indices(uint64_t bytes) {
  return _mm256_cvtepu8_epi32(_mm_cvtsi64_si128(static_cast<int64_t>(bytes)));
}

SPILLWAY_AVX2 inline __m256i Load8(const void* at) {
  return _mm256_loadu_si256(static_cast<const __m256i*>(at));
}

SPILLWAY_AVX2 inline void Store8(void* at, __m256i value) {
  _mm256_storeu_si256(static_cast<__m256i*>(at), value);
}

// The sums in registers.
struct Sums8 {
  SPILLWAY_AVX2 explicit Sums8(ChunkSums& given)
      : sums(given),
        plain{Load8(given.plain.data()), Load8(given.plain.data() + 8)},
        weighted{Load8(given.weighted.data()), Load8(given.weighted.data() + 8)} {}
  SPILLWAY_AVX2 inline void Add(int half, __m256i words) {
    plain[half] = _mm256_add_epi32(plain[half], words);
    weighted[half] = _mm256_add_epi32(weighted[half], plain[half]);
  }
  SPILLWAY_AVX2 inline void Keep() {
    for (int half = 0; half < 2; ++half) {
      Store8(sums.plain.data() + 8 * half, plain[half]);
      Store8(sums.weighted.data() + 8 * half, weighted[half]);
    }
  }
  ChunkSums& sums;
  __m256i plain[2], weighted[2];
};

SPILLWAY_AVX2 size_t PackAvx2(const std::byte* words, size_t groups, std::byte* mask,
                              std::byte* values, ChunkSums& sums) {
  Sums8 running(sums);
  std::byte* out = values;
  const __m256i zero = _mm256_setzero_si256();
  for (size_t group = 0; group < groups; ++group) {
    uint32_t all = 0;
    Prefetch(words + 128 * group + kAhead);
    for (int part = 0; part < 4; ++part) {
      const __m256i eight = Load8(words + 128 * group + 32 * part);
      running.Add(part % 2, eight);
      const auto zeros = static_cast<uint32_t>(
          _mm256_movemask_ps(_mm256_castsi256_ps(_mm256_cmpeq_epi32(eight, zero))));
      const uint32_t bits = ~zeros & 0xff;
      Store8(out, _mm256_permutevar8x32_epi32(eight, Indices(kPermutations.pack[bits])));
      out += 4 * static_cast<size_t>(_mm_popcnt_u32(bits));
      all |= bits << 8 * part;
    }
    Store(mask + 4 * group, all);
  }
  running.Keep();
  return static_cast<size_t>(out - values) / 4;
}

template <bool kStream>
SPILLWAY_AVX2 size_t UnpackAvx2As(const std::byte* mask, const std::byte* values,
                                  const std::byte* values_end, size_t groups, std::byte* words,
                                  ChunkSums& sums) {
  const __m256i bit = _mm256_setr_epi32(1, 2, 4, 8, 16, 32, 64, 128);
  Sums8 running(sums);
  LastValues last;
  const std::byte* in = values;
  size_t taken = 0;
  for (size_t group = 0; group < groups; ++group) {
    if (values_end - in < kLookAhead) in = last.Take(in, values_end);
    Prefetch(in + kAhead);
    const uint32_t all = Load(mask + 4 * group);
    for (int part = 0; part < 4; ++part) {
      const uint32_t bits = all >> 8 * part & 0xff;
      const __m256i set = _mm256_and_si256(_mm256_set1_epi32(static_cast<int>(bits)), bit);
      const __m256i spread =
          _mm256_permutevar8x32_epi32(Load8(in), Indices(kPermutations.spread[bits]));
      const __m256i eight = _mm256_and_si256(spread, _mm256_cmpeq_epi32(set, bit));
      running.Add(part % 2, eight);
      auto* const at = reinterpret_cast<__m256i*>(words + 128 * group + 32 * part);
      if constexpr (kStream) {
        _mm256_stream_si256(at, eight);
      } else {
        _mm256_storeu_si256(at, eight);
      }
      in += 4 * static_cast<size_t>(_mm_popcnt_u32(bits));
    }
    taken += static_cast<size_t>(_mm_popcnt_u32(all));
  }
  running.Keep();
  return taken;
}

size_t UnpackAvx2(const std::byte* mask, const std::byte* values, const std::byte* values_end,
                  size_t groups, std::byte* words, bool stream, ChunkSums& sums) {
  return stream ? UnpackAvx2As<true>(mask, values, values_end, groups, words, sums)
                : UnpackAvx2As<false>(mask, values, values_end, groups, words, sums);
}

SPILLWAY_AVX2 void SumAvx2(const std::byte* words, size_t groups, ChunkSums& sums) {
  Sums8 running(sums);
  for (size_t i = 0; i < 2 * groups; ++i) {
    running.Add(0, Load8(words + 64 * i));
    running.Add(1, Load8(words + 64 * i + 32));
  }
  running.Keep();
}

SPILLWAY_AVX2 size_t CountAvx2(const std::byte* mask, size_t groups) {
  size_t count = 0;
  for (size_t group = 0; group < groups; ++group) {
    count += static_cast<size_t>(_mm_popcnt_u32(Load(mask + 4 * group)));
  }
  return count;
}

SPILLWAY_AVX2 void StreamAvx2(const std::byte* from, size_t bytes, std::byte* to) {
  for (size_t i = 0; i < bytes; i += 32) {
    _mm256_stream_si256(reinterpret_cast<__m256i*>(to + i), Load8(from + i));
  }
}

constexpr CodecKernels kAvx2{PackAvx2, UnpackAvx2, SumAvx2, CountAvx2, StreamAvx2};

// --- AVX-512 ------------------------------------------------------------------------------------

#define SPILLWAY_AVX512 __attribute__((target("avx512f,avx512bw,avx512vl,popcnt,bmi")))

struct Sums16 {
  SPILLWAY_AVX512 explicit Sums16(ChunkSums& given)
      : sums(given),
        plain(_mm512_loadu_si512(given.plain.data())),
        weighted(_mm512_loadu_si512(given.weighted.data())) {}
  SPILLWAY_AVX512 inline void Add(__m512i words) {
    plain = _mm512_add_epi32(plain, words);
    weighted = _mm512_add_epi32(weighted, plain);
  }
  SPILLWAY_AVX512 inline void Keep() {
    _mm512_storeu_si512(sums.plain.data(), plain);
    _mm512_storeu_si512(sums.weighted.data(), weighted);
  }
  ChunkSums& sums;
  __m512i plain, weighted;
};

// Packs in a register and stores the whole register, because a compressing store is slow on some
// processors.
SPILLWAY_AVX512 size_t PackAvx512(const std::byte* words, size_t groups, std::byte* mask,
                                  std::byte* values, ChunkSums& sums) {
  Sums16 running(sums);
  std::byte* out = values;
  for (size_t group = 0; group < groups; ++group) {
    Prefetch(words + 128 * group + kAhead);
    const __m512i low = _mm512_loadu_si512(words + 128 * group);
    const __m512i high = _mm512_loadu_si512(words + 128 * group + 64);
    running.Add(low);
    running.Add(high);
    const __mmask16 low_bits = _mm512_test_epi32_mask(low, low);
    const __mmask16 high_bits = _mm512_test_epi32_mask(high, high);
    const uint32_t low_set = _cvtmask16_u32(low_bits);
    const uint32_t high_set = _cvtmask16_u32(high_bits);
    _mm512_storeu_si512(out, _mm512_maskz_compress_epi32(low_bits, low));
    out += 4 * static_cast<size_t>(_mm_popcnt_u32(low_set));
    _mm512_storeu_si512(out, _mm512_maskz_compress_epi32(high_bits, high));
    out += 4 * static_cast<size_t>(_mm_popcnt_u32(high_set));
    Store(mask + 4 * group, low_set | high_set << 16);
  }
  running.Keep();
  return static_cast<size_t>(out - values) / 4;
}

// Loads a whole register and spreads it, because an expanding load is slow on some processors.
template <bool kStream>
SPILLWAY_AVX512 size_t UnpackAvx512As(const std::byte* mask, const std::byte* values,
                                      const std::byte* values_end, size_t groups, std::byte* words,
                                      ChunkSums& sums) {
  Sums16 running(sums);
  LastValues last;
  const std::byte* in = values;
  size_t taken = 0;
  for (size_t group = 0; group < groups; ++group) {
    if (values_end - in < kLookAhead) in = last.Take(in, values_end);
    Prefetch(in + kAhead);
    const uint32_t all = Load(mask + 4 * group);
    for (int part = 0; part < 2; ++part) {
      const uint32_t bits = all >> 16 * part & 0xffff;
      const __m512i sixteen =
          _mm512_maskz_expand_epi32(static_cast<__mmask16>(bits), _mm512_loadu_si512(in));
      running.Add(sixteen);
      std::byte* const at = words + 128 * group + 64 * part;
      if constexpr (kStream) {
        _mm512_stream_si512(reinterpret_cast<__m512i*>(at), sixteen);
      } else {
        _mm512_storeu_si512(at, sixteen);
      }
      in += 4 * static_cast<size_t>(_mm_popcnt_u32(bits));
    }
    taken += static_cast<size_t>(_mm_popcnt_u32(all));
  }
  running.Keep();
  return taken;
}

size_t UnpackAvx512(const std::byte* mask, const std::byte* values, const std::byte* values_end,
                    size_t groups, std::byte* words, bool stream, ChunkSums& sums) {
  return stream ? UnpackAvx512As<true>(mask, values, values_end, groups, words, sums)
                : UnpackAvx512As<false>(mask, values, values_end, groups, words, sums);
}

SPILLWAY_AVX512 void SumAvx512(const std::byte* words, size_t groups, ChunkSums& sums) {
  Sums16 running(sums);
  for (size_t i = 0; i < 2 * groups; ++i) running.Add(_mm512_loadu_si512(words + 64 * i));
  running.Keep();
}

SPILLWAY_AVX512 void StreamAvx512(const std::byte* from, size_t bytes, std::byte* to) {
  for (size_t i = 0; i < bytes; i += 64) {
    _mm512_stream_si512(reinterpret_cast<__m512i*>(to + i), _mm512_loadu_si512(from + i));
  }
}

constexpr CodecKernels kAvx512{PackAvx512, UnpackAvx512, SumAvx512, CountAvx2, StreamAvx512};

#endif  // SPILLWAY_X86

}  // namespace

uint32_t ChunkSums::Digest() const {
  uint64_t digest = 0x9e3779b97f4a7c15;
  for (size_t lane = 0; lane < plain.size(); ++lane) {
    digest ^= plain[lane] | uint64_t{weighted[lane]} << 32;
    digest *= 0xbf58476d1ce4e5b9;
    digest ^= digest >> 29;
  }
  return static_cast<uint32_t>(digest >> 32);
}

std::string_view Name(CodecPath path) {
  constexpr std::array<std::string_view, 3> kNames{"scalar", "avx2", "avx512"};
  return kNames[static_cast<size_t>(path)];
}

const CodecKernels& KernelsOf(CodecPath path) {
  switch (path) {
    case CodecPath::kScalar:
      return kScalar;
#ifdef SPILLWAY_X86
    case CodecPath::kAvx2:
      return kAvx2;
    case CodecPath::kAvx512:
      return kAvx512;
#else
    default:
      break;
#endif
  }
  SPILLWAY_CHECK(false);  // the machine cannot run this path
  return kScalar;
}

std::vector<CodecPath> CodecPaths() {
  std::vector<CodecPath> paths{CodecPath::kScalar};
#ifdef SPILLWAY_X86
  const bool avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("popcnt") &&
                    __builtin_cpu_supports("bmi");
  if (avx2) paths.push_back(CodecPath::kAvx2);
  if (avx2 && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
      __builtin_cpu_supports("avx512vl")) {
    paths.push_back(CodecPath::kAvx512);
  }
#endif
  return paths;
}

void FenceStreams() {
#ifdef SPILLWAY_X86
  _mm_sfence();
#endif
}

}  // namespace spillway::sim
