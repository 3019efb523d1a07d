// Tests Tables II and V of vDNN++: the fragmentation under the requests of the authors' code.

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "experiments/run/pool_search.h"
#include "sim/alloc/make_allocator.h"
#include "sim/packing/allocation_log.h"
#include "sim/packing/packing.h"

namespace spillway::testing {
namespace {

constexpr Bytes kGranularity(512);

struct Layer {
  char kind;  // c, p or f: convolution, pooling, fully connected
  int64_t y;  // elements per image
  int64_t weights = 0, bias = 0;
};

struct Net {
  int64_t batch;
  int64_t image;
  std::vector<Layer> layers;
};

// AlexNet on 227 x 227 images, ungrouped, without LRN and dropout.
Net AlexNet(int64_t batch) {
  return {batch,
          3 * 227 * 227,
          {{'c', 96 * 55 * 55, 96 * 3 * 121, 96},
           {'p', 96 * 27 * 27},
           {'c', 256 * 27 * 27, 256 * 96 * 25, 256},
           {'p', 256 * 13 * 13},
           {'c', 384 * 13 * 13, 384 * 256 * 9, 384},
           {'c', 384 * 13 * 13, 384 * 384 * 9, 384},
           {'c', 256 * 13 * 13, 256 * 384 * 9, 256},
           {'p', 256 * 6 * 6},
           {'f', 4096, 9216 * 4096, 4096},
           {'f', 4096, 4096 * 4096, 4096},
           {'f', 1000, 4096 * 1000, 1000}}};
}

// The requests of one iteration without any workspace. Weights are not in the pool.
class Iteration {
 public:
  enum class Mode { kConv, kAll, kAlternate };
  struct Options {
    Mode mode;
    bool prefetch_first = true;
    bool kept_high = false;       // X of layers that are not offloaded gets the high hint
    bool leaks_the_image = true;  // backward requests it again, though it was never freed
  };

  Iteration(const Net& net, const Options& options)
      : net_(net), options_(options), x_(net.layers.size() + 1) {
    offloaded_ = OffloadSet();
    Forward();
    Backward();
  }

  const AllocationLog& log() const { return log_; }

 private:
  std::vector<bool> OffloadSet() const {
    std::vector<bool> set;
    int conv = 0;
    for (const Layer& layer : net_.layers) {
      const bool is_conv = layer.kind == 'c';
      const bool alternate = is_conv && conv++ % 2 == 0;
      set.push_back(options_.mode == Mode::kAlternate ? alternate
                    : options_.mode == Mode::kConv    ? is_conv
                                                      : layer.kind != 'f');
    }
    return set;
  }

  // Returns the size of X of layer i. X of the layer after the last one is the result.
  Bytes SizeOfX(size_t i) const {
    return Bytes(4 * net_.batch * (i == 0 ? net_.image : net_.layers[i - 1].y));
  }
  uint32_t TakeX(size_t i) {
    const bool kept = i == net_.layers.size() || !offloaded_[i];
    return log_.Allocate(SizeOfX(i), kept && options_.kept_high ? Hint::kHigh : Hint::kLow);
  }

  void Forward() {
    x_[0] = TakeX(0);
    for (size_t i = 0; i < net_.layers.size(); ++i) {
      x_[i + 1] = TakeX(i + 1);
      if (!offloaded_[i]) continue;
      if (i > 0 || !options_.leaks_the_image) log_.Free(*x_[i]);
      x_[i].reset();
    }
  }

  // Returns the layer whose X must be prefetched; see vDNN, Fig. 10.
  std::optional<size_t> ToPrefetch(size_t layer) const {
    for (size_t i = layer; i-- > 0;) {
      if (offloaded_[i] && !x_[i]) return i;
      if (net_.layers[i].kind == 'c') return std::nullopt;
    }
    return std::nullopt;
  }

  void Backward() {
    uint32_t dy = log_.Allocate(SizeOfX(net_.layers.size()));
    for (size_t i = net_.layers.size(); i-- > 0;) {
      const auto prefetched = ToPrefetch(i);
      const auto prefetch = [&] {
        if (prefetched) x_[*prefetched] = log_.Allocate(SizeOfX(*prefetched));
      };
      if (options_.prefetch_first) prefetch();
      std::optional<uint32_t> dx, dw, db;
      if (i > 0) dx = log_.Allocate(SizeOfX(i));
      const Layer& layer = net_.layers[i];
      if (layer.weights > 0) {
        dw = log_.Allocate(Bytes(4 * layer.weights));
        db = log_.Allocate(Bytes(4 * layer.bias));
      }
      if (!options_.prefetch_first) prefetch();
      if (dw) {
        log_.Free(*dw);
        log_.Free(*db);
      }
      log_.Free(*x_[i + 1]);
      log_.Free(dy);
      if (dx) dy = *dx;
    }
    log_.Free(*x_[0]);
  }

  const Net net_;
  const Options options_;
  std::vector<bool> offloaded_;
  std::vector<std::optional<uint32_t>> x_;
  AllocationLog log_;
};

int64_t Floor(Bytes size, double weights) { return static_cast<int64_t>(size.mib() + weights); }

struct Row {
  Iteration::Mode mode;
  int64_t aggregate;
  int64_t best_fit[2], high_end[2];  // {prefetch-first, derivative-first}
};

TEST(VdnnppTableV, AlexNetWithMemoryOptimalAlgorithms) {
  constexpr double kWeights = 246.00;
  const Net net = AlexNet(256);
  for (const Row& row : {Row{Iteration::Mode::kConv, 1184, {1452, 1476}, {1427, 1465}},
                         Row{Iteration::Mode::kAll, 1100, {1375, 1361}, {1570, 1362}},
                         Row{Iteration::Mode::kAlternate, 1184, {1374, 1379}, {1472, 1534}}}) {
    const Bytes aggregate = Iteration(net, {row.mode, true, false, false}).log().Peak(kGranularity);
    EXPECT_EQ(Floor(aggregate, kWeights), row.aggregate);
    for (const int order : {0, 1}) {
      const Iteration best({net}, {row.mode, order == 0, false});
      EXPECT_EQ(Floor(*SearchPool(best.log(), "best-fit", kGranularity, aggregate), kWeights),
                row.best_fit[order]);
      const Iteration high({net}, {row.mode, order == 0, true});
      EXPECT_EQ(Floor(*SearchPool(high.log(), "high-end", kGranularity, aggregate), kWeights),
                row.high_end[order]);
    }
  }
}

// CNMeM starts with the aggregate and grows by the requests that fail. The image is freed like all
// other tensors.
TEST(VdnnppTableII, AlexNetWithMemoryOptimalAlgorithms) {
  constexpr double kWeights = 240, kRest = 177.9;
  const Net net = AlexNet(128);
  struct Cell {
    Iteration::Mode mode;
    int64_t expected, actual;
  };
  for (const Cell& cell :
       {Cell{Iteration::Mode::kConv, 710, 1121}, Cell{Iteration::Mode::kAll, 667, 987}}) {
    const Iteration iteration(net, {cell.mode, true, false, false});
    const Bytes aggregate = iteration.log().Peak(kGranularity);
    EXPECT_EQ(Floor(aggregate, kWeights), cell.expected);
    const auto cnmem = MakeAllocator(fmt::format("cnmem:initial={}B", aggregate.count()),
                                     Bytes::GiB(4), kGranularity);
    EXPECT_FALSE(Replay(iteration.log(), *cnmem));
    EXPECT_EQ(Floor(cnmem->Reserved(), kWeights + kRest), cell.actual);
  }
}

// Section III-B: no placement of these requests stays within the most bytes that they hold at once,
// 4 units of 3 thirds each. Block a_ij is requested before d_i and freed with d_j. The sizes for i
// = 1 to 4 are 3, 1, 2 and 6 thirds.
//
//   before d1  |a11  |a12  |a13  |a14  |
//   before d2  |22 23 24|a12|a13  |a14  |   a12, a22 go: side by side, else 33 and 34 do not fit
//   before d3  |33.34.| .. |a13 |a14 | ..   a13, a23, a33 go: together, else 44 does not fit
//   before d4  |44..........|a14 24 34|     in any order: the three demands exclude each other
AllocationLog UnavoidablyFragmented() {
  constexpr std::array kThirds{3, 1, 2, 6};
  AllocationLog log;
  std::array<std::vector<uint32_t>, 4> going;
  for (size_t i = 0; i < 4; ++i) {
    for (size_t j = i; j < 4; ++j) going[j].push_back(log.Allocate(Bytes(kThirds[i])));
    for (const uint32_t block : going[i]) log.Free(block);
  }
  return log;
}

// Returns true iff the blocks after the placed ones, in the order of their requests, have places
// below `height`. `offsets` holds the places found so far.
bool HasPlaces(const std::vector<LiveInterval>& blocks, std::vector<int64_t>& offsets,
               int64_t height) {
  const size_t next = offsets.size();
  if (next == blocks.size()) return true;
  const LiveInterval& block = blocks[next];
  for (int64_t offset = 0; offset + block.size.count() <= height; ++offset) {
    const bool free = std::ranges::none_of(offsets, [&](const int64_t& other_offset) {
      const LiveInterval& other = blocks[static_cast<size_t>(&other_offset - offsets.data())];
      return other.begin < block.end && block.begin < other.end &&
             other_offset < offset + block.size.count() &&
             offset < other_offset + other.size.count();
    });
    if (!free) continue;
    offsets.push_back(offset);
    if (HasPlaces(blocks, offsets, height)) return true;
    offsets.pop_back();
  }
  return false;
}

TEST(VdnnppSectionIIIB, SomeRequestsCannotAvoidFragmentation) {
  const AllocationLog log = UnavoidablyFragmented();
  const std::vector<LiveInterval> blocks = IntervalsOf(log);
  ASSERT_EQ(blocks.size(), 10u);
  EXPECT_EQ(log.Peak(Bytes(1)), Bytes(12));
  int64_t height = 12;
  for (std::vector<int64_t> offsets; !HasPlaces(blocks, offsets, height); offsets.clear()) ++height;
  EXPECT_EQ(height, 13);
  const Packing packing = Pack(blocks, {.granularity = Bytes(1), .tolerance = 0});
  EXPECT_EQ(packing.bound, Bytes(12));
  EXPECT_EQ(packing.height, Bytes(height));
}

// Section IV-B: best fit serves A1(5) A2(2) A3(1) D2 A4(1) D1 D3 A5(8).
//
//   in 9   |A1...|A2|3|.|  A4 takes the last unit: then A1 to A3 leave 8 units in one piece
//   in 11  |A1...|A2|3|...|  A4 takes one of A2's two units: the free memory is split in 5 and 5
TEST(VdnnppSectionIVB, ALargerPoolCanServeLess) {
  AllocationLog log;
  const uint32_t a1 = log.Allocate(Bytes(5)), a2 = log.Allocate(Bytes(2)),
                 a3 = log.Allocate(Bytes(1));
  log.Free(a2);
  log.Allocate(Bytes(1));
  log.Free(a1);
  log.Free(a3);
  log.Allocate(Bytes(8));
  for (const auto& [units, served] : {std::pair{9, true}, {11, false}}) {
    const auto pool = MakeAllocator("best-fit", Bytes(units), Bytes(1));
    EXPECT_EQ(!Replay(log, *pool), served) << units;
  }
}

}  // namespace
}  // namespace spillway::testing
