#include "experiments/tools/replay/holders.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <tuple>
#include <utility>

namespace spillway::lab {
namespace {

std::optional<StackFrame> Copy(const StackFrame* frame) {
  return frame == nullptr ? std::nullopt : std::optional(*frame);
}

std::vector<StackFrame> Copy(const std::vector<const StackFrame*>& frames) {
  std::vector<StackFrame> copies;
  for (const StackFrame* const frame : frames) copies.push_back(*frame);
  return copies;
}

template <typename Item>
void SortBySize(std::vector<Item>& items) {
  std::ranges::stable_sort(items, std::greater(), &Item::size);
}

// A line in the tree of calls, with the blocks that it and the lines that it calls requested.
struct Node {
  Bytes size;
  std::vector<const HeldBlock*> blocks;
  std::map<StackFrame, Node> calls;
};

// If the blocks, in the order of events, are at least two repetitions of the same stacks and sizes,
// of which the last may be incomplete: returns the number of blocks of one repetition. Otherwise
// returns the number of all blocks. Blocks whose stack and size occur once are left out before.
size_t Period(std::vector<const HeldBlock*>& blocks) {
  const auto kind = [](const HeldBlock* block) { return std::pair(block->stack, block->size); };
  std::map<std::pair<uint32_t, Bytes>, size_t> count;
  for (const HeldBlock* const block : blocks) ++count[kind(block)];
  std::erase_if(blocks, [&](const HeldBlock* block) { return count[kind(block)] == 1; });
  // The failure function of Knuth, Morris and Pratt: the longest border of each prefix.
  std::vector<size_t> border(blocks.size() + 1, 0);
  for (size_t i = 1, k = 0; i < blocks.size(); ++i) {
    while (k > 0 && kind(blocks[i]) != kind(blocks[k])) k = border[k];
    if (kind(blocks[i]) == kind(blocks[k])) ++k;
    border[i + 1] = k;
  }
  return blocks.size() - border.back();
}

// Returns how often the line was called, each time for the same blocks, and the bytes of each time.
std::pair<uint64_t, Bytes> TimesOf(const Node& node) {
  std::vector<const HeldBlock*> repeated = node.blocks;
  const size_t period = Period(repeated);
  // A line that always requests the same is no layer of anything.
  if (period < 2 || 2 * period > repeated.size()) return {1, node.size};
  Bytes each;
  for (size_t i = 0; i < period; ++i) each += repeated[i]->size;
  return {(repeated.size() + period - 1) / period, each};
}

using Call = std::pair<const StackFrame*, const Node*>;

// Returns the calls of a node, most bytes first.
std::vector<Call> CallsBySize(const Node& node) {
  std::vector<Call> calls;
  for (const auto& [frame, below] : node.calls) calls.emplace_back(&frame, &below);
  std::ranges::stable_sort(calls, std::greater(),
                           [](const Call& call) { return call.second->size; });
  return calls;
}

// Adds the line and those that it calls to `callers`, if they belong there.
void AddCallers(const StackFrame& frame, const Node& node, Bytes least, int depth,
                std::vector<Caller>& callers) {
  if (node.size < least || node.calls.empty()) return;
  const std::vector<Call> calls = CallsBySize(node);
  const Node& largest = *calls.front().second;
  const auto [times, each] = TimesOf(node);
  const bool branches = largest.size.count() / 19 < node.size.count() / 20;
  const bool shown = branches || (times > 1 && TimesOf(largest).first != times);
  if (shown) callers.push_back({frame, depth, node.size, node.blocks.size(), times, each});
  for (const auto& [called, below] : calls) {
    AddCallers(*called, *below, least, depth + (shown ? 1 : 0), callers);
  }
}

}  // namespace

std::vector<HolderGroup> GroupHolders(const MemoryLog& log, const std::vector<HeldBlock>& held) {
  const bool has_stacks =
      std::ranges::any_of(held, [](const HeldBlock& block) { return block.stack != 0; });
  struct Source {
    const StackFrame* requester;
    const StackFrame* through;
    std::vector<StackFrame> calls;
  };
  std::map<uint32_t, Source> sources;  // by number of the stack
  std::map<std::tuple<std::optional<StackFrame>, std::optional<StackFrame>, bool, Bytes>,
           std::pair<HolderGroup, std::map<std::vector<StackFrame>, CallChain>>>
      groups;
  for (const HeldBlock& block : held) {
    const auto [source, added] = sources.try_emplace(block.stack);
    if (added) {
      const Stack& stack = log.stack(block.stack);
      source->second = {RequesterOf(stack), OperatorOf(stack), Copy(CallsOf(stack))};
    }
    const auto& [requester, through, calls] = source->second;
    const bool by_size = requester == nullptr && !(has_stacks && block.from_start);
    auto& [group, chains] =
        groups[{Copy(requester), Copy(through), requester == nullptr && block.from_start,
                by_size ? block.size : Bytes(0)}];
    if (group.blocks == 0) {
      group.requester = Copy(requester);
      group.through = Copy(through);
      group.each = block.size;
    }
    if (group.each != block.size) group.each.reset();
    group.size += block.size;
    ++group.blocks;
    group.from_start += block.from_start;
    if (calls.empty()) continue;
    CallChain& chain = chains[calls];
    chain.calls = calls;
    chain.size += block.size;
    ++chain.blocks;
  }
  std::vector<HolderGroup> sorted;
  for (auto& [key, found] : groups) {
    auto& [group, chains] = found;
    for (auto& [calls, chain] : chains) group.chains.push_back(std::move(chain));
    SortBySize(group.chains);
    sorted.push_back(std::move(group));
  }
  SortBySize(sorted);
  return sorted;
}

std::string NameOf(const HolderGroup& group, size_t width) {
  if (!group.requester) {
    return group.from_start == group.blocks ? "from before the log"
                                            : "no Python frame: C++, or a thread of backward";
  }
  const auto name = [&](bool name_only) {
    const std::string requester = TextOf(*group.requester, name_only);
    return group.through ? requester + ", in " + TextOf(*group.through, name_only) : requester;
  };
  for (const bool name_only : {false, true}) {
    if (name(name_only).size() <= width) return name(name_only);
  }
  const std::string requester = TextOf(*group.requester, true);
  return Ending(group.through ? requester + ", in " + group.through->function : requester, width);
}

std::string Ending(const std::string& text, size_t width) {
  return text.size() <= width ? text : "..." + text.substr(text.size() - width + 3);
}

std::vector<Caller> FindCallers(const MemoryLog& log, const std::vector<HeldBlock>& held) {
  // Stacks that differ in frames that do not count are one stack here.
  struct Source {
    uint32_t number;
    std::vector<StackFrame> calls;
  };
  std::map<std::pair<std::vector<StackFrame>, std::optional<StackFrame>>, uint32_t> numbers;
  std::map<uint32_t, Source> sources;  // by number of the stack
  std::vector<HeldBlock> blocks = held;
  Node root;
  for (HeldBlock& block : blocks) {
    const auto [source, added] = sources.try_emplace(block.stack);
    if (added) {
      const Stack& stack = log.stack(block.stack);
      auto calls = Copy(CallsOf(stack));
      const auto next = static_cast<uint32_t>(numbers.size());
      const auto number = numbers.try_emplace({calls, Copy(OperatorOf(stack))}, next).first->second;
      source->second = {number, std::move(calls)};
    }
    block.stack = source->second.number;
    root.size += block.size;
    Node* node = &root;
    for (auto call = source->second.calls.rbegin(); call != source->second.calls.rend(); ++call) {
      node = &node->calls[*call];
      node->size += block.size;
      node->blocks.push_back(&block);
    }
  }
  std::vector<Caller> callers;
  const Bytes least(root.size.count() / 20 + 1);
  for (const auto& [frame, node] : CallsBySize(root)) AddCallers(*frame, *node, least, 0, callers);
  return callers;
}

}  // namespace spillway::lab
