// Fuzz target: an allocation log of any format, above all PyTorch's pickles.
//
// An accepted log can be walked again with the same events, which keep the rules of the model. It
// can be replayed on allocators that agree on nothing except the requested bytes.

#include <algorithm>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "experiments/tools/replay/replay.h"
#include "sim/alloc/make_allocator.h"
#include "tests/fuzz/property.h"
#include "traces/logs/open_log.h"

namespace spillway::fuzz {
namespace {

std::vector<MemoryEvent> EventsOf(const MemoryLog& log) {
  std::vector<MemoryEvent> events;
  log.Walk([&](const MemoryEvent& event) {
    events.push_back(event);
    return true;
  });
  return events;
}

void CheckRules(const MemoryLog& log, const std::vector<MemoryEvent>& events) {
  std::set<uint32_t> live;
  for (const StartBlock& block : log.start().blocks)
    SPILLWAY_CHECK(live.insert(block.block).second);
  size_t most = live.size();
  uint64_t last = 0;
  for (const MemoryEvent& event : events) {
    SPILLWAY_CHECK(event.size >= Bytes(0) && event.index >= last);
    last = event.index;
    if (event.kind == MemoryEvent::Kind::kAllocate) {
      SPILLWAY_CHECK(live.insert(event.block).second);
      most = std::max(most, live.size());
      SPILLWAY_CHECK(event.block < most);
    } else if (event.kind == MemoryEvent::Kind::kFree) {
      SPILLWAY_CHECK(live.erase(event.block) == 1);
    }
  }
}

void ReplayEverywhere(const MemoryLog& log, Bytes memory) {
  std::vector<std::unique_ptr<ReplayableAllocator>> allocators;
  std::vector<ReplayedAllocator> subjects;
  for (const char* name : {"best-fit", "first-fit", "pytorch", "native"}) {
    allocators.push_back(MakeAllocator(name, memory, Bytes(512)));
    subjects.push_back({name, allocators.back().get(), std::string_view(name) == "pytorch"});
  }
  ReplayOptions options;
  options.samples = 8;
  const Replayed replayed = ReplayLog(log, subjects, options);
  for (const ReplayResult& result : replayed.results) {
    SPILLWAY_CHECK(result.peak_requested <= replayed.summary.peak_requested);
    SPILLWAY_CHECK(result.peak_requested <= result.peak_allocated);
    SPILLWAY_CHECK(result.peak_allocated <= result.peak_reserved);
    SPILLWAY_CHECK(!result.fits() || result.peak_reserved >= replayed.summary.lower_bound);
  }
}

}  // namespace
}  // namespace spillway::fuzz

int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace spillway::fuzz;
  const std::string contents(Text(data, size));
  std::unique_ptr<MemoryLog> log;
  if (!Accepts("log", "", [&] { log = ParseMemoryLog(contents, "log"); })) {
    SPILLWAY_CHECK(log == nullptr);
    return 0;
  }
  std::vector<MemoryEvent> events;
  if (!Accepts("log", "", [&] { events = EventsOf(*log); })) return 0;
  SPILLWAY_CHECK(EventsOf(*log) == events);
  CheckRules(*log, events);
  if (!Runs([&] { ReplayEverywhere(*log, Bytes::Unlimited()); })) return 0;
  ReplayEverywhere(*log, Bytes::GiB(1));
  return 0;
}
