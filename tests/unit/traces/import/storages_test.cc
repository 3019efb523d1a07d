#include "traces/import/storages.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <vector>

namespace spillway::testing {
namespace {

using ::testing::ElementsAre;

constexpr uint32_t kNone = StorageTable::kNone;

// The log of a GPU's allocator. Sizes are in blocks of 512 bytes.
class Log {
 public:
  explicit Log(int64_t held = 0) : held_(held) {}

  Log& Give(int64_t time, uint64_t address, int64_t blocks, int64_t thread = 1, int64_t gpu = 0) {
    held_ += blocks * 512;
    memory_.push_back(
        {std::ssize(memory_), time, thread, gpu, address, blocks * 512, held_, 2097152});
    return *this;
  }
  Log& Take(int64_t time, uint64_t address, int64_t blocks) { return Give(time, address, -blocks); }

  StorageTable Table(bool gpu = true) const { return StorageTable(memory_, gpu); }

 private:
  int64_t held_;
  std::vector<KinetoTrace::Memory> memory_;
};

// Returns a tensor of `bytes` elements of one byte each, at `offset` in its storage.
ExecutionTrace::TensorRef Ref(int64_t storage, int64_t bytes, int64_t offset = 0) {
  ExecutionTrace::TensorRef ref;
  ref.storage = storage;
  ref.offset = offset;
  ref.elements = bytes;
  ref.element_size = 1;
  ref.on_gpu = true;
  return ref;
}

using Refs = std::vector<ExecutionTrace::TensorRef>;

StorageTable::Operands Join(StorageTable& table, const Refs& inputs, const Refs& outputs,
                            int64_t begin, int64_t end, int64_t thread = 1) {
  ExecutionTrace::Node node;
  node.inputs = inputs;
  node.outputs = outputs;
  return table.Join(node, begin, end, thread);
}

TEST(StorageTableTest, Blocks) {
  Log log(4096);
  log.Give(10, 0x1000, 2).Give(20, 0x2000, 4, 7).Take(30, 0x1000, 2).Take(40, 0x9000, 1);
  log.Give(50, 0x1000, 1).Give(60, 0x5000, 100, 1, -1);
  const StorageTable table = log.Table();
  ASSERT_EQ(table.storages().size(), 3u);
  EXPECT_EQ(table.storages()[0].begin, 10);
  EXPECT_EQ(table.storages()[0].end, 30);
  EXPECT_EQ(table.storages()[0].block, 1024);
  EXPECT_EQ(table.storages()[1].thread, 7);
  EXPECT_EQ(table.storages()[1].end, StorageTable::kAlways);
  EXPECT_EQ(table.storages()[2].begin, 50);  // it has the address of the first
  EXPECT_EQ(table.held_before(), 4096);
  EXPECT_EQ(table.peak_allocated(), 4096 + 6 * 512);
  EXPECT_EQ(table.peak_reserved(), 2097152);
  EXPECT_EQ(log.Table(false).storages().size(), 1u);
}

//    time    10      20      30      40
//    block 0 [ 2 ------------------------
//    block 1     [ 1 ----------------------
//    block 2         [ 2 ----]
//    node          (15 ------ 35)
TEST(StorageTableTest, OutputsLieInTheBestBlockOfTheirNode) {
  const Log log =
      Log().Give(10, 0x1000, 2).Give(20, 0x2000, 1).Give(22, 0x3000, 2).Take(30, 0x3000, 2);
  struct Case {
    int64_t bytes, begin, end, thread;
    uint32_t storage;
    int64_t unplaced = 0;
  };
  for (const Case& test : {
           Case{500, 15, 35, 1, 1},
           Case{600, 15, 29, 1, 2},  // block 2 is still held when the node ends
           // Block 2 is freed; block 0 was given out before the node.
           Case{600, 15, 35, 1, 0}, Case{500, 5, 35, 1, 1},  // the smallest sufficient block
           Case{500, 15, 35, 2, 1},                          // a block of another thread
           Case{1025, 5, 35, 1, 3, 1025},                    // no block is large enough
       }) {
    StorageTable table = log.Table();
    EXPECT_THAT(Join(table, {}, {Ref(1, test.bytes)}, test.begin, test.end, test.thread).outputs,
                ElementsAre(test.storage))
        << test.bytes << " in " << test.begin << " to " << test.end;
    EXPECT_EQ(table.storages()[test.storage].size, test.bytes);
    EXPECT_EQ(table.unplaced(), test.unplaced);
  }
}

// A block may exceed its tensor by 1 MiB, the largest remainder that PyTorch does not split off.
TEST(StorageTableTest, BlocksMayBeLarger) {
  for (const auto& [excess, found] : {std::pair(2048, true), std::pair(2049, false)}) {
    StorageTable table = Log().Give(10, 0x1000, 10 + excess).Table();
    EXPECT_EQ(Join(table, {}, {Ref(1, 5120)}, 5, 20).outputs[0] == 0, found) << excess;
  }
  // The later one of two equal blocks is chosen.
  StorageTable table = Log().Give(10, 0x1000, 2).Give(15, 0x2000, 2).Table();
  EXPECT_THAT(Join(table, {}, {Ref(1, 512)}, 5, 20).outputs, ElementsAre(1));
}

TEST(StorageTableTest, OperandsElsewhereAndEmptyOnes) {
  StorageTable table = Log().Give(10, 0x1000, 1).Table();
  ExecutionTrace::TensorRef host = Ref(1, 8);
  host.on_gpu = false;
  const auto operands = Join(table, {host, Ref(2, 0)}, {Ref(3, 0)}, 5, 20);
  EXPECT_THAT(operands.inputs, ElementsAre(kNone, kNone));
  EXPECT_THAT(operands.outputs, ElementsAre(kNone));
}

// An outer node may output a storage that an inner node made, or one of its own inputs.
TEST(StorageTableTest, InnerNodesFirst) {
  StorageTable table = Log().Give(10, 0x1000, 1).Give(12, 0x2000, 1).Table();
  EXPECT_THAT(Join(table, {}, {Ref(1, 512)}, 9, 11).outputs, ElementsAre(0));
  EXPECT_THAT(Join(table, {}, {Ref(2, 512)}, 11, 13).outputs, ElementsAre(1));
  EXPECT_THAT(Join(table, {}, {Ref(1, 512)}, 8, 14).outputs, ElementsAre(0));
  const auto view = Join(table, {Ref(2, 256, 64)}, {Ref(2, 512)}, 20, 21);
  EXPECT_THAT(view.inputs, ElementsAre(1));
  EXPECT_THAT(view.outputs, ElementsAre(1));
}

// A number denotes another storage once its block was freed, or when a node allocates it anew.
TEST(StorageTableTest, NumbersAreUsedAgain) {
  StorageTable table =
      Log().Give(10, 0x1000, 1).Take(20, 0x1000, 1).Give(30, 0x1000, 1).Give(40, 0x2000, 1).Table();
  EXPECT_THAT(Join(table, {}, {Ref(1, 512)}, 9, 11).outputs, ElementsAre(0));
  EXPECT_THAT(Join(table, {Ref(1, 512)}, {}, 15, 16).inputs, ElementsAre(0));
  // The number denotes a storage from before the recording.
  EXPECT_THAT(Join(table, {Ref(1, 512)}, {}, 25, 26).inputs, ElementsAre(3));
  EXPECT_THAT(Join(table, {}, {Ref(1, 512)}, 29, 31).outputs, ElementsAre(1));
  EXPECT_THAT(Join(table, {Ref(1, 512)}, {}, 35, 36).inputs, ElementsAre(1));
  EXPECT_THAT(Join(table, {}, {Ref(1, 512)}, 39, 41).outputs, ElementsAre(2));
}

// 10 blocks were held before the recording. Storage 5 has 2 and stays; storage 6 has 3 and is
// freed. The 4 blocks freed without a name, and the remaining block, are unnamed.
//
//   time          10     20      30      40
//   5 (2 blocks) ---------------------------
//   6 (3 blocks) --use--------]
//   ? (4 blocks) ----]
TEST(StorageTableTest, FormerStorages) {
  StorageTable table = Log(10 * 512).Take(10, 0x1000, 4).Take(30, 0x2000, 3).Table();
  const auto five = Join(table, {Ref(5, 1000)}, {}, 35, 40).inputs[0];
  const auto six = Join(table, {Ref(6, 1500)}, {}, 15, 20).inputs[0];
  std::vector<int64_t> last_use(table.storages().size(), StorageTable::kBefore);
  last_use[five] = 40;
  last_use[six] = 20;
  table.EndFormer(last_use);
  EXPECT_EQ(table.storages()[five].begin, StorageTable::kBefore);
  EXPECT_EQ(table.storages()[five].end, StorageTable::kAlways);
  EXPECT_EQ(table.storages()[six].end, 30);
  EXPECT_EQ(table.storages()[six].block, 1536);
  EXPECT_EQ(table.UnnamedBefore(), 512);
}

// If two storages match a freed block, it belongs to the storage used last.
TEST(StorageTableTest, FormerStorageUsedLastGoesFirst) {
  StorageTable table = Log(2 * 512).Take(30, 0x1000, 1).Table();
  const auto first = Join(table, {Ref(1, 512)}, {}, 10, 11).inputs[0];
  const auto second = Join(table, {Ref(2, 512)}, {}, 20, 21).inputs[0];
  const std::vector<int64_t> last_use{11, 21};
  table.EndFormer(last_use);
  EXPECT_EQ(table.storages()[first].end, StorageTable::kAlways);
  EXPECT_EQ(table.storages()[second].end, 30);
}

}  // namespace
}  // namespace spillway::testing
