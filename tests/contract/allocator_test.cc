// One suite for every allocator. It tests the guarantees that callers rely on. Where the placement
// rule is exact, it compares with a naive model.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <memory>
#include <random>
#include <vector>

#include "sim/alloc/make_allocator.h"
#include "sim/alloc/native.h"
#include "sim/alloc/stitched.h"
#include "sim/packing/allocation_log.h"
#include "tests/testing/lookup.h"
#include "traces/base/error.h"

namespace spillway::testing {
namespace {

using ::testing::HasSubstr;

class AllocatorContract : public ::testing::TestWithParam<std::string> {
 protected:
  static std::unique_ptr<Allocator> Make(Bytes capacity, Bytes granularity = Bytes(512)) {
    return MakeAllocator(GetParam(), capacity, granularity);
  }
};

std::vector<std::string> AllNames() {
  std::vector<std::string> names;
  for (const AllocatorInfo& info : Allocators()) names.push_back(info.name);
  for (const char* other :
       {"first-fit:granularity=1KiB", "high-end:reading=text", "cnmem:initial=5MiB",
        "pytorch:max_split_size=20MiB", "pytorch:expandable_segments=true",
        "pytorch:garbage_collection_threshold=0.3", "stitched:page=64KiB"}) {
    names.push_back(other);
  }
  return names;
}

INSTANTIATE_TEST_SUITE_P(All, AllocatorContract, ::testing::ValuesIn(AllNames()),
                         [](const auto& test) { return testing::CaseName(test.param); });

TEST_P(AllocatorContract, NameIsTheOneItWasMadeBy) {
  EXPECT_EQ(Make(Bytes::MiB(64))->Name(), ParseSpecification("allocator", GetParam()).name);
}

TEST_P(AllocatorContract, BlocksCoverTheRequestAndStayInside) {
  const auto allocator = Make(Bytes::MiB(64));
  const auto block = allocator->Allocate(Bytes(1000));
  ASSERT_TRUE(block);
  EXPECT_GE(block->size, Bytes(1000));
  EXPECT_EQ(block->offset.count() % 512, 0);
  EXPECT_LE(block->end(), Bytes::MiB(64));
}

TEST_P(AllocatorContract, AFailedRequestChangesNothing) {
  const auto allocator = Make(Bytes::MiB(64));
  ASSERT_TRUE(allocator->Allocate(Bytes::MiB(40)));
  const MemoryStats before = allocator->Stats();
  EXPECT_FALSE(allocator->Allocate(Bytes::MiB(40)));
  const MemoryStats after = allocator->Stats();
  EXPECT_EQ(after.allocated, before.allocated);
  EXPECT_EQ(after.requested, before.requested);
  EXPECT_EQ(after.largest_free, before.largest_free);
}

TEST_P(AllocatorContract, ARequestOfNothingGetsABlockOfItsOwn) {
  const auto allocator = Make(Bytes::MiB(64));
  const auto a = allocator->Allocate(Bytes(0));
  const auto b = allocator->Allocate(Bytes(0));
  ASSERT_TRUE(a && b);
  EXPECT_NE(a->offset, b->offset);
  allocator->Free(*a);
  allocator->Free(*b);
  EXPECT_EQ(allocator->Stats().allocated, Bytes(0));
}

TEST_P(AllocatorContract, AnEmptyArenaHasNothingToGive) {
  EXPECT_FALSE(Make(Bytes(0))->Allocate(Bytes(1)));
  EXPECT_EQ(Make(Bytes(511))->Stats().largest_free, Bytes(0));
}

// The largest free block can be allocated. One byte more cannot.
TEST_P(AllocatorContract, LargestFreeIsTight) {
  const auto allocator = Make(Bytes::MiB(64));
  ASSERT_TRUE(allocator->Allocate(Bytes::KiB(6400)));
  const Bytes largest = allocator->Stats().largest_free;
  EXPECT_FALSE(allocator->Allocate(largest + Bytes(1)));
  EXPECT_TRUE(allocator->Allocate(largest));
}

TEST_P(AllocatorContract, RandomUseKeepsBlocksApartAndTheBooksRight) {
  std::mt19937 random(7);
  for (int round = 0; round < 20; ++round) {
    const auto allocator = Make(Bytes::MiB(128));
    struct Live {
      Block block;
      Bytes requested;
    };
    std::vector<Live> live;
    Bytes requested, allocated;
    for (int step = 0; step < 400; ++step) {
      if (live.empty() || random() % 3 != 0) {
        const Bytes size(static_cast<int64_t>(random() % 2'560'000));
        const Hint hint = random() % 2 == 0 ? Hint::kLow : Hint::kHigh;
        const auto block = allocator->Allocate(size, hint);
        if (!block) continue;
        for (const Live& other : live) {
          ASSERT_TRUE(other.block.end() <= block->offset || block->end() <= other.block.offset);
        }
        live.push_back({*block, size});
        requested += size;
        allocated += block->size;
      } else {
        const size_t victim = random() % live.size();
        allocator->Free(live[victim].block);
        requested -= live[victim].requested;
        allocated -= live[victim].block.size;
        live.erase(live.begin() + static_cast<std::ptrdiff_t>(victim));
      }
      ASSERT_EQ(allocator->Stats().requested, requested);
      ASSERT_EQ(allocator->Stats().allocated, allocated);
      ASSERT_GE(allocator->Stats().reserved, allocated);
    }
    for (const Live& entry : live) allocator->Free(entry.block);
    EXPECT_EQ(allocator->Stats().allocated, Bytes(0));
  }
}

TEST_P(AllocatorContract, TheSameCallsGiveTheSameBlocks) {
  const auto run = [] {
    std::mt19937 random(3);
    const auto allocator = Make(Bytes::MiB(64));
    std::vector<Block> blocks;
    std::vector<Bytes> offsets;
    for (int step = 0; step < 300; ++step) {
      if (blocks.size() > 10) {
        allocator->Free(blocks[step % blocks.size()]);
        blocks.erase(blocks.begin() + step % static_cast<int>(blocks.size()));
      }
      const auto block = allocator->Allocate(Bytes(static_cast<int64_t>(random() % 576'000)));
      if (!block) continue;
      blocks.push_back(*block);
      offsets.push_back(block->offset);
    }
    return offsets;
  };
  EXPECT_EQ(run(), run());
}

using AllocatorDeathTest = AllocatorContract;
INSTANTIATE_TEST_SUITE_P(All, AllocatorDeathTest, ::testing::ValuesIn(AllNames()));

TEST_P(AllocatorDeathTest, GivingABlockBackTwiceAborts) {
  const auto allocator = Make(Bytes::MiB(64));
  const auto block = allocator->Allocate(Bytes(512));
  allocator->Free(*block);
  EXPECT_DEATH(allocator->Free(*block), "check failed");
}

TEST(MakeAllocatorTest, SaysWhatIsWrongWithASpecification) {
  const auto message = [](const std::string& specification) -> std::string {
    try {
      MakeAllocator(specification, Bytes::MiB(64), Bytes(512));
    } catch (const UsageError& error) {
      return error.what();
    }
    return "nothing";
  };
  EXPECT_THAT(message("bestfit"), HasSubstr("did you mean 'best-fit'?"));
  EXPECT_THAT(message("first-fit:granularty=1KiB"), HasSubstr("did you mean 'granularity'?"));
  EXPECT_THAT(message("first-fit:granularity"), HasSubstr("'granularity' is not key=value"));
  EXPECT_THAT(message("first-fit:granularity=700B"), HasSubstr("not a multiple"));
  EXPECT_THAT(message("high-end:reading=paper"), HasSubstr("valid: code, text"));
  EXPECT_THAT(message("stitched:page=3KiB"), HasSubstr("not a multiple of 4KiB"));
  EXPECT_THAT(message("pytorch:max_split_size=1MiB"), HasSubstr("less than 20MiB"));
  EXPECT_THAT(message("native:granularity=1KiB"), HasSubstr("has no parameters"));
}

TEST(FirstFitTest, RoundsToItsGranularity) {
  const auto allocator = MakeAllocator("first-fit:granularity=1KiB", Bytes::MiB(1), Bytes(512));
  EXPECT_EQ(allocator->Allocate(Bytes(1))->size, Bytes(1024));
  EXPECT_EQ(allocator->Allocate(Bytes(1))->offset, Bytes(1024));
}

// CNMeM takes memory in segments, and no block spans two segments.
TEST(CnmemTest, GrowsBySegmentsThatNeverMerge) {
  const auto allocator = MakeAllocator("cnmem:initial=4KiB", Bytes::KiB(16), Bytes(512));
  EXPECT_EQ(allocator->Reserved(), Bytes::KiB(4));
  const auto a = allocator->Allocate(Bytes::KiB(3));
  const auto b = allocator->Allocate(Bytes::KiB(3));  // in a new segment
  const auto c = allocator->Allocate(Bytes::KiB(1));  // in the rest of the first segment
  EXPECT_EQ(b->offset, Bytes::KiB(4));
  EXPECT_EQ(c->offset, Bytes::KiB(3));
  EXPECT_EQ(allocator->Reserved(), Bytes::KiB(7));
  allocator->Free(*a);
  allocator->Free(*b);
  allocator->Free(*c);
  // No free segment has 5 KiB: the free ones have 4 and 3.
  EXPECT_EQ(allocator->Allocate(Bytes::KiB(5))->offset, Bytes::KiB(7));
  EXPECT_EQ(allocator->driver_calls().size(), 2u);
}

// Compares with CNMeM's growth by its definition: a list of segments, each an arena for itself.
TEST(CnmemTest, AgreesWithANaiveModel) {
  std::mt19937 random(17);
  for (int round = 0; round < 100; ++round) {
    const auto allocator = MakeAllocator("cnmem:initial=60B", Bytes(300), Bytes(1));
    std::vector<std::vector<bool>> segments{std::vector<bool>(60)};
    std::vector<Block> live;
    const auto locate = [&](Bytes offset) {
      auto at = static_cast<size_t>(offset.count());
      size_t segment = 0;
      while (at >= segments[segment].size()) at -= segments[segment++].size();
      return std::pair(segment, at);
    };
    for (int step = 0; step < 200; ++step) {
      if (!live.empty() && random() % 2 == 0) {
        const size_t victim = random() % live.size();
        allocator->Free(live[victim]);
        const auto [segment, at] = locate(live[victim].offset);
        std::fill_n(segments[segment].begin() + static_cast<std::ptrdiff_t>(at),
                    live[victim].size.count(), false);
        live.erase(live.begin() + static_cast<std::ptrdiff_t>(victim));
        continue;
      }
      const size_t size = 1 + random() % 40;
      size_t best = 1000, best_offset = 0, best_segment = 0, base = 0;
      for (size_t s = 0; s < segments.size(); base += segments[s++].size()) {
        for (size_t begin = 0, end; begin < segments[s].size(); begin = end + 1) {
          end = begin;
          while (end < segments[s].size() && !segments[s][end]) ++end;
          if (end - begin >= size && end - begin < best) {
            best = end - begin;
            best_offset = base + begin;
            best_segment = s;
          }
        }
      }
      if (best == 1000 && base + size <= 300) {
        best_offset = base;
        best_segment = segments.size();
        segments.emplace_back(size);
        best = size;
      }
      const auto block = allocator->Allocate(Bytes(static_cast<int64_t>(size)));
      ASSERT_EQ(block.has_value(), best != 1000);
      if (!block) continue;
      ASSERT_EQ(block->offset.count(), static_cast<int64_t>(best_offset));
      const auto [segment, at] = locate(block->offset);
      ASSERT_EQ(segment, best_segment);
      std::fill_n(segments[segment].begin() + static_cast<std::ptrdiff_t>(at), size, true);
      live.push_back(*block);
    }
  }
}

// Pages 0 to 3 are allocated, 0 and 2 freed. A block of two pages is then mapped at a new address,
// and later again at the same address.
TEST(StitchedTest, MapsPagesThatLieApartSideBySide) {
  const Bytes page = Bytes::KiB(4);
  Stitched allocator(page * 4, Bytes(512), page);
  std::vector<Block> blocks;
  for (int i = 0; i < 4; ++i) blocks.push_back(*allocator.Allocate(page, Hint::kLow));
  EXPECT_EQ(blocks[3].offset, page * 3);
  EXPECT_EQ(allocator.driver_calls().size(), 4u);
  allocator.Free(blocks[0]);
  allocator.Free(blocks[2]);
  EXPECT_EQ(allocator.Stats().largest_free, page * 2);
  const auto stitched = allocator.Allocate(page * 2, Hint::kLow);
  ASSERT_TRUE(stitched);
  EXPECT_EQ(stitched->offset, page * 4);
  const auto calls = allocator.driver_calls();
  ASSERT_EQ(calls.size(), 6u);
  EXPECT_EQ(calls[4].range, (Block{page * 4, page}));
  EXPECT_EQ(calls[4].physical, Bytes(0));
  EXPECT_EQ(calls[5].range, (Block{page * 5, page}));
  EXPECT_EQ(calls[5].physical, page * 2);
  EXPECT_FALSE(allocator.Allocate(Bytes(1), Hint::kLow));
  allocator.Free(*stitched);
  EXPECT_EQ(allocator.Allocate(page * 2, Hint::kLow)->offset, page * 4);
  EXPECT_EQ(allocator.driver_calls().size(), 6u);
}

// Pages that lie apart serve one request, so rounding to pages is all that is lost.
TEST(StitchedTest, NeedsThePeakAndOnePageForEachBlock) {
  std::mt19937 random(23);
  for (int round = 0; round < 50; ++round) {
    AllocationLog log;
    std::vector<uint32_t> live;
    size_t most = 0;
    for (int step = 0; step < 300; ++step) {
      if (live.empty() || random() % 2 == 0) {
        live.push_back(log.Allocate(Bytes(static_cast<int64_t>(random() % 40'000))));
        most = std::max(most, live.size());
      } else {
        const size_t victim = random() % live.size();
        log.Free(live[victim]);
        live.erase(live.begin() + static_cast<std::ptrdiff_t>(victim));
      }
    }
    const Bytes page = Bytes::KiB(4);
    Stitched allocator(log.Peak(Bytes(512)) + page * static_cast<int64_t>(most), Bytes(512), page);
    EXPECT_FALSE(Replay(log, allocator));
  }
}

// Blocks that are live together never share memory. A list of booleans and the driver calls tell
// which memory a block has.
TEST(StitchedTest, AgreesWithANaiveModel) {
  std::mt19937 random(29);
  const Bytes page = Bytes::KiB(4);
  constexpr int64_t kPages = 24;
  for (int round = 0; round < 100; ++round) {
    Stitched allocator(page * kPages, Bytes(512), page);
    std::vector<bool> used(kPages);
    std::map<Bytes, Bytes> mapped;  // address of a page -> its memory
    size_t known = 0;
    struct Held {
      Block block;
      std::vector<int64_t> pages;
    };
    std::vector<Held> live;
    for (int step = 0; step < 200; ++step) {
      if (!live.empty() && random() % 2 == 0) {
        const size_t victim = random() % live.size();
        allocator.Free(live[victim].block);
        for (const int64_t taken : live[victim].pages) used[taken] = false;
        live.erase(live.begin() + static_cast<std::ptrdiff_t>(victim));
        continue;
      }
      const auto count = static_cast<int64_t>(1 + random() % 6);
      const auto block = allocator.Allocate(page * count, Hint::kLow);
      const auto calls = allocator.driver_calls();
      for (; known < calls.size(); ++known) {
        for (Bytes at; at < calls[known].range.size; at += page) {
          ASSERT_TRUE(
              mapped.emplace(calls[known].range.offset + at, *calls[known].physical + at).second);
        }
      }
      ASSERT_EQ(block.has_value(), count <= std::count(used.begin(), used.end(), false));
      if (!block) continue;
      Held held{*block, {}};
      for (Bytes at; at < block->size; at += page) {
        const int64_t taken = mapped.at(block->offset + at).count() / page.count();
        ASSERT_LT(taken, kPages);
        ASSERT_FALSE(used[taken]);
        used[taken] = true;
        held.pages.push_back(taken);
      }
      live.push_back(held);
    }
  }
}

TEST(NativeTest, HasNoExternalFragmentation) {
  Native allocator(Bytes::MiB(16), Bytes(512));
  std::vector<Block> blocks;
  for (int i = 0; i < 4; ++i) blocks.push_back(*allocator.Allocate(Bytes::MiB(4), Hint::kLow));
  EXPECT_FALSE(allocator.Allocate(Bytes(1), Hint::kLow));
  allocator.Free(blocks[0]);
  allocator.Free(blocks[2]);
  EXPECT_EQ(allocator.Stats().largest_free, Bytes::MiB(8));
  EXPECT_TRUE(allocator.Allocate(Bytes::MiB(8), Hint::kLow));
  EXPECT_EQ(allocator.Reserved(), Bytes::MiB(16));
}

TEST(NativeTest, SmallBlocksSharePagesAndGiveThemBack) {
  Native allocator(Bytes::MiB(16), Bytes(512));
  const auto a = allocator.Allocate(Bytes::KiB(900), Hint::kLow);
  const auto b = allocator.Allocate(Bytes::KiB(900), Hint::kLow);
  const auto c = allocator.Allocate(Bytes::KiB(900), Hint::kLow);
  EXPECT_EQ(allocator.Reserved(), Bytes::MiB(4));
  allocator.Free(*c);
  EXPECT_EQ(allocator.Reserved(), Bytes::MiB(2));
  allocator.Free(*a);
  allocator.Free(*b);
  EXPECT_EQ(allocator.Reserved(), Bytes(0));
}

// A placement rule by its definition. It examines every gap between the live blocks, lowest first.
class NaiveArena {
 public:
  struct Gap {
    int64_t begin, end;
    int64_t size() const { return end - begin; }
  };
  // Returns the gap to take, or nullptr.
  using Choice = const Gap* (*)(const std::vector<Gap>& gaps, int64_t size, Hint hint);

  NaiveArena(int64_t capacity, Choice choose, bool hints)
      : used_(static_cast<size_t>(capacity)), choose_(choose), hints_(hints) {}

  std::optional<int64_t> Allocate(int64_t size, Hint hint) {
    std::vector<Gap> gaps;
    const auto capacity = static_cast<int64_t>(used_.size());
    for (int64_t begin = 0; begin < capacity;) {
      int64_t end = begin;
      while (end < capacity && !used_[end]) ++end;
      if (end > begin) gaps.push_back({begin, end});
      begin = end + 1;
    }
    const Gap* const gap = choose_(gaps, size, hint);
    if (gap == nullptr) return std::nullopt;
    const int64_t offset = hints_ && hint == Hint::kHigh ? gap->end - size : gap->begin;
    std::fill_n(used_.begin() + offset, size, true);
    return offset;
  }
  void Free(int64_t offset, int64_t size) { std::fill_n(used_.begin() + offset, size, false); }

 private:
  std::vector<bool> used_;
  const Choice choose_;
  const bool hints_;
};

using Gaps = std::vector<NaiveArena::Gap>;

const NaiveArena::Gap* SmallestThatSuffices(const Gaps& gaps, int64_t size, Hint) {
  const NaiveArena::Gap* best = nullptr;
  for (const auto& gap : gaps) {
    if (gap.size() >= size && (best == nullptr || gap.size() < best->size())) best = &gap;
  }
  return best;
}

const NaiveArena::Gap* LowestThatSuffices(const Gaps& gaps, int64_t size, Hint) {
  for (const auto& gap : gaps) {
    if (gap.size() >= size) return &gap;
  }
  return nullptr;
}

const NaiveArena::Gap* LastIfHigh(const Gaps& gaps, int64_t size, Hint hint) {
  if (hint == Hint::kLow) return SmallestThatSuffices(gaps, size, hint);
  return !gaps.empty() && gaps.back().size() >= size ? &gaps.back() : nullptr;
}

const NaiveArena::Gap* HighestIfHigh(const Gaps& gaps, int64_t size, Hint hint) {
  if (hint == Hint::kLow) return SmallestThatSuffices(gaps, size, hint);
  const NaiveArena::Gap* highest = nullptr;
  for (const auto& gap : gaps) {
    if (gap.size() >= size) highest = &gap;
  }
  return highest;
}

struct ModelCase {
  std::string allocator;
  NaiveArena::Choice choose;
  bool hints = true;
  int64_t capacity = 200, largest = 30;  // block sizes are 1 to `largest`
};

class AllocatorModel : public ::testing::TestWithParam<ModelCase> {};

INSTANTIATE_TEST_SUITE_P(
    All, AllocatorModel,
    ::testing::Values(ModelCase{"best-fit", SmallestThatSuffices},
                      ModelCase{"first-fit", LowestThatSuffices, false},
                      ModelCase{"high-end", LastIfHigh},
                      ModelCase{"high-end:reading=text", HighestIfHigh},
                      // The capacity holds enough blocks for indices of several levels.
                      ModelCase{"best-fit", SmallestThatSuffices, true, 4000, 30},
                      ModelCase{"first-fit", LowestThatSuffices, false, 4000, 30},
                      ModelCase{"high-end:reading=text", HighestIfHigh, true, 4000, 30}));

TEST_P(AllocatorModel, AgreesWithTheDefinition) {
  std::mt19937 random(11);
  const int64_t capacity = GetParam().capacity;
  for (int64_t round = 0; round < 20'000 / capacity; ++round) {
    const auto allocator = MakeAllocator(GetParam().allocator, Bytes(capacity), Bytes(1));
    NaiveArena model(capacity, GetParam().choose, GetParam().hints);
    std::vector<Block> live;
    for (int64_t step = 0; step < capacity; ++step) {
      // The arena fills up first, so that later requests meet many gaps.
      if (live.empty() || random() % (step < capacity / 2 ? 4 : 2) != 0) {
        const auto size = static_cast<int64_t>(1 + random() % GetParam().largest);
        const Hint hint = random() % 4 == 0 ? Hint::kHigh : Hint::kLow;
        const Bytes largest = allocator->LargestFree(hint);
        const auto block = allocator->Allocate(Bytes(size), hint);
        const auto expected = model.Allocate(size, hint);
        ASSERT_EQ(block.has_value(), expected.has_value());
        ASSERT_EQ(block.has_value(), largest >= Bytes(size));
        if (!block) continue;
        ASSERT_EQ(block->offset.count(), *expected);
        live.push_back(*block);
      } else {
        const size_t victim = random() % live.size();
        allocator->Free(live[victim]);
        model.Free(live[victim].offset.count(), live[victim].size.count());
        live.erase(live.begin() + static_cast<std::ptrdiff_t>(victim));
      }
    }
  }
}

}  // namespace
}  // namespace spillway::testing
