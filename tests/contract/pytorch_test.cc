// Tests PyTorch's caching allocator: its documented rules one by one, and all rules together
// against a naive model.

#include "sim/alloc/pytorch.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <optional>
#include <random>
#include <utility>
#include <vector>

#include "sim/alloc/make_allocator.h"
#include "traces/base/error.h"

namespace spillway::testing {
namespace {

using ::testing::HasSubstr;

TEST(PyTorchTest, RoundsAndPoolsAsDocumented) {
  const auto allocator = MakeAllocator("pytorch", Bytes::GiB(1), Bytes(512));
  EXPECT_EQ(allocator->Allocate(Bytes(1))->size, Bytes(512));
  EXPECT_EQ(allocator->Reserved(), Bytes::MiB(2));
  EXPECT_EQ(allocator->Allocate(Bytes::MiB(1))->offset, Bytes(512));  // in the same small segment
  EXPECT_EQ(allocator->Reserved(), Bytes::MiB(2));
  EXPECT_EQ(allocator->Allocate(Bytes::MiB(1) + Bytes(1))->size, Bytes::MiB(1) + Bytes(512));
  EXPECT_EQ(allocator->Reserved(), Bytes::MiB(22));
  // The rest of the large segment serves a request. A segment for one request is a multiple of 2
  // MiB. A remainder too small to be split off stays with the block.
  EXPECT_EQ(allocator->Allocate(Bytes::MiB(15))->size, Bytes::MiB(15));
  EXPECT_EQ(allocator->Allocate(Bytes::KiB(11 * 1024 + 512))->size, Bytes::MiB(12));
  EXPECT_EQ(allocator->Reserved(), Bytes::MiB(34));
  EXPECT_EQ(allocator->driver_calls().size(), 3u);
}

TEST(PyTorchTest, GivesIdleSegmentsBackWhenMemoryRunsOut) {
  const auto allocator = MakeAllocator("pytorch", Bytes::MiB(64), Bytes(512));
  const auto a = allocator->Allocate(Bytes::MiB(30));
  const auto b = allocator->Allocate(Bytes::MiB(20));
  allocator->Free(*a);
  EXPECT_EQ(allocator->Reserved(), Bytes::MiB(50));
  EXPECT_EQ(allocator->Stats().largest_free, Bytes::MiB(44));
  const auto c = allocator->Allocate(Bytes::MiB(40));
  ASSERT_TRUE(c);
  EXPECT_EQ(allocator->Reserved(), Bytes::MiB(60));
  ASSERT_EQ(allocator->driver_calls().size(), 4u);
  EXPECT_EQ(allocator->driver_calls()[2].kind, DriverCall::Kind::kFree);
  EXPECT_EQ(allocator->driver_calls()[2].range.size, Bytes::MiB(30));
  allocator->Free(*b);
  allocator->Free(*c);
}

// A cached block of 100 MiB serves 30 MiB, unless it is too large to split. In that case only one
// of the cached segments is given back.
TEST(PyTorchTest, LeavesOversizedBlocksWhole) {
  const auto run = [](const std::string& specification) {
    const auto allocator = MakeAllocator(specification, Bytes::MiB(140), Bytes(512));
    const auto a = allocator->Allocate(Bytes::MiB(100));
    const auto b = allocator->Allocate(Bytes::MiB(24));
    allocator->Free(*a);
    allocator->Free(*b);
    allocator->Allocate(Bytes::MiB(30));
    return allocator->Reserved();
  };
  EXPECT_EQ(run("pytorch"), Bytes::MiB(124));
  EXPECT_EQ(run("pytorch:max_split_size=64MiB"), Bytes::MiB(54));
}

TEST(PyTorchTest, ExpandsSegmentsInPlace) {
  const auto allocator =
      MakeAllocator("pytorch:expandable_segments=true", Bytes::MiB(128), Bytes(512));
  const auto a = allocator->Allocate(Bytes::MiB(30));
  EXPECT_EQ(allocator->Reserved(), Bytes::MiB(40));
  // 10 MiB are mapped and free, 40 MiB more are mapped.
  const auto b = allocator->Allocate(Bytes::MiB(50));
  EXPECT_EQ(b->offset, a->end());
  EXPECT_EQ(allocator->Reserved(), Bytes::MiB(80));
  allocator->Free(*a);
  allocator->Free(*b);
  // The two free blocks have merged; 20 MiB more are mapped.
  const auto c = allocator->Allocate(Bytes::MiB(100));
  EXPECT_EQ(c->offset, a->offset);
  EXPECT_EQ(allocator->Reserved(), Bytes::MiB(100));
  allocator->Free(*c);
  // The small pool takes memory from pages of the large pool.
  std::vector<Block> small;
  for (int i = 0; i < 40; ++i) small.push_back(*allocator->Allocate(Bytes::MiB(1)));
  EXPECT_EQ(allocator->Reserved(), Bytes::MiB(40));
  EXPECT_EQ(allocator->driver_calls().back().kind, DriverCall::Kind::kMap);
}

TEST(PyTorchTest, ABlockThatIsNotSplitServesWhatIsNotMuchSmaller) {
  const auto run = [](const std::string& more) {
    const auto allocator =
        MakeAllocator("pytorch:max_split_size=20MiB" + more, Bytes::GiB(1), Bytes(512));
    allocator->Free(*allocator->Allocate(Bytes::MiB(100)));
    return allocator->Allocate(Bytes::MiB(50))->size;
  };
  EXPECT_EQ(run(""), Bytes::MiB(50));
  EXPECT_EQ(run(",max_non_split_rounding=50MiB"), Bytes::MiB(50));
  EXPECT_EQ(run(",max_non_split_rounding=52MiB"), Bytes::MiB(100));
}

// In MiB:   below 4  |  4 to 8  |  8 to 16  |  16 and more
// steps of  (none)   |  2       |  2        |  8, 16, ...
TEST(PyTorchTest, RoundsUpInStepsThatDifferBySize) {
  const std::string list = "pytorch:roundup_power2_divisions=[2:1,4:2,8:4,>:2]";
  const auto size = [](const std::string& specification, Bytes requested) {
    return MakeAllocator(specification, Bytes::GiB(1), Bytes(512))->Allocate(requested)->size;
  };
  EXPECT_EQ(size(list, Bytes::KiB(700) + Bytes(1)), Bytes::KiB(700) + Bytes(512));
  EXPECT_EQ(size(list, Bytes::MiB(3)), Bytes::MiB(3));
  EXPECT_EQ(size(list, Bytes::MiB(4)), Bytes::MiB(4));
  EXPECT_EQ(size(list, Bytes::MiB(4) + Bytes(1)), Bytes::MiB(6));
  EXPECT_EQ(size(list, Bytes::MiB(8) - Bytes(1)), Bytes::MiB(8));
  EXPECT_EQ(size(list, Bytes::MiB(9)), Bytes::MiB(10));
  EXPECT_EQ(size(list, Bytes::MiB(17)), Bytes::MiB(24));
  EXPECT_EQ(size(list, Bytes::MiB(257)), Bytes::MiB(384));
  // The first entry also counts for smaller sizes. A size that the list leaves out is not rounded.
  const std::string gap = "pytorch:roundup_power2_divisions=[2:4,8:4]";
  EXPECT_EQ(size(gap, Bytes::KiB(513)), Bytes::KiB(640));
  EXPECT_EQ(size(gap, Bytes::MiB(5)), Bytes::MiB(5));
  EXPECT_EQ(size(gap, Bytes::MiB(11)), Bytes::MiB(12));
  EXPECT_EQ(size(gap, Bytes::MiB(17)), Bytes::MiB(18));  // in its own segment, of whole pages
}

TEST(PyTorchTest, RefusesSettingsThatPyTorchRefuses) {
  const auto message = [](const std::string& parameters) -> std::string {
    try {
      MakeAllocator("pytorch:" + parameters, Bytes::MiB(64), Bytes(512));
    } catch (const UsageError& error) {
      return error.what();
    }
    return "no error";
  };
  const std::string divisions = "roundup_power2_divisions=";
  EXPECT_EQ(message(divisions + "[1:0,>:1048576]"), "no error");
  EXPECT_EQ(message(divisions + "[]"), "no error");
  EXPECT_THAT(message(divisions + "3"),
              HasSubstr("'3' is not a number of divisions (valid: 0 or a"));
  EXPECT_THAT(message(divisions + "[256:3]"), HasSubstr("'3' is not a number of divisions"));
  EXPECT_THAT(message(divisions + "-4"), HasSubstr("'-4' is not a number of divisions"));
  EXPECT_THAT(message(divisions + "[100:4]"), HasSubstr("'100' is not a size"));
  EXPECT_THAT(message(divisions + "[0:4]"), HasSubstr("'0' is not a size"));
  EXPECT_THAT(message(divisions + "[65536:4]"), HasSubstr("powers of two from 1 to 32768"));
  EXPECT_THAT(message(divisions + "[4]"), HasSubstr("'4' is not SIZE:DIVISIONS"));
  EXPECT_THAT(message(divisions + "[1:4"),
              HasSubstr("a bracket or quote of 'roundup_power2_divisions=[1:4' is left open"));
  EXPECT_THAT(message("max_non_split_rounding=19MiB"), HasSubstr("less than 20MiB"));
  EXPECT_THAT(message("large_segment_size=12MiB,max_split_size=11MiB"),
              HasSubstr("less than 12MiB"));
  EXPECT_THAT(message("large_segment_size=10MiB"), HasSubstr("is not above 10MiB"));
  for (const char* threshold : {"1.5", "-0.1", "nan", "half", ""}) {
    EXPECT_THAT(message(std::string("garbage_collection_threshold=") + threshold),
                HasSubstr("is not a share from 0 to 1"));
  }
  EXPECT_THAT(message("garbage_collection_threshold=1"), HasSubstr("not less than 1"));
}

// --- Collection of garbage ----------------------------------------------------------------------

// Segments in MiB, and how many requests ago they became free. At the last request, 12 is collected
// because it is older than the mean of 1.5.
//   request        12   14   16  -12   18  -14   20
//   cached                       12:0 12:1 14:0 12:2, 14:1
//   reserved       12   26   42   42   60   60   68
TEST(PyTorchTest, CollectsWhatIsOlderThanTheMeanAboveTheThreshold) {
  const auto run = [](const std::string& parameters) {
    const auto allocator = MakeAllocator("pytorch" + parameters, Bytes::MiB(100), Bytes(512));
    const auto a = allocator->Allocate(Bytes::MiB(12));
    const auto b = allocator->Allocate(Bytes::MiB(14));
    allocator->Allocate(Bytes::MiB(16));
    allocator->Free(*a);
    allocator->Allocate(Bytes::MiB(18));
    allocator->Free(*b);
    // Requests of the small pool do not count and make no block older.
    for (int i = 0; i < 4; ++i) allocator->Free(*allocator->Allocate(Bytes(512)));
    allocator->Allocate(Bytes::MiB(20));
    return allocator->Reserved() - Bytes::MiB(2);  // without the small pool's segment
  };
  EXPECT_EQ(run(""), Bytes::MiB(80));
  EXPECT_EQ(run(":garbage_collection_threshold=0.5"), Bytes::MiB(68));
  // 62 MiB are reserved, including the small pool, not more than allowed.
  EXPECT_EQ(run(":garbage_collection_threshold=0.62"), Bytes::MiB(80));
  EXPECT_EQ(run(":garbage_collection_threshold=0.61"), Bytes::MiB(68));
  // 12 is given back before 18 is taken, 14 before 20. Passes continue while cached segments are
  // left.
  EXPECT_EQ(run(":garbage_collection_threshold=0.1"), Bytes::MiB(54));
  EXPECT_EQ(run(":garbage_collection_threshold=0.1,expandable_segments=true"),
            run(":expandable_segments=true"));
}

// Both cached segments are as old as the mean, so both are collected, though 12 alone would do.
//   request        12   14   16  -12  -14   18   20
//   cached                            12:0 12:1 12:2, 14:2
//   reserved       12   26   42   42   42   60   54
TEST(PyTorchTest, CollectsAllThatAreAsOldThoughFewerWouldDo) {
  const auto allocator =
      MakeAllocator("pytorch:garbage_collection_threshold=0.5", Bytes::MiB(100), Bytes(512));
  const auto a = allocator->Allocate(Bytes::MiB(12));
  const auto b = allocator->Allocate(Bytes::MiB(14));
  allocator->Allocate(Bytes::MiB(16));
  allocator->Free(*a);
  allocator->Free(*b);
  allocator->Allocate(Bytes::MiB(18));
  EXPECT_EQ(allocator->Reserved(), Bytes::MiB(60));
  allocator->Allocate(Bytes::MiB(20));
  EXPECT_EQ(allocator->Reserved(), Bytes::MiB(54));
}

// Cached blocks that serve a request, and segments with live blocks, are not collected.
TEST(PyTorchTest, CollectsOnlyBeforeASegmentIsTaken) {
  const auto allocator =
      MakeAllocator("pytorch:garbage_collection_threshold=0.1", Bytes::MiB(100), Bytes(512));
  const auto a = allocator->Allocate(Bytes::MiB(30));
  const auto b = allocator->Allocate(Bytes::MiB(12));
  allocator->Free(*a);
  allocator->Free(*b);
  const auto c = allocator->Allocate(Bytes::MiB(13));  // from the 30 MiB of a
  EXPECT_EQ(allocator->Reserved(), Bytes::MiB(42));
  allocator->Allocate(Bytes::MiB(40));  // only b is idle
  EXPECT_EQ(allocator->Reserved(), Bytes::MiB(70));
  allocator->Free(*c);
}

// --- A naive model ------------------------------------------------------------------------------

// The documented rules again, for a list of segments, each a list of blocks.
class NaivePyTorch {
 public:
  NaivePyTorch(Bytes capacity, const PyTorch::Options& options)
      : capacity_(capacity), max_split_(options.max_split_size), options_(options) {}

  // Returns the size of the block and of all segments after the request, or nullopt if it fails. A
  // new segment lies at `address`.
  std::optional<std::pair<Bytes, Bytes>> Allocate(Bytes size, int id, Bytes address) {
    Bytes rounded = RoundUp(std::max(size, Bytes(1)), Bytes(512));
    int64_t power = 1;
    size_t entry = 0;
    while (power * 2 <= size.count()) power *= 2;
    while (entry < 15 && (int64_t{2} << 20 << entry) <= size.count()) ++entry;
    if (const int64_t divisions = options_.roundup_power2_divisions[entry];
        divisions > 1 && size > Bytes(512 * divisions)) {
      rounded = Bytes(power);
      while (rounded < size) rounded += Bytes(power / divisions);
    }
    const bool small = rounded <= Bytes::MiB(1);
    if (!small) ++now_;
    BlockRef best = Find(rounded, small);
    if (best.segment == nullptr) {
      const Bytes wanted = small                      ? Bytes::MiB(2)
                           : rounded < Bytes::MiB(10) ? options_.large_segment_size
                                                      : RoundUp(rounded, Bytes::MiB(2));
      const auto lacks = [&] { return wanted > capacity_ - Reserved(); };
      if (options_.garbage_collection_threshold > 0) Collect();
      if (lacks() && (small || !ReleaseOversized(std::max(rounded, max_split_)) || lacks())) {
        std::erase_if(segments_, [](const Segment& s) { return s.Idle(); });
      }
      if (lacks()) return std::nullopt;
      const auto after = std::find_if(segments_.begin(), segments_.end(),
                                      [&](const Segment& s) { return s.address > address; });
      best = {&*segments_.insert(after, {small, address, {{kNobody, wanted, now_}}}), 0};
    }
    auto& blocks = best.segment->blocks;
    const Bytes rest = blocks[best.index].size - rounded;
    if (small ? rest >= Bytes(512) : rounded < max_split_ && rest > Bytes::MiB(1)) {
      blocks[best.index].size = rounded;
      blocks.insert(blocks.begin() + static_cast<std::ptrdiff_t>(best.index) + 1,
                    {kNobody, rest, now_});
    }
    blocks[best.index].owner = id;
    return std::pair(blocks[best.index].size, Reserved());
  }

  void Free(int id) {
    for (Segment& segment : segments_) {
      auto& blocks = segment.blocks;
      for (auto& block : blocks) {
        if (block.owner == id) block = {kNobody, block.size, now_};
      }
      for (size_t i = 0; i + 1 < blocks.size();) {
        if (blocks[i].owner == kNobody && blocks[i + 1].owner == kNobody) {
          blocks[i].size += blocks[i + 1].size;
          blocks[i].since = now_;
          blocks.erase(blocks.begin() + static_cast<std::ptrdiff_t>(i) + 1);
        } else {
          ++i;
        }
      }
    }
  }

  // Returns the number of passes that gave something back.
  int collected() const { return collected_; }

 private:
  static constexpr int kNobody = -1;
  struct Piece {
    int owner = kNobody;
    Bytes size;
    int64_t since = 0;  // number of large requests before it became free
  };
  struct Segment {
    bool small = false;
    Bytes address;
    std::vector<Piece> blocks;
    bool Idle() const { return blocks.size() == 1 && blocks[0].owner == kNobody; }
  };
  struct BlockRef {
    Segment* segment = nullptr;
    size_t index = 0;
  };

  // Returns the smallest sufficient block; of equal blocks, the lowest.
  BlockRef Find(Bytes size, bool small) {
    BlockRef best;
    Bytes best_size;
    for (Segment& segment : segments_) {
      for (size_t i = 0; i < segment.blocks.size(); ++i) {
        const auto& [owner, free, since] = segment.blocks[i];
        if (segment.small != small || owner != kNobody || free < size) continue;
        if (best.segment != nullptr && free >= best_size) continue;
        best = {&segment, i};
        best_size = free;
      }
    }
    if (best.segment == nullptr || best_size < max_split_) return best;
    const bool serves = size >= max_split_ && best_size < size + options_.max_non_split_rounding;
    return serves ? best : BlockRef{};
  }

  void Collect() {
    const double most = options_.garbage_collection_threshold * double(capacity_.count());
    for (bool went = true; went && Reserved().count() > static_cast<int64_t>(most);) {
      double ages = 0, count = 0;
      for (const Segment& s : segments_) {
        if (!s.Idle() || s.small) continue;
        ages += double(now_ - s.blocks[0].since);
        ++count;
      }
      went = std::erase_if(segments_, [&](const Segment& s) {
               return s.Idle() && !s.small && double(now_ - s.blocks[0].since) >= ages / count;
             }) > 0;
      collected_ += went ? 1 : 0;
    }
  }

  // Gives idle oversized segments back. Returns true iff at least `wanted` bytes were given back.
  bool ReleaseOversized(Bytes wanted) {
    if (max_split_ == Bytes::Unlimited()) return false;
    const auto by_size = [](const Segment& a, const Segment& b) {
      return a.blocks[0].size < b.blocks[0].size;
    };
    const auto oversized = [&](const Segment& s) {
      return s.Idle() && !s.small && s.blocks[0].size >= max_split_;
    };
    auto enough = segments_.end();
    for (auto s = segments_.begin(); s != segments_.end(); ++s) {
      if (!oversized(*s) || s->blocks[0].size < wanted) continue;
      if (enough == segments_.end() || by_size(*s, *enough)) enough = s;
    }
    if (enough != segments_.end()) {
      segments_.erase(enough);
      return true;
    }
    for (Bytes released; released < wanted;) {
      auto largest = segments_.end();
      for (auto s = segments_.begin(); s != segments_.end(); ++s) {
        if (oversized(*s) && (largest == segments_.end() || !by_size(*s, *largest))) largest = s;
      }
      if (largest == segments_.end()) return false;
      released += largest->blocks[0].size;
      segments_.erase(largest);
    }
    return true;
  }

  Bytes Reserved() const {
    Bytes sum;
    for (const Segment& segment : segments_) {
      for (const Piece& piece : segment.blocks) sum += piece.size;
    }
    return sum;
  }

  const Bytes capacity_, max_split_;
  const PyTorch::Options options_;
  std::vector<Segment> segments_;  // sorted by address
  int64_t now_ = 0;                // number of large requests so far
  int collected_ = 0;
};

TEST(PyTorchTest, AgreesWithANaiveModel) {
  std::mt19937 random(43);
  int refused = 0, collected = 0;
  for (int round = 0; round < 60; ++round) {
    PyTorch::Options options;
    if (round % 2 != 0) options.max_split_size = Bytes::MiB(24);
    if (round % 3 == 1) options.roundup_power2_divisions.fill(4);
    if (round % 3 == 2) options.roundup_power2_divisions = {16, 0, 4, 1, 8, 2};
    if (round % 4 >= 2) options.max_non_split_rounding = Bytes::MiB(32);
    if (round % 5 >= 2) options.garbage_collection_threshold = 0.15 * (round % 5);
    if (round % 7 >= 4) options.large_segment_size = Bytes::MiB(11 + round);
    PyTorch allocator(Bytes::MiB(300), options);
    NaivePyTorch model(Bytes::MiB(300), options);
    std::vector<std::pair<Block, int>> live;
    for (int step = 0; step < 300; ++step) {
      if (!live.empty() && random() % 5 < 2) {
        const size_t victim = random() % live.size();
        allocator.Free(live[victim].first);
        model.Free(live[victim].second);
        live.erase(live.begin() + static_cast<std::ptrdiff_t>(victim));
        continue;
      }
      const int64_t largest = random() % 3 == 0 ? 60 << 20 : random() % 2 == 0 ? 9 << 20 : 1 << 20;
      const Bytes size(static_cast<int64_t>(random() % largest));
      const auto block = allocator.Allocate(size, Hint::kLow);
      const auto expected = model.Allocate(size, step, block ? block->offset : Bytes(0));
      ASSERT_EQ(block.has_value(), expected.has_value()) << round << " " << step;
      refused += block ? 0 : 1;
      if (!block) continue;
      ASSERT_EQ(block->size, expected->first) << round << " " << step;
      ASSERT_EQ(allocator.Reserved(), expected->second) << round << " " << step;
      live.emplace_back(*block, step);
    }
    collected += model.collected();
  }
  EXPECT_GT(refused, 50);
  EXPECT_GT(collected, 50);
}

}  // namespace
}  // namespace spillway::testing
