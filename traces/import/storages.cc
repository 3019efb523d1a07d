#include "traces/import/storages.h"

#include <algorithm>
#include <functional>
#include <unordered_map>
#include <utility>

namespace spillway::traces {
namespace {

using TensorRef = ExecutionTrace::TensorRef;

constexpr int64_t kGranule = 512;
// The largest rest that PyTorch leaves unsplit at the end of a block.
constexpr int64_t kMostExcess = int64_t{1} << 20;

int64_t Rounded(int64_t size) { return (size + kGranule - 1) / kGranule * kGranule; }

}  // namespace

StorageTable::StorageTable(std::span<const KinetoTrace::Memory> memory, bool gpu) : gpu_(gpu) {
  std::unordered_map<uint64_t, uint32_t> live;  // by address
  bool first = true;
  for (const KinetoTrace::Memory& record : memory) {
    if ((record.device >= 0) != gpu_) continue;
    if (std::exchange(first, false)) held_before_ = record.allocated - record.bytes;
    peak_allocated_ = std::max(peak_allocated_, record.allocated);
    peak_reserved_ = std::max(peak_reserved_, record.reserved);
    if (record.bytes >= 0) {
      const auto number = static_cast<uint32_t>(storages_.size());
      storages_.push_back({record.time, kAlways, record.thread, record.bytes, record.bytes});
      live[record.address] = number;
      continue;
    }
    const auto found = live.find(record.address);
    if (found == live.end()) {
      former_frees_.push_back({record.time, -record.bytes});
    } else {
      storages_[found->second].end = record.time;
      live.erase(found);
    }
  }
  blocks_ = storages_.size();
  held_before_ = std::max<int64_t>(held_before_, 0);
}

// Returns the unnamed block that fits `size` best among the blocks that were allocated in [from,
// to] and still held at `alive`. Of equal fits, returns the latest.
std::optional<uint32_t> StorageTable::FindBlock(int64_t size, int64_t from, int64_t to,
                                                int64_t alive,
                                                std::optional<int64_t> thread) const {
  const auto begin = storages_.begin();
  auto at = std::upper_bound(begin, begin + static_cast<std::ptrdiff_t>(blocks_), to,
                             [](int64_t time, const Storage& block) { return time < block.begin; });
  std::optional<uint32_t> best;
  int64_t least = kMostExcess + 1;
  while (at != begin) {
    const Storage& block = *--at;
    if (block.begin < from) break;
    if (block.named || block.end < alive || (thread && block.thread != *thread)) continue;
    const int64_t excess = block.block - Rounded(size);
    if (excess < 0 || excess >= least) continue;
    least = excess;
    best = static_cast<uint32_t>(at - begin);
    if (excess == 0) break;
  }
  return best;
}

uint32_t StorageTable::Name(uint32_t number, const TensorRef& ref) {
  Storage& storage = storages_[number];
  if (!std::exchange(storage.named, true)) storage.size = 0;
  storage.size = std::max(storage.size, ref.end());
  current_[ref.storage] = number;
  return number;
}

// Returns the storage of one operand. `fresh` is true for an output of the node that is not among
// its inputs.
uint32_t StorageTable::Resolve(const TensorRef& ref, int64_t begin, int64_t end, int64_t thread,
                               bool fresh, bool output) {
  if (!IsHere(ref) || ref.end() == 0) return kNone;
  const auto known = current_.find(ref.storage);
  const bool alive = known != current_.end() && storages_[known->second].end > begin;
  if (alive && !fresh) return Name(known->second, ref);
  if (fresh) {
    // The node itself allocated the block, unless an inner node has already named it.
    if (const auto own = FindBlock(ref.end(), begin, end, end, thread)) return Name(*own, ref);
    if (alive) return Name(known->second, ref);
  }
  // The block was allocated earlier, outside of all known nodes.
  if (const auto earlier = FindBlock(ref.end(), kBefore + 1, output ? end : begin,
                                     output ? end : begin, std::nullopt)) {
    return Name(*earlier, ref);
  }
  if (output) unplaced_ += ref.end();
  Storage former;
  former.thread = thread;
  if (output) former.begin = begin;
  storages_.push_back(former);
  return Name(static_cast<uint32_t>(storages_.size() - 1), ref);
}

StorageTable::Operands StorageTable::Join(const ExecutionTrace::Node& node, int64_t begin,
                                          int64_t end, int64_t thread) {
  Operands operands;
  for (const TensorRef& input : node.inputs) {
    operands.inputs.push_back(Resolve(input, begin, end, thread, false, false));
  }
  for (const TensorRef& output : node.outputs) {
    const bool given = std::ranges::any_of(
        node.inputs, [&](const TensorRef& input) { return input.storage == output.storage; });
    operands.outputs.push_back(Resolve(output, begin, end, thread, !given, !given));
  }
  return operands;
}

void StorageTable::EndFormer(std::span<const int64_t> last_use) {
  // The storage that was used last is most likely the first to be released afterwards.
  std::vector<uint32_t> former;
  for (size_t i = blocks_; i < storages_.size(); ++i) {
    if (storages_[i].block == 0) storages_[i].block = Rounded(storages_[i].size);
    former.push_back(static_cast<uint32_t>(i));
  }
  std::ranges::stable_sort(former, std::greater(), [&](uint32_t i) { return last_use[i]; });
  for (FormerFree& free : former_frees_) {
    for (const uint32_t i : former) {
      Storage& storage = storages_[i];
      if (storage.end != kAlways || last_use[i] > free.time || storage.begin > free.time) continue;
      if (free.bytes < storage.block || free.bytes - storage.block > kMostExcess) continue;
      storage.end = free.time;
      free.taken = true;
      break;
    }
  }
}

int64_t StorageTable::UnnamedBefore() const {
  int64_t rest = held_before_;
  for (size_t i = blocks_; i < storages_.size(); ++i) {
    if (storages_[i].begin == kBefore) rest -= storages_[i].block;
  }
  for (const FormerFree& free : former_frees_) {
    if (!free.taken) rest -= free.bytes;
  }
  return std::max<int64_t>(rest, 0);
}

}  // namespace spillway::traces
