// PyTorch's caching allocator: its documented rules one by one, and all of them against a naive
// model.

#include "sim/alloc/pytorch.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <optional>
#include <random>
#include <utility>
#include <vector>

#include "sim/alloc/make_allocator.h"

namespace spillway {
namespace {

TEST(PyTorchTest, RoundsAndPoolsAsDocumented) {
  const auto allocator = MakeAllocator("pytorch", Bytes::GiB(1), Bytes(512));
  EXPECT_EQ(allocator->Allocate(Bytes(1))->size, Bytes(512));
  EXPECT_EQ(allocator->Reserved(), Bytes::MiB(2));
  EXPECT_EQ(allocator->Allocate(Bytes::MiB(1))->offset, Bytes(512));  // the same small segment
  EXPECT_EQ(allocator->Reserved(), Bytes::MiB(2));
  EXPECT_EQ(allocator->Allocate(Bytes::MiB(1) + Bytes(1))->size, Bytes::MiB(1) + Bytes(512));
  EXPECT_EQ(allocator->Reserved(), Bytes::MiB(22));
  // What is left of the large segment serves, a segment of its own is 2 MiB aligned, and what is
  // too little to split off stays with the block.
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

// 100 MiB cached serve 30 MiB, unless they are too large to split; then only one of the cached
// segments goes back.
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
  const auto b = allocator->Allocate(Bytes::MiB(50));  // 10 MiB are there, 40 more are mapped
  EXPECT_EQ(b->offset, a->end());
  EXPECT_EQ(allocator->Reserved(), Bytes::MiB(80));
  allocator->Free(*a);
  allocator->Free(*b);
  const auto c = allocator->Allocate(Bytes::MiB(100));  // the two have merged; 20 MiB more
  EXPECT_EQ(c->offset, a->offset);
  EXPECT_EQ(allocator->Reserved(), Bytes::MiB(100));
  allocator->Free(*c);
  // Memory that the small pool needs comes from pages of the large one.
  std::vector<Block> small;
  for (int i = 0; i < 40; ++i) small.push_back(*allocator->Allocate(Bytes::MiB(1)));
  EXPECT_EQ(allocator->Reserved(), Bytes::MiB(40));
  EXPECT_EQ(allocator->driver_calls().back().kind, DriverCall::Kind::kMap);
}

// The documented rules once more, over a list of segments, each a list of blocks.
class NaivePyTorch {
 public:
  NaivePyTorch(Bytes capacity, Bytes max_split, int64_t divisions)
      : capacity_(capacity), max_split_(max_split), divisions_(divisions) {}

  // Size of the block and of all segments after the request; nullopt if it fails. A new segment
  // lies at `address`.
  std::optional<std::pair<Bytes, Bytes>> Allocate(Bytes size, int id, Bytes address) {
    Bytes rounded = RoundUp(std::max(size, Bytes(1)), Bytes(512));
    if (divisions_ > 1 && size > Bytes(512 * divisions_)) {
      int64_t power = 1;
      while (power * 2 <= size.count()) power *= 2;
      rounded = Bytes(power);
      while (rounded < size) rounded += Bytes(power / divisions_);
    }
    const bool small = rounded <= Bytes::MiB(1);
    BlockRef best = Find(rounded, small);
    if (best.segment == nullptr) {
      const Bytes wanted = small                      ? Bytes::MiB(2)
                           : rounded < Bytes::MiB(10) ? Bytes::MiB(20)
                                                      : RoundUp(rounded, Bytes::MiB(2));
      const auto lacks = [&] { return wanted > capacity_ - Reserved(); };
      if (lacks() && !(ReleaseOversized(std::max(rounded, max_split_)) && !lacks())) {
        std::erase_if(segments_, [](const Segment& s) { return s.Idle(); });
      }
      if (lacks()) return std::nullopt;
      const auto after = std::find_if(segments_.begin(), segments_.end(),
                                      [&](const Segment& s) { return s.address > address; });
      best = {&*segments_.insert(after, {small, address, {{kNobody, wanted}}}), 0};
    }
    auto& blocks = best.segment->blocks;
    const Bytes rest = blocks[best.index].second - rounded;
    if (small ? rest >= Bytes(512) : rounded < max_split_ && rest > Bytes::MiB(1)) {
      blocks[best.index].second = rounded;
      blocks.insert(blocks.begin() + static_cast<std::ptrdiff_t>(best.index) + 1, {kNobody, rest});
    }
    blocks[best.index].first = id;
    return std::pair(blocks[best.index].second, Reserved());
  }

  void Free(int id) {
    for (Segment& segment : segments_) {
      auto& blocks = segment.blocks;
      for (auto& block : blocks) {
        if (block.first == id) block.first = kNobody;
      }
      for (size_t i = 0; i + 1 < blocks.size();) {
        if (blocks[i].first == kNobody && blocks[i + 1].first == kNobody) {
          blocks[i].second += blocks[i + 1].second;
          blocks.erase(blocks.begin() + static_cast<std::ptrdiff_t>(i) + 1);
        } else {
          ++i;
        }
      }
    }
  }

 private:
  static constexpr int kNobody = -1;
  struct Segment {
    bool small = false;
    Bytes address;
    std::vector<std::pair<int, Bytes>> blocks;  // owner, size
    bool Idle() const { return blocks.size() == 1 && blocks[0].first == kNobody; }
  };
  struct BlockRef {
    Segment* segment = nullptr;
    size_t index = 0;
  };

  // The smallest that suffices, the lowest of equals.
  BlockRef Find(Bytes size, bool small) {
    BlockRef best;
    Bytes best_size;
    for (Segment& segment : segments_) {
      for (size_t i = 0; i < segment.blocks.size(); ++i) {
        const auto& [owner, free] = segment.blocks[i];
        if (segment.small != small || owner != kNobody || free < size) continue;
        if (best.segment != nullptr && free >= best_size) continue;
        best = {&segment, i};
        best_size = free;
      }
    }
    if (best.segment == nullptr || best_size < max_split_) return best;
    const bool serves = size >= max_split_ && best_size < size + Bytes::MiB(20);
    return serves ? best : BlockRef{};
  }

  // Whether as much went back.
  bool ReleaseOversized(Bytes wanted) {
    if (max_split_ == Bytes::Unlimited()) return false;
    const auto by_size = [](const Segment& a, const Segment& b) {
      return a.blocks[0].second < b.blocks[0].second;
    };
    const auto oversized = [&](const Segment& s) {
      return s.Idle() && !s.small && s.blocks[0].second >= max_split_;
    };
    auto enough = segments_.end();
    for (auto s = segments_.begin(); s != segments_.end(); ++s) {
      if (!oversized(*s) || s->blocks[0].second < wanted) continue;
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
      released += largest->blocks[0].second;
      segments_.erase(largest);
    }
    return true;
  }

  Bytes Reserved() const {
    Bytes sum;
    for (const Segment& segment : segments_) {
      for (const auto& [owner, size] : segment.blocks) sum += size;
    }
    return sum;
  }

  const Bytes capacity_, max_split_;
  const int64_t divisions_;
  std::vector<Segment> segments_;  // by address
};

TEST(PyTorchTest, AgreesWithANaiveModel) {
  std::mt19937 random(43);
  int refused = 0;
  for (int round = 0; round < 60; ++round) {
    const Bytes max_split = round % 2 == 0 ? Bytes::Unlimited() : Bytes::MiB(24);
    const int64_t divisions = round % 3 == 0 ? 0 : round % 3 == 1 ? 4 : 16;
    PyTorch allocator(Bytes::MiB(300), {max_split, false, divisions});
    NaivePyTorch model(Bytes::MiB(300), max_split, divisions);
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
  }
  EXPECT_GT(refused, 50);
}

}  // namespace
}  // namespace spillway
