#include "traces/blocks.h"

#include <algorithm>
#include <functional>
#include <map>
#include <set>

namespace spillway::traces {
namespace {

// Returns the prefixes of `name` that end before a dot and have a number at their end, the
// outermost first. With `alone`, the number has to be the whole part of the name.
std::vector<std::string_view> NumberedPrefixes(std::string_view name, bool alone) {
  std::vector<std::string_view> prefixes;
  for (size_t dot = name.find('.'); dot != name.npos; dot = name.find('.', dot + 1)) {
    const std::string_view prefix = name.substr(0, dot);
    const std::string_view stem = StemOf(prefix);
    if (stem.empty() || stem.size() == prefix.size()) continue;
    if (stem.ends_with('.') == alone) prefixes.push_back(prefix);
  }
  return prefixes;
}

}  // namespace

std::string_view StemOf(std::string_view block) {
  return block.substr(0, block.find_last_not_of("0123456789") + 1);
}

std::vector<std::string> BlocksOf(const Trace& trace) {
  std::vector<std::string> blocks(trace.layers.size());
  for (size_t i = 0; i < blocks.size(); ++i) {
    const std::string& name = trace.layers[i].name;
    if (const size_t slash = name.rfind('/'); slash != name.npos) blocks[i] = name.substr(0, slash);
  }
  if (std::ranges::any_of(blocks, std::not_fn(&std::string::empty))) return blocks;
  for (const bool alone : {true, false}) {
    std::map<std::string_view, std::set<std::string_view>> members;  // by stem
    for (const Layer& layer : trace.layers) {
      for (const auto prefix : NumberedPrefixes(layer.name, alone)) {
        members[StemOf(prefix)].insert(prefix);
      }
    }
    for (size_t i = 0; i < blocks.size(); ++i) {
      for (const auto prefix : NumberedPrefixes(trace.layers[i].name, alone)) {
        if (blocks[i].empty() && members[StemOf(prefix)].size() > 1) blocks[i] = prefix;
      }
    }
  }
  return blocks;
}

std::vector<std::string> BlocksInOrder(const Trace& trace) {
  const std::vector<std::string> blocks = BlocksOf(trace);
  std::vector<std::string> order;
  std::set<std::string_view> seen;
  for (const Op& op : trace.ops) {
    const std::string& block = blocks[Index(op.layer)];
    if (op.phase == Phase::kForward && !block.empty() && seen.insert(block).second) {
      order.push_back(block);
    }
  }
  return order;
}

}  // namespace spillway::traces
