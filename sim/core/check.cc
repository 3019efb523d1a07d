#include "sim/core/check.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <map>
#include <optional>
#include <set>

#include "sim/core/page_table.h"

namespace spillway::sim {
namespace {

// A version of a tensor's contents: the op that wrote it last, or kInitial for contents from before
// the iteration.
using Contents = int64_t;
constexpr Contents kInitial = -1;

using Clock = std::array<uint32_t, kStreamCount>;

struct Access {
  size_t command = 0;
  Block block;
  bool write = false;
};

bool Overlap(const Block& a, const Block& b) { return a.offset < b.end() && b.offset < a.end(); }
bool Covers(const Block& a, const Block& b) { return a.offset <= b.offset && b.end() <= a.end(); }

// A block and the tensor that holds it.
struct Holding {
  TensorId tensor = kNoTensor;
  Block block;
};

// One arena, as described by the placement log.
struct Arena {
  std::vector<Holding> blocks;     // taken from the allocator
  std::vector<Holding> occupants;  // users of reserved blocks
  std::map<TensorId, Contents> contents;
  std::vector<Access> accesses;  // accesses that may conflict with a later access
};

class Checker {
 public:
  Checker(const Trace& trace, const Report& report, size_t limit)
      : trace_(trace), report_(report), limit_(limit) {}

  std::vector<std::string> Run() {
    for (const DriverCall& call : report_.mappings) pages_.Note(call);
    BuildClocks();
    FindExpectedContents();
    for (size_t i = 0; i < report_.timeline.size(); ++i) {
      ApplyPlacements(i);
      if (report_.timeline[i].kind == CommandKind::kKernel) {
        CheckKernel(i);
      } else {
        CheckCopy(i);
      }
    }
    ApplyPlacements(report_.timeline.size());
    return std::move(violations_);
  }

 private:
  template <typename... Args>
  void Fail(fmt::format_string<Args...> format, Args&&... args) {
    if (violations_.size() < limit_) {
      violations_.push_back(fmt::format(format, std::forward<Args>(args)...));
    }
  }

  std::string TensorName(TensorId id) const {
    return id == kNoTensor ? "a workspace or reservation" : trace_.tensor(id).name;
  }

  std::string CommandName(size_t i) const {
    const TimelineEntry& entry = report_.timeline[i];
    switch (entry.kind) {
      case CommandKind::kKernel:
        return fmt::format("{} {}", entry.recompute ? "rerun of" : "op", trace_.op(entry.op).name);
      case CommandKind::kToDevice:
        return fmt::format("copy of {} to the device", TensorName(entry.tensor));
      default:
        return fmt::format(
            "copy of {} to the {}", TensorName(entry.tensor),
            entry.event.stream == Stream::kToHost ? "host" : Name(PoolOf(entry.event.stream)));
    }
  }

  // Computes the clocks. clock[s] of a command is the number of commands of stream s that are known
  // to have ended when the command starts; for its own stream it is the command's own sequence.
  void BuildClocks() {
    std::array<std::vector<size_t>, kStreamCount> by_stream;
    for (size_t i = 0; i < report_.timeline.size(); ++i) {
      const TimelineEntry& entry = report_.timeline[i];
      auto& stream = by_stream[Index(entry.event.stream)];
      Clock clock{};
      if (!stream.empty()) {
        clock = clocks_[stream.back()];
        const TimelineEntry& previous = report_.timeline[stream.back()];
        if (entry.interval.start < previous.interval.end) {
          Fail("{} starts before {}, its predecessor on the stream, ends", CommandName(i),
               CommandName(stream.back()));
        }
      }
      for (uint32_t w = 0; w < entry.wait_count; ++w) {
        const Event event = report_.waits[entry.first_wait + w].event;
        const auto& other = by_stream[Index(event.stream)];
        if (event.sequence == 0 || event.sequence > other.size()) {
          Fail("{} waits for a command that was not issued before it", CommandName(i));
          continue;
        }
        const Clock& theirs = clocks_[other[event.sequence - 1]];
        for (size_t s = 0; s < kStreamCount; ++s) clock[s] = std::max(clock[s], theirs[s]);
      }
      stream.push_back(i);
      clock[Index(entry.event.stream)] = static_cast<uint32_t>(stream.size());
      clocks_.push_back(clock);
    }
  }

  // Finds the contents that each operand of each op must hold: the last write by an earlier op of
  // the trace.
  void FindExpectedContents() {
    std::vector<Contents> latest(trace_.tensors.size(), kInitial);
    expected_.resize(trace_.ops.size());
    added_to_.resize(trace_.ops.size());
    for (size_t i = 0; i < trace_.ops.size(); ++i) {
      for (const TensorId input : trace_.ops[i].inputs) {
        expected_[i].push_back(latest[Index(trace_.Root(input))]);
      }
      for (const TensorId output : trace_.ops[i].outputs) {
        added_to_[i].push_back(latest[Index(trace_.Root(output))]);
      }
      for (const TensorId output : trace_.ops[i].outputs) {
        latest[Index(trace_.Root(output))] = static_cast<Contents>(i);
      }
    }
  }

  // --- Placements -------------------------------------------------------------------------------

  void ApplyPlacements(size_t command) {
    for (; next_placement_ < report_.placements.size() &&
           report_.placements[next_placement_].commands <= command;
         ++next_placement_) {
      Apply(report_.placements[next_placement_]);
    }
  }

  void Apply(const Placement& placement) {
    Arena& arena = ArenaOf(placement.pool);
    switch (placement.kind) {
      case PlacementKind::kAllocate:
        for (const Holding& other : arena.blocks) {
          if (placement.on_device() ? pages_.Overlap(other.block, placement.block)
                                    : Overlap(other.block, placement.block)) {
            Fail("{} at [{}, {}) overlaps {} at [{}, {})", TensorName(placement.tensor),
                 placement.block.offset.count(), placement.block.end().count(),
                 TensorName(other.tensor), other.block.offset.count(), other.block.end().count());
          }
        }
        arena.blocks.push_back({placement.tensor, placement.block});
        Arrive(placement);
        return;
      case PlacementKind::kFree:
        Remove(arena.blocks, placement);
        arena.contents.erase(placement.tensor);
        return;
      case PlacementKind::kEnter: {
        const bool inside =
            std::any_of(arena.blocks.begin(), arena.blocks.end(), [&](const Holding& holding) {
              return holding.tensor == kNoTensor && Covers(holding.block, placement.block);
            });
        if (!inside) Fail("{} lies in no reserved block", TensorName(placement.tensor));
        for (const Holding& other : arena.occupants) {
          if (Overlap(other.block, placement.block)) {
            Fail("{} and {} use the same reserved block", TensorName(placement.tensor),
                 TensorName(other.tensor));
          }
        }
        arena.occupants.push_back({placement.tensor, placement.block});
        Arrive(placement);
        return;
      }
      case PlacementKind::kLeave:
        Remove(arena.occupants, placement);
        arena.contents.erase(placement.tensor);
        return;
    }
  }

  void Remove(std::vector<Holding>& holdings, const Placement& placement) {
    const auto found = std::find_if(holdings.begin(), holdings.end(), [&](const Holding& holding) {
      return holding.tensor == placement.tensor && holding.block == placement.block;
    });
    if (found == holdings.end()) {
      Fail("{} gives back a block that it does not hold", TensorName(placement.tensor));
    } else {
      holdings.erase(found);
    }
  }

  // Gives a tensor its initial contents. Parameters and optimizer state have them when the
  // iteration begins. Inputs arrive in the first block that they get, on the device or outside.
  void Arrive(const Placement& placement) {
    if (placement.tensor == kNoTensor) return;
    const TensorKind kind = trace_.tensor(placement.tensor).kind;
    const bool arrives = kind == TensorKind::kInput || kind == TensorKind::kParameter ||
                         kind == TensorKind::kOptimizerState;
    if (!arrives) return;
    if (kind == TensorKind::kInput) {
      if (!arrived_.insert(placement.tensor).second) return;
    } else if (placement.commands > 0) {
      return;
    }
    ArenaOf(placement.pool).contents[placement.tensor] = kInitial;
  }

  Arena& ArenaOf(PoolId pool) { return pool == PoolId::kDevice ? device_ : pools_[NumberOf(pool)]; }

  static std::optional<Block> Find(const Arena& arena, TensorId storage) {
    for (const auto* holdings : {&arena.blocks, &arena.occupants}) {
      for (const Holding& holding : *holdings) {
        if (holding.tensor == storage) return holding.block;
      }
    }
    return std::nullopt;
  }

  // --- Commands ---------------------------------------------------------------------------------

  void CheckKernel(size_t command) {
    const TimelineEntry& entry = report_.timeline[command];
    const Op& op = trace_.op(entry.op);
    for (size_t i = 0; i < op.inputs.size(); ++i) {
      const TensorId storage = trace_.Root(op.inputs[i]);
      CheckOperand(command, op.inputs[i], /*write=*/false);
      const auto held = device_.contents.find(storage);
      if (held == device_.contents.end()) {
        Fail("{} reads {}, which holds nothing", CommandName(command), TensorName(storage));
      } else if (held->second != expected_[Index(entry.op)][i]) {
        Fail("{} reads {} with other contents than the trace says", CommandName(command),
             TensorName(storage));
      }
    }
    for (const TensorId scratch : op.scratch) {
      CheckOperand(command, scratch, /*write=*/true);
      device_.contents[trace_.Root(scratch)] = static_cast<Contents>(Index(entry.op));
    }
    for (size_t i = 0; i < op.outputs.size(); ++i) {
      const TensorId output = op.outputs[i];
      CheckOperand(command, output, /*write=*/true);
      CheckRest(command, output, added_to_[Index(entry.op)][i]);
      device_.contents[trace_.Root(output)] = static_cast<Contents>(Index(entry.op));
    }
    if (entry.size > Bytes(0)) {
      const bool held =
          std::any_of(device_.blocks.begin(), device_.blocks.end(), [&](const Holding& holding) {
            return holding.tensor == kNoTensor && Covers(holding.block, entry.device);
          });
      if (!held) Fail("the workspace of {} is not allocated", CommandName(command));
      NoteDeviceAccess({command, entry.device, true});
    }
  }

  void CheckOperand(size_t command, TensorId tensor, bool write) {
    const TensorId storage = trace_.Root(tensor);
    const auto block = Find(device_, storage);
    if (!block) {
      Fail("{} uses {}, which is not on the device", CommandName(command), TensorName(storage));
      return;
    }
    const Bytes begin = block->offset + trace_.OffsetInStorage(tensor);
    NoteDeviceAccess({command, {begin, trace_.tensor(tensor).size}, write});
  }

  // Checks the rest of a storage of which the op writes only a part: it must hold the writes of
  // earlier ops.
  void CheckRest(size_t command, TensorId output, Contents expected) {
    const TensorId storage = trace_.Root(output);
    if (expected == kInitial || trace_.tensor(output).size >= trace_.tensor(storage).size) return;
    const auto held = device_.contents.find(storage);
    if (held == device_.contents.end() || held->second != expected) {
      Fail("{} writes a part of {}, which has lost what earlier ops have written",
           CommandName(command), TensorName(storage));
    }
  }

  void CheckCopy(size_t command) {
    const TimelineEntry& entry = report_.timeline[command];
    const bool to_host = entry.kind == CommandKind::kToHost;
    Arena& pool = ArenaOf(PoolOf(entry.event.stream));
    const auto on_device = Find(device_, entry.tensor);
    const auto outside = Find(pool, entry.tensor);
    if (!on_device || !Covers(*on_device, entry.device) || !outside ||
        !Covers(*outside, entry.outside)) {
      Fail("{} has no block on one side", CommandName(command));
      return;
    }
    const Arena& from = to_host ? device_ : pool;
    Arena& to = to_host ? pool : device_;
    const auto contents = from.contents.find(entry.tensor);
    if (contents == from.contents.end()) {
      Fail("{} copies what has not been written", CommandName(command));
    } else {
      to.contents[entry.tensor] = contents->second;
    }
    NoteDeviceAccess({command, entry.device, !to_host});
    NoteAccess(pool, {command, entry.outside, to_host});
  }

  Stream StreamOf(const Access& access) const {
    return report_.timeline[access.command].event.stream;
  }

  // Notes the access for the memory behind the addresses.
  void NoteDeviceAccess(const Access& access) {
    pages_.ForEach(access.block, [&](const Block& memory) {
      NoteAccess(device_, {access.command, memory, access.write});
    });
  }

  // Compares the access with every earlier access to the same bytes. An earlier access covered by a
  // later write is dropped, because any command ordered after the write is ordered after it too.
  // The same holds for a read that a later read on the same stream covers.
  void NoteAccess(Arena& arena, const Access& access) {
    if (access.block.size == Bytes(0)) return;
    for (const Access& earlier : arena.accesses) {
      if (earlier.command == access.command || !(earlier.write || access.write) ||
          !Overlap(earlier.block, access.block)) {
        continue;
      }
      const TimelineEntry& before = report_.timeline[earlier.command];
      const TimelineEntry& after = report_.timeline[access.command];
      if (clocks_[access.command][Index(before.event.stream)] < before.event.sequence) {
        Fail("{} does not wait for {}, which touches the same bytes", CommandName(access.command),
             CommandName(earlier.command));
      } else if (after.interval.start < before.interval.end) {
        Fail("{} starts before {} ends, which touches the same bytes", CommandName(access.command),
             CommandName(earlier.command));
      }
    }
    std::erase_if(arena.accesses, [&](const Access& earlier) {
      return earlier.command != access.command && Covers(access.block, earlier.block) &&
             (access.write || (!earlier.write && StreamOf(earlier) == StreamOf(access)));
    });
    arena.accesses.push_back(access);
  }

  const Trace& trace_;
  const Report& report_;
  const size_t limit_;
  std::vector<Clock> clocks_;                    // by command
  std::vector<std::vector<Contents>> expected_;  // by op and input
  std::vector<std::vector<Contents>> added_to_;  // by op and output: the contents before the op
  size_t next_placement_ = 0;
  PageTable pages_;
  std::set<TensorId> arrived_;  // inputs that have arrived
  Arena device_;
  std::array<Arena, kMaxPools> pools_;  // by number
  std::vector<std::string> violations_;
};

}  // namespace

std::vector<std::string> Check(const Trace& trace, const Report& report, size_t limit) {
  if (!report.fits()) return {};
  return Checker(trace, report, limit).Run();
}

}  // namespace spillway::sim
