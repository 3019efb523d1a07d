// The verb `spillway replay` replays an allocation log on several allocators.

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <memory>

#include "experiments/cli/frame/arguments.h"
#include "experiments/cli/frame/case_options.h"
#include "experiments/cli/frame/exports.h"
#include "experiments/cli/frame/format_option.h"
#include "experiments/cli/frame/session.h"
#include "experiments/cli/frame/verbs.h"
#include "experiments/run/allocator_choice.h"
#include "experiments/run/device_specification.h"
#include "experiments/tools/replay/replay.h"
#include "experiments/tools/replay/replay_report.h"
#include "sim/alloc/make_allocator.h"
#include "traces/base/error.h"
#include "traces/base/params.h"
#include "traces/logs/open_log.h"

namespace spillway::cli {
namespace {

// The maximum number of samples per allocator in exports.
constexpr size_t kSamples = 16384;
constexpr const char* kPlanned = "planned";
constexpr const char* kExpandable = "pytorch:expandable_segments=true";
constexpr const char* kFullyPlanned = "planned:effort=thorough";  // takes minutes
constexpr uint64_t kMostPlanned = 2'000'000;  // a log with more events is not planned by default

struct ReplayOptions {
  std::string log;
  std::vector<std::string> allocators{"pytorch", kExpandable, "best-fit", kPlanned};
  std::string memory = "recorded";
  std::string unit = "512B";
  std::optional<int> device;
  FormatOption format;
  std::string output;
  ExportsOption exports;
  bool out_of_memory_report = false;
  bool frames = false;
};

int64_t Nanoseconds() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(
             std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

bool CollectsGarbage(const MemoryLog& log) {
  return log.start().pytorch && log.start().pytorch->garbage_collection_threshold > 0;
}

// Throws `UsageError` if the text names no allocator, or an allocator on which no log can be
// replayed.
void Verify(const std::string& specification, Bytes unit) {
  const AllocatorChoice choice(specification);
  if (choice.automatic() != nullptr) {
    throw UsageError("allocator 'auto' is valid for runs only; for a log, name those to compare");
  }
  choice.Undecided().Make(Bytes::MiB(2), unit);  // throws if a parameter is invalid
}

std::unique_ptr<ReplayableAllocator> Make(const std::string& specification, const MemoryLog& log,
                                          Bytes memory, Bytes unit) {
  const AllocatorChoice choice(specification);
  if (const auto* planned = choice.planned()) {
    PackingOptions options;
    options.granularity = unit;
    options.steps = planned->steps;
    options.tolerance = planned->tolerance;
    return PlannedFor(log, memory, options);
  }
  return MakeAllocator(specification == "pytorch" ? PyTorchAsRecorded(log) : specification, memory,
                       unit);
}

// The memory of the allocators.
struct Capacity {
  Bytes memory;
  bool given;  // by the user; otherwise it is what the log records, or unlimited
};

// Returns true iff the specification sets the allocator up like the recorded one. It then has the
// recorded memory, or unlimited memory, so that segments go back to the driver as recorded. If the
// recorded allocator collected garbage, it may also have a given limit, because the threshold is a
// part of that limit.
bool IsRecorded(const std::string& specification, const MemoryLog& log, const Capacity& capacity) {
  return specification == "pytorch" &&
         (CollectsGarbage(log) || !capacity.given || capacity.memory == Bytes::Unlimited());
}

Replayed Replay(const MemoryLog& log, const std::vector<std::string>& specifications,
                const Capacity& capacity, const lab::ReplayOptions& options) {
  std::vector<std::unique_ptr<ReplayableAllocator>> allocators;
  std::vector<ReplayedAllocator> subjects;
  for (const std::string& specification : specifications) {
    allocators.push_back(Make(specification, log, capacity.memory, options.unit));
    const bool predicts = capacity.given || CollectsGarbage(log);
    subjects.push_back({specification, allocators.back().get(),
                        IsRecorded(specification, log, capacity),
                        predicts && capacity.memory != Bytes::Unlimited(), capacity.memory});
  }
  return ReplayLog(log, subjects, options);
}

std::vector<std::string> EveryAllocator() {
  std::vector<std::string> names;
  for (const AllocatorInfo& info : Allocators()) names.push_back(info.name);
  names.push_back(kPlanned);
  return names;
}

// Returns a remedy for each allocator that failed, found by trial replays.
std::vector<Remedy> FindRemedies(const MemoryLog& log, const Replayed& replayed, Bytes memory) {
  lab::ReplayOptions options;
  options.unit = replayed.summary.unit;
  std::vector<std::string> others;
  for (const ReplayResult& result :
       Replay(log, EveryAllocator(), {memory, true}, options).results) {
    if (result.fits()) others.push_back(result.allocator);
  }
  std::vector<Remedy> remedies;
  for (const ReplayResult& failed : replayed.results) {
    if (failed.fits()) continue;
    Remedy remedy{failed.allocator, others, std::nullopt};
    const auto serves = [&](Bytes size) {
      return Replay(log, {failed.allocator}, {size, true}, options).results.front();
    };
    // The allocator may need more than it reserves in unlimited memory, because a limit changes its
    // choices. Up to 150 % are tried.
    const ReplayResult unlimited = serves(Bytes::Unlimited());
    for (int64_t percent = 100; unlimited.fits() && percent <= 150 && !remedy.memory;
         percent += 10) {
      const Bytes size =
          RoundUp(Bytes(unlimited.peak_reserved.count() / 100 * percent), Bytes::MiB(2));
      if (serves(size).fits()) remedy.memory = size;
    }
    remedies.push_back(std::move(remedy));
  }
  return remedies;
}

// Warns if the recorded settings cannot be followed: a garbage collection threshold needs a limit.
// `memory` is the one that takes its place.
void RemarkSettings(const MemoryLog& log, Bytes memory, Session& session) {
  if (!CollectsGarbage(log)) return;
  session.Remark(fmt::format(
      "the recorded garbage_collection_threshold, {}, is a fraction of a memory limit that the "
      "snapshot does not record: give the limit as --memory, else {}",
      log.start().pytorch->garbage_collection_threshold,
      memory == Bytes::Unlimited() ? "no garbage is collected"
                                   : fmt::format("{} takes its place", FormatBytes(memory))));
}

// Removes "planned" from the specifications if the log has too many events for a quick plan.
void SkipPlan(const MemoryLog& log, std::vector<std::string>& specifications, Session& session) {
  if (std::ranges::find(specifications, kPlanned) == specifications.end()) return;
  uint64_t events = 0;
  log.Walk([&](const MemoryEvent&) { return ++events <= kMostPlanned; });
  if (events <= kMostPlanned) return;
  std::erase(specifications, kPlanned);
  session.Remark(
      fmt::format("planned is skipped because the log has more than {} events: --allocator "
                  "{} plans it, which may take minutes",
                  kMostPlanned, kFullyPlanned));
}

// Returns the memory that the user gave, or nullopt for the recorded one.
std::optional<Bytes> ParseMemory(const std::string& text) {
  if (text == "recorded") return std::nullopt;
  if (text == "unlimited") return Bytes::Unlimited();
  return std::min(Bytes::Unlimited(),
                  ParseSize("memory", text, "; also accepted: recorded, unlimited"));
}

std::vector<Card> Cards() {
  std::vector<Card> cards;
  for (const std::string& name : DeviceNames()) cards.push_back({name, LoadDevice(name).memory});
  return cards;
}

// Analyses the request of the log that failed when it was recorded.
std::optional<FailureAnalysis> Analyse(const MemoryLog& log,
                                       const std::optional<RecordedFailure>& recorded,
                                       std::optional<Bytes> memory,
                                       const std::vector<std::string>& specifications, Bytes unit) {
  if (!recorded) return std::nullopt;
  std::vector<std::string> names = EveryAllocator();
  for (const AllocatorSetting& setting : kAllocatorSettings) names.emplace_back(setting.allocator);
  for (const std::string& name : specifications) {
    if (std::ranges::find(names, name) == names.end()) names.push_back(name);
  }
  // Plans are not tried, because `FailureAnalysis::bound` is a lower bound for every plan.
  std::erase_if(names, [](const std::string& name) { return name.starts_with(kPlanned); });
  return AnalyseFailure(
      log, *recorded, memory, names,
      [&](const std::string& name, const MemoryLog& part, Bytes size) {
        return Make(name, part, size, unit);
      },
      Cards(), unit);
}

Bytes ParseUnit(const std::string& text) {
  const Bytes unit = ParseSize("unit", text);
  if (unit > Bytes(0) && unit <= Bytes::GiB(1)) return unit;
  throw UsageError(fmt::format("unit: {} is not a size from 1B to 1GiB", text));
}

int Execute(const ReplayOptions& options, Session& session) {
  const View view = options.format.view();
  CheckView(view, ReplayColumns(Replayed()));
  std::vector<std::string> specifications = options.allocators;
  const std::optional<Bytes> given = ParseMemory(options.memory);
  const Bytes unit = ParseUnit(options.unit);
  for (const std::string& specification : specifications) Verify(specification, unit);
  const auto log = OpenMemoryLog(options.log, options.device);
  if (const std::string remark = log->Remark(); !remark.empty()) session.Remark(remark);
  SkipPlan(*log, specifications, session);

  lab::ReplayOptions replay;
  // An output file must depend on its inputs only, so that it holds no measured time.
  if (options.output.empty()) replay.clock = Nanoseconds;
  if (!options.exports.paths.empty()) replay.samples = kSamples;
  replay.unit = unit;
  const auto recorded =
      WithContext([&] { return ReadRecordedFailure(*log); }, [&] { return options.log; });
  const Bytes memory = given.value_or(recorded ? recorded->capacity() : Bytes::Unlimited());
  if (!given || memory == Bytes::Unlimited()) RemarkSettings(*log, memory, session);
  const Capacity capacity{memory, given.has_value()};
  const Replayed replayed = WithContext(
      [&] { return Replay(*log, specifications, capacity, replay); }, [&] { return options.log; });

  std::optional<std::vector<Remedy>> remedies;
  if (options.out_of_memory_report) remedies = FindRemedies(*log, replayed, memory);
  const std::optional<FailureAnalysis> analysis =
      Analyse(*log, recorded, given, specifications, unit);
  const FailureAnalysis* const failure = analysis ? &*analysis : nullptr;
  std::string text;
  constexpr std::string_view kUsual[] = {
      "allocator",           "status",           "peak_requested_bytes", "peak_allocated_bytes",
      "peak_reserved_bytes", "over_lower_bound", "fragmentation",        "serves_in_bytes"};
  if (view.format == Format::kJson) {
    text = FormatReplayJson(*log, replayed, remedies, failure);
  } else {
    text = FormatAs(
        view, ReplayColumns(replayed, failure), replayed.results, "spillway.replay/v1",
        [&] {
          std::string table = failure != nullptr ? FormatFailure(*failure) + "\n" : "";
          table += FormatReplayTable(*log, replayed, failure);
          if (failure != nullptr) table += FormatHolders(*failure, specifications, options.frames);
          if (remedies) table += FormatOutOfMemory(*log, replayed, *remedies, memory);
          return table;
        },
        kUsual);
  }

  const bool fits = std::all_of(replayed.results.begin(), replayed.results.end(),
                                [](const ReplayResult& result) { return result.fits(); });
  const std::vector<Export> files{
      options.exports.File("trace",
                           [&](const Manifest& manifest) {
                             return FormatReplayTrace(
                                 replayed, {manifest.version, options.log, RunSha256(manifest)});
                           }),
      options.exports.File("memory", [&](const Manifest&) { return FormatReplayCsv(replayed); })};
  return session.Finish(
      text, options.output, files, fits ? kOk : kNegative, [&](Manifest& manifest) {
        manifest.configuration = {
            {"log", options.log},
            {"allocator", fmt::format("{}", fmt::join(specifications, " "))},
            {"memory",
             memory == Bytes::Unlimited() ? "unlimited" : fmt::format("{} B", memory.count())},
            {"unit", fmt::format("{} B", unit.count())}};
        ManifestInput input{"log", "file", options.log, {}};
        input.sha256 = HashInput(input);
        manifest.inputs.push_back(std::move(input));
      });
}

}  // namespace

void AddReplay(Command& program, Session& session) {
  Command& verb = program.Add(
      "replay",
      "Replay an allocation log on other allocators; exit code 1 if one of them does not serve it");
  verb.examples = {"replay snapshot.pickle.gz",
                   "replay snapshot.pickle.gz --allocator best-fit,planned"};
  auto& options = verb.Runs(Execute, session);
  verb.Text("log", options.log,
            "A PyTorch memory snapshot (.pickle, .pickle.gz; one with a request that failed is "
            "reported: who held the memory, what would have served it), an RMM log, CSV with "
            "id,lower,upper,size, or a file of spillway run --export decisions:FILE")
      .Required();
  verb.Texts("--allocator", options.allocators,
             "NAME or NAME:key=value,..., one or more; planned knows the log in "
             "advance (planned:effort=thorough for lower plans, in minutes); or help");
  verb.Text("--memory", options.memory,
            "Memory of each allocator: a size (12GiB), unlimited, or recorded: as much as the "
            "process certainly had if a request failed when the log was recorded, else unlimited");
  verb.Text("--unit", options.unit,
            "The size of a block is rounded up to a multiple of this; pytorch rounds as it does "
            "in PyTorch, to 512B at least");
  verb.Number("--trace-device", options.device, {0, 1 << 16},
              "Which device of a snapshot, if several have events");
  options.format.Add(verb);
  verb.Flag("--out-of-memory-report", options.out_of_memory_report,
            "Report for a failing request which blocks hold the memory, how much is free but "
            "scattered, and which alternatives would have served it");
  verb.Flag("--frames", options.frames,
            "Show for each holder of a recorded failure the calls that lead to it");
  AddOutput(verb, options.output, options.format, "; operations per second are left out of it");
  options.exports.Add(verb, {{"trace", "the memory over the log as Chrome/Perfetto counters"},
                             {"memory", "the memory over the log as CSV"}});
}

}  // namespace spillway::cli
