#include "sim/core/hazard_map.h"

#include <gtest/gtest.h>

#include <array>
#include <random>
#include <vector>

namespace spillway {
namespace {

constexpr Event Compute(uint32_t sequence) { return {Stream::kCompute, sequence}; }
constexpr Event ToHost(uint32_t sequence) { return {Stream::kToHost, sequence}; }

Block Range(int64_t begin, int64_t end) { return {Bytes(begin), Bytes(end - begin)}; }

WaitSet ReadHazards(const HazardMap& map, const Block& block) {
  WaitSet waits;
  map.AddReadHazards(block, waits);
  return waits;
}

WaitSet WriteHazards(const HazardMap& map, const Block& block) {
  WaitSet waits;
  map.AddWriteHazards(block, waits);
  return waits;
}

TEST(HazardMapTest, UntouchedBytesNeedNoWait) {
  const HazardMap map;
  EXPECT_EQ(WriteHazards(map, Range(0, 100)).newest(Stream::kCompute), 0u);
}

TEST(HazardMapTest, ReaderWaitsForTheWriteOnly) {
  HazardMap map;
  map.RecordWrite(Range(0, 10), Compute(3));
  map.RecordRead(Range(0, 10), ToHost(1));
  const WaitSet waits = ReadHazards(map, Range(5, 6));
  EXPECT_EQ(waits.newest(Stream::kCompute), 3u);
  EXPECT_EQ(waits.newest(Stream::kToHost), 0u);
}

TEST(HazardMapTest, WriterWaitsForWriteAndReads) {
  HazardMap map;
  map.RecordWrite(Range(0, 10), Compute(3));
  map.RecordRead(Range(0, 10), ToHost(1));
  const WaitSet waits = WriteHazards(map, Range(9, 30));
  EXPECT_EQ(waits.newest(Stream::kCompute), 3u);
  EXPECT_EQ(waits.newest(Stream::kToHost), 1u);
}

// Half-open: the byte at `end` is not part of a range.
TEST(HazardMapTest, NeighboursDoNotConflict) {
  HazardMap map;
  map.RecordWrite(Range(10, 20), Compute(1));
  EXPECT_EQ(ReadHazards(map, Range(0, 10)).newest(Stream::kCompute), 0u);
  EXPECT_EQ(ReadHazards(map, Range(20, 30)).newest(Stream::kCompute), 0u);
  EXPECT_EQ(ReadHazards(map, Range(19, 20)).newest(Stream::kCompute), 1u);
}

// Compares with one record per byte over random accesses.
TEST(HazardMapTest, AgreesWithAMapPerByte) {
  struct Byte {
    Event write;
    std::array<uint32_t, kStreamCount> reads{};
  };
  constexpr int64_t kSize = 40;
  std::mt19937 random(1);
  for (int round = 0; round < 200; ++round) {
    HazardMap map;
    std::vector<Byte> bytes(kSize);
    std::array<uint32_t, kStreamCount> issued{};
    for (int step = 0; step < 60; ++step) {
      const auto begin = static_cast<int64_t>(random() % kSize);
      const auto size = static_cast<int64_t>(random() % (kSize - begin));
      const Block block = Range(begin, begin + size);
      WaitSet reads, writes, expected_reads, expected_writes;
      map.AddReadHazards(block, reads);
      map.AddWriteHazards(block, writes);
      for (int64_t i = begin; i < begin + size; ++i) {
        expected_reads.Add(bytes[i].write);
        expected_writes.Add(bytes[i].write);
        for (size_t s = 0; s < kStreamCount; ++s) {
          expected_writes.Add({static_cast<Stream>(s), bytes[i].reads[s]});
        }
      }
      const auto stream = static_cast<Stream>(random() % kStreamCount);
      const Event event{stream, ++issued[Index(stream)]};
      const bool is_write = random() % 2 == 0;
      for (size_t s = 0; s < kStreamCount && size > 0; ++s) {
        const auto other = static_cast<Stream>(s);
        ASSERT_EQ(reads.newest(other), expected_reads.newest(other));
        ASSERT_EQ(writes.newest(other), expected_writes.newest(other));
      }
      for (int64_t i = begin; i < begin + size; ++i) {
        if (is_write) {
          bytes[i] = {event, {}};
        } else {
          bytes[i].reads[Index(stream)] = event.sequence;
        }
      }
      is_write ? map.RecordWrite(block, event) : map.RecordRead(block, event);
    }
  }
}

}  // namespace
}  // namespace spillway
