#include "experiments/tools/replay/remedies.h"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <map>
#include <set>
#include <utility>

#include "experiments/run/device_specification.h"

namespace spillway::lab {
namespace {

constexpr int64_t kChunks = 8;  // parts in which a loss is computed
// An expression that keeps at least this many equal tensors is written out in elementwise parts.
constexpr size_t kLeastParts = 3;
constexpr size_t kMostParts = 16;
constexpr std::string_view kActivations[] = {"gelu", "silu", "swish", "mish", "activation"};
constexpr std::string_view kLosses[] = {"cross_entropy", "crossentropy", "nll_loss", "log_softmax"};

std::string MiB(Bytes size) { return fmt::format("{:.0f} MiB", size.mib()); }

bool HasAny(std::string text, std::span<const std::string_view> parts) {
  std::ranges::transform(text, text.begin(), [](unsigned char c) { return std::tolower(c); });
  return std::ranges::any_of(
      parts, [&](std::string_view part) { return text.find(part) != std::string::npos; });
}

// A `ChangedSizes` is a log whose program requests other sizes in some of the events.
class ChangedSizes final : public MemoryLog {
 public:
  using Sizes = std::map<uint64_t, Bytes>;  // by event; a block of 0 bytes is not requested

  ChangedSizes(const MemoryLog& log, const Sizes& sizes) : log_(log), sizes_(sizes) {}
  std::string_view Format() const override { return log_.Format(); }
  const MemoryLogStart& start() const override { return log_.start(); }
  std::optional<uint64_t> LastFailure() const override { return log_.LastFailure(); }
  void Walk(const std::function<bool(const MemoryEvent&)>& visit) const override {
    std::set<uint32_t> left_out;  // numbers of blocks
    log_.Walk([&](const MemoryEvent& event) {
      if (event.kind == MemoryEvent::Kind::kFree && left_out.erase(event.block) > 0) return true;
      const auto size = sizes_.find(event.index);
      const bool requests =
          event.kind == MemoryEvent::Kind::kAllocate || event.kind == MemoryEvent::Kind::kFailed;
      if (!requests || size == sizes_.end()) return visit(event);
      if (size->second == Bytes(0)) {
        left_out.insert(event.block);
        return true;
      }
      MemoryEvent changed = event;
      changed.size = size->second;
      return visit(changed);
    });
  }

 private:
  const MemoryLog& log_;
  const Sizes& sizes_;
};

// Other operators, whose programs request other sizes.
struct OperatorChange {
  std::string text;  // how the program changes
  ChangedSizes::Sizes sizes;
  Bytes saved;
};

// Returns the part of a stack that the lines of one function call have in common.
std::string CallOf(const Stack& stack) {
  const std::vector<const StackFrame*> calls = CallsOf(stack);
  if (calls.empty()) return {};
  std::string call = calls.front()->file + ' ' + calls.front()->function;
  for (size_t i = 1; i < calls.size(); ++i) call += '\n' + TextOf(*calls[i]);
  return call;
}

// Finds activations that are written out in elementwise parts: calls that keep several equal
// blocks, one after the other. A fused activation keeps the last one, which is its result.
std::vector<OperatorChange> WrittenOutActivations(const MemoryLog& log,
                                                  const std::vector<HeldBlock>& held) {
  struct Found {
    size_t calls = 0, parts = 0;
    Bytes each;
    OperatorChange change;
  };
  std::map<std::string, Found> found;       // by line
  std::map<uint32_t, std::string> call_of;  // by stack
  const auto call = [&](const HeldBlock& block) -> const std::string& {
    const auto [at, added] = call_of.try_emplace(block.stack);
    if (added) at->second = CallOf(log.stack(block.stack));
    return at->second;
  };
  for (size_t begin = 0, end = 0; begin < held.size(); begin = end) {
    const HeldBlock& first = held[begin];
    while (end < held.size() && held[end].size == first.size && call(held[end]) == call(first)) {
      ++end;
    }
    const size_t parts = end - begin;
    const StackFrame* const requester = RequesterOf(log.stack(first.stack));
    if (first.from_start || requester == nullptr || parts < kLeastParts || parts > kMostParts ||
        !HasAny(TextOf(*requester, true), kActivations)) {
      continue;
    }
    Found& one = found[TextOf(*requester, true)];
    ++one.calls;
    one.parts = std::max(one.parts, parts);
    one.each = std::max(one.each, first.size);
    for (size_t i = begin; i + 1 < end; ++i) {
      one.change.sizes[held[i].event] = Bytes(0);
      one.change.saved += held[i].size;
    }
  }
  std::vector<OperatorChange> changes;
  for (auto& [line, one] : found) {
    one.change.text = fmt::format(
        "Use a fused activation (torch.nn.functional.gelu, silu) at {}: in each of {} calls its "
        "elementwise parts keep {} x {}, not 1. {} less",
        line, one.calls, one.parts, MiB(one.each), MiB(one.change.saved));
    changes.push_back(std::move(one.change));
  }
  return changes;
}

// Finds a loss that holds the logits several times. A loss in chunks holds a part of them.
std::optional<OperatorChange> WholeLoss(const MemoryLog& log, const FailureSituation& situation) {
  const StackFrame* requester = nullptr;
  Bytes logits;
  for (const HeldBlock& block : situation.held) {
    const Stack& stack = log.stack(block.stack);
    const auto in_loss = [](const StackFrame& frame) { return HasAny(frame.function, kLosses); };
    if (block.size <= logits || block.from_start || std::ranges::none_of(stack, in_loss)) continue;
    logits = block.size;
    requester = RequesterOf(stack);
  }
  if (requester == nullptr) return std::nullopt;
  OperatorChange change;
  const auto shrink = [&](uint64_t event, Bytes size) {
    change.sizes[event] = RoundUp(Bytes(size.count() / kChunks + 1), Bytes(512));
    change.saved += size - change.sizes[event];
  };
  for (const HeldBlock& block : situation.held) {
    if (!block.from_start && block.size == logits) shrink(block.event, block.size);
  }
  const bool wanted = situation.wanted == logits;
  if (wanted) shrink(situation.event, situation.wanted);
  if (change.sizes.size() < 2) return std::nullopt;
  change.text = fmt::format(
      "Compute the loss ({}) in {} chunks or fused with the last layer: it holds the logits {} x "
      "{}{}. {} less",
      TextOf(*requester, true), kChunks, change.sizes.size(), MiB(logits),
      wanted ? ", the failed request included" : "", MiB(change.saved));
  return change;
}

// A remedy that has not been tried. `text` makes its text from the bytes to spare.
struct Candidate {
  std::string_view kind;
  std::string allocator;
  Bytes memory;
  std::function<std::string(Bytes)> text;
};

// Replays the log on all candidates at once. Returns those that serve it, and of each kind only the
// first.
std::vector<FailureRemedy> Verify(const MemoryLog& log, const std::vector<Candidate>& candidates,
                                  const AllocatorFactory& make) {
  std::vector<std::unique_ptr<ReplayableAllocator>> allocators;
  std::vector<ReplayedAllocator> subjects;
  for (const Candidate& candidate : candidates) {
    allocators.push_back(make(candidate.allocator, log, candidate.memory));
    subjects.push_back({candidate.allocator, allocators.back().get()});
  }
  ReplayOptions options;
  options.holders = false;
  const std::vector<ReplayResult> results = ReplayLog(log, subjects, options).results;
  std::vector<FailureRemedy> remedies;
  for (size_t i = 0; i < candidates.size(); ++i) {
    const auto& [kind, allocator, memory, text] = candidates[i];
    if (!results[i].fits() || (!remedies.empty() && remedies.back().kind == kind)) continue;
    remedies.push_back(
        {kind, text(memory - results[i].peak_reserved), memory, results[i].peak_reserved});
  }
  return remedies;
}

// Returns the remedies that leave the program as it is, the cheapest first.
std::vector<Candidate> SameProgram(const MemoryLog& log, const FailureSituation& situation,
                                   std::vector<Card> cards) {
  std::vector<Candidate> candidates;
  const Bytes memory = situation.memory;
  const auto& needed = situation.needed;
  if (needed && *needed > memory && situation.available && *needed <= *situation.available) {
    candidates.push_back({"limit", "pytorch", *needed, [=](Bytes) {
                            return fmt::format(
                                "Raise the limit of the process by {}, to {} "
                                "(torch.cuda.set_per_process_memory_fraction).",
                                MiB(*needed - memory), MiB(*needed));
                          }});
  }
  for (const AllocatorSetting& setting : kAllocatorSettings) {
    if (setting.configuration.starts_with("expandable") && log.start().pytorch &&
        log.start().pytorch->expandable_segments) {
      continue;  // as recorded
    }
    candidates.push_back({"setting", std::string(setting.allocator), memory, [=](Bytes spare) {
                            return fmt::format(
                                "Set PYTORCH_CUDA_ALLOC_CONF={} before the program starts: {} to "
                                "spare.",
                                setting.configuration, MiB(spare));
                          }});
  }
  std::ranges::stable_sort(cards, {}, &Card::memory);
  for (const Card& card : cards) {
    const Bytes left = card.memory - kOutsideAllocator;
    if (!needed || left < *needed) continue;
    candidates.push_back({"device", "pytorch", left, [=](Bytes spare) {
                            return fmt::format(
                                "Use a card of {} ({}, {} for contexts): {} to spare.",
                                FormatBytes(card.memory), card.name, MiB(kOutsideAllocator),
                                MiB(spare));
                          }});
  }
  return candidates;
}

}  // namespace

std::vector<FailureRemedy> FindFailureRemedies(const MemoryLog& log,
                                               const FailureSituation& situation,
                                               const AllocatorFactory& make,
                                               std::vector<Card> cards) {
  std::vector<FailureRemedy> remedies =
      Verify(log, SameProgram(log, situation, std::move(cards)), make);
  std::vector<OperatorChange> changes = WrittenOutActivations(log, situation.held);
  if (auto loss = WholeLoss(log, situation)) changes.push_back(*std::move(loss));
  std::ranges::stable_sort(changes, std::greater(), &OperatorChange::saved);
  // Adds the change if it serves the log, and returns whether it does.
  const auto try_change = [&](const OperatorChange& change) {
    const auto text = [&](Bytes spare) {
      return fmt::format("{}, {} to spare.", change.text, MiB(spare));
    };
    const auto found = Verify(ChangedSizes(log, change.sizes),
                              {{"operator", "pytorch", situation.memory, text}}, make);
    remedies.insert(remedies.end(), found.begin(), found.end());
    return !found.empty();
  };
  bool any = false;
  for (const OperatorChange& change : changes) any |= try_change(change);
  if (any || changes.size() < 2) return remedies;
  OperatorChange together;
  for (const OperatorChange& change : changes) {
    together.text += (together.text.empty() ? "" : ". Together with this: ") + change.text;
    together.sizes.insert(change.sizes.begin(), change.sizes.end());
  }
  try_change(together);
  return remedies;
}

}  // namespace spillway::lab
