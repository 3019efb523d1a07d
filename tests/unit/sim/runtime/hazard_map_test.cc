#include "sim/runtime/hazard_map.h"

#include <gtest/gtest.h>

#include <array>
#include <optional>
#include <random>
#include <vector>

namespace spillway::testing {
namespace {

constexpr Event Compute(uint32_t sequence) { return {Stream::kCompute, sequence}; }
constexpr Event ToHost(uint32_t sequence) { return {Stream::kToHost, sequence}; }

Block Range(int64_t begin, int64_t end) { return {Bytes(begin), Bytes(end - begin)}; }

TEST(HazardsTest, ReaderWaitsForTheWriteOnly) {
  Hazards hazards;
  hazards.NoteWrite(Compute(3));
  hazards.NoteRead(ToHost(1));
  EXPECT_EQ(hazards.ForRead(), Compute(3));
}

TEST(HazardsTest, WriterWaitsForWriteAndReads) {
  Hazards hazards;
  hazards.NoteWrite(Compute(3));
  hazards.NoteRead(ToHost(1));
  hazards.NoteRead(ToHost(4));
  EXPECT_EQ(hazards.ForWrite().newest(Stream::kCompute), 3u);
  EXPECT_EQ(hazards.ForWrite().newest(Stream::kToHost), 4u);
  EXPECT_EQ(hazards.ForWrite().newest(Stream::kToDevice), 0u);
}

TEST(HazardsTest, TheNextOwnersWriterInherits) {
  Hazards before;
  before.NoteRead(ToHost(4));
  const Hazards after(before.ForWrite());
  EXPECT_EQ(after.ForWrite().newest(Stream::kToHost), 4u);
  EXPECT_FALSE(after.ForRead());  // the new owner does not read the old owner's data
}

TEST(HazardMapTest, UntouchedBytesNeedNoWait) {
  HazardMap map;
  EXPECT_EQ(map.Take(Range(0, 100)), WaitSet());
}

// Ranges are half-open: the byte at `end` is not part of a range.
TEST(HazardMapTest, NeighboursDoNotConflict) {
  WaitSet touched;
  touched.Add(Compute(1));
  HazardMap map;
  map.Leave(Range(10, 20), touched);
  EXPECT_EQ(map.Take(Range(0, 10)), WaitSet());
  EXPECT_EQ(map.Take(Range(20, 30)), WaitSet());
  EXPECT_EQ(map.Take(Range(19, 20)), touched);
  EXPECT_EQ(map.Take(Range(19, 20)), WaitSet());  // already taken
  EXPECT_EQ(map.Take(Range(0, 100)), touched);    // the remaining bytes
}

// Owners come and go over random ranges. One record per byte tells which waits each owner inherits.
TEST(HazardMapTest, AgreesWithAMapPerByte) {
  constexpr int64_t kSize = 60;
  struct Owner {
    Block block;
    WaitSet touched;
  };
  std::mt19937 random(1);
  for (int round = 0; round < 300; ++round) {
    HazardMap map;
    // The waits left behind in each byte; unused while the byte is owned.
    std::vector<std::optional<WaitSet>> left(kSize);
    std::vector<bool> owned(kSize);
    std::vector<Owner> owners;
    uint32_t sequence = 0;
    for (int step = 0; step < 80; ++step) {
      if (!owners.empty() && random() % 2 == 0) {
        const size_t index = random() % owners.size();
        const Owner owner = owners[index];
        owners.erase(owners.begin() + static_cast<std::ptrdiff_t>(index));
        map.Leave(owner.block, owner.touched);
        for (int64_t i = owner.block.offset.count(); i < owner.block.end().count(); ++i) {
          owned[i] = false;
          left[i] = owner.touched;
        }
        continue;
      }
      const auto begin = static_cast<int64_t>(random() % kSize);
      int64_t end = begin;
      const auto limit = begin + static_cast<int64_t>(1 + random() % 12);
      while (end < std::min(kSize, limit) && !owned[end]) ++end;
      if (end == begin) continue;
      WaitSet expected;
      for (int64_t i = begin; i < end; ++i) {
        if (left[i]) expected.Add(*left[i]);
        left[i].reset();
        owned[i] = true;
      }
      const WaitSet inherited = map.Take(Range(begin, end));
      ASSERT_EQ(inherited, expected);
      Owner owner{Range(begin, end), inherited};
      owner.touched.Add({static_cast<Stream>(random() % kStreamCount), ++sequence});
      owners.push_back(owner);
    }
  }
}

}  // namespace
}  // namespace spillway::testing
