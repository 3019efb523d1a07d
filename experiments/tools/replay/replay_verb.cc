// spillway replay: an allocation log on one allocator after the other.

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <memory>

#include "experiments/cli/frame/options.h"
#include "experiments/cli/frame/session.h"
#include "experiments/cli/frame/verbs.h"
#include "experiments/tools/replay/replay.h"
#include "experiments/tools/replay/replay_report.h"
#include "sim/alloc/make_allocator.h"
#include "traces/base/error.h"
#include "traces/base/params.h"
#include "traces/logs/open_log.h"

namespace spillway::cli {
namespace {

constexpr Bytes kGranularity(512);
// Of one allocator, in exports.
constexpr size_t kSamples = 16384;
constexpr const char* kPlanned = "planned";
constexpr const char* kExpandable = "pytorch:expandable_segments=true";
// What is tried where a recorded request failed, besides every allocator.
constexpr const char* kSettings[] = {kExpandable, "pytorch:max_split_size=128MiB",
                                     "pytorch:max_split_size=512MiB"};

constexpr const char* kFullyPlanned = "planned:effort=thorough";  // minutes
constexpr uint64_t kMostPlanned = 2'000'000;  // events, above which a plan is not quick

struct ReplayOptions {
  std::string log;
  std::vector<std::string> allocators{"pytorch", kExpandable, "best-fit", kPlanned};
  std::string memory = "unlimited";
  std::optional<int> device;
  FormatOption format;
  std::string output;
  std::string export_trace;
  std::string export_memory;
  bool out_of_memory_report = false;
};

int64_t Nanoseconds() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(
             std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

bool CollectsGarbage(const MemoryLog& log) {
  return log.start().pytorch && log.start().pytorch->garbage_collection_threshold > 0;
}

// Throws `UsageError` for what is no allocator, or none for a log.
void Verify(const std::string& specification) {
  MakeAllocator(specification, Bytes::MiB(2), kGranularity);
  const std::string name = specification.substr(0, specification.find(':'));
  if (name == "auto") {
    throw UsageError("allocator 'auto' chooses for a run; for a log, name those to compare");
  }
}

std::unique_ptr<ReplayableAllocator> Make(const std::string& specification, const MemoryLog& log,
                                          Bytes memory) {
  const auto allocator = ParseSpecification("allocator", specification);
  if (allocator.name == kPlanned) return PlannedFor(log, memory, PlannedSteps(allocator));
  return MakeAllocator(specification == "pytorch" ? PyTorchAsRecorded(log) : specification, memory,
                       kGranularity);
}

// Whether it is set up as the recorded one was: with all the memory it wanted, where what went back
// follows the recording, or with what it was allowed, of which a collection of garbage keeps a part
// free.
bool IsRecorded(const std::string& specification, const MemoryLog& log, Bytes memory) {
  return specification == "pytorch" && log.start().pytorch &&
         (CollectsGarbage(log) || memory == Bytes::Unlimited());
}

Replayed Replay(const MemoryLog& log, const std::vector<std::string>& specifications, Bytes memory,
                const spillway::ReplayOptions& options) {
  std::vector<std::unique_ptr<ReplayableAllocator>> allocators;
  std::vector<ReplayedAllocator> subjects;
  for (const std::string& specification : specifications) {
    allocators.push_back(Make(specification, log, memory));
    subjects.push_back({specification, allocators.back().get(),
                        IsRecorded(specification, log, memory), memory != Bytes::Unlimited()});
  }
  return ReplayLog(log, subjects, options);
}

std::vector<std::string> EveryAllocator() {
  std::vector<std::string> names;
  for (const AllocatorInfo& info : Allocators()) {
    if (info.name != kPlanned && info.name != "auto") names.push_back(info.name);
  }
  names.push_back(kPlanned);
  return names;
}

// Tries what would have served the requests that failed.
std::vector<Remedy> FindRemedies(const MemoryLog& log, const Replayed& replayed, Bytes memory) {
  std::vector<std::string> others;
  for (const ReplayResult& result : Replay(log, EveryAllocator(), memory, {}).results) {
    if (result.fits()) others.push_back(result.allocator);
  }
  std::vector<Remedy> remedies;
  for (const ReplayResult& failed : replayed.results) {
    if (failed.fits()) continue;
    Remedy remedy{failed.allocator, others, std::nullopt};
    const auto serves = [&](Bytes size) {
      return Replay(log, {failed.allocator}, size, {}).results.front();
    };
    // What it reserves when nothing limits it, or a little more where a limit changes its choices.
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

// What was recorded and cannot be followed.
void RemarkSettings(const MemoryLog& log, Bytes memory, Session& session) {
  if (!CollectsGarbage(log) || memory != Bytes::Unlimited()) return;
  session.Remark(fmt::format(
      "the recorded garbage_collection_threshold, {}, is a part of the memory that was allowed, "
      "which the snapshot does not say: give it as --memory, else nothing is collected",
      log.start().pytorch->garbage_collection_threshold));
}

// A plan of very many blocks is not quick.
void SkipPlan(const MemoryLog& log, std::vector<std::string>& specifications, Session& session) {
  if (std::ranges::find(specifications, kPlanned) == specifications.end()) return;
  uint64_t events = 0;
  log.Walk([&](const MemoryEvent&) { return ++events <= kMostPlanned; });
  if (events <= kMostPlanned) return;
  std::erase(specifications, kPlanned);
  session.Remark(
      fmt::format("planned is skipped, for the log has more than {} events: --allocator "
                  "{} plans it, which may take minutes",
                  kMostPlanned, kFullyPlanned));
}

int Execute(const ReplayOptions& options, Session& session) {
  std::vector<std::string> specifications = SplitSpecifications(options.allocators);
  const Bytes memory = options.memory == "unlimited"
                           ? Bytes::Unlimited()
                           : std::min(Bytes::Unlimited(), ParseSize("memory", options.memory,
                                                                    "; also accepted: unlimited"));
  for (const std::string& specification : specifications) Verify(specification);
  const auto log = OpenMemoryLog(options.log, options.device);
  RemarkSettings(*log, memory, session);
  SkipPlan(*log, specifications, session);

  const bool exports = !options.export_trace.empty() || !options.export_memory.empty();
  spillway::ReplayOptions replay;
  // A file is a function of its inputs: it holds no measured time.
  if (options.output.empty()) replay.clock = Nanoseconds;
  if (exports) replay.samples = kSamples;
  const Replayed replayed = WithContext(
      [&] { return Replay(*log, specifications, memory, replay); }, [&] { return options.log; });

  std::optional<std::vector<Remedy>> remedies;
  if (options.out_of_memory_report) remedies = FindRemedies(*log, replayed, memory);
  // The bound says what a plan could do.
  std::vector<std::string> settings = EveryAllocator();
  std::erase(settings, kPlanned);
  for (const char* more : kSettings) settings.push_back(more);
  const auto recorded = FindRecordedFailure(*log, settings, Make);
  std::string text;
  switch (options.format.format()) {
    case Format::kCsv:
      text = FormatCsv(ReplayColumns(replayed), replayed.results);
      break;
    case Format::kJson:
      text = FormatReplayJson(*log, replayed, remedies, recorded);
      break;
    case Format::kTable:
      text = FormatReplayTable(*log, replayed);
      if (recorded) text += FormatRecordedFailure(*recorded);
      if (remedies) text += FormatOutOfMemory(*log, replayed, *remedies, memory);
  }

  const bool fits = std::all_of(replayed.results.begin(), replayed.results.end(),
                                [](const ReplayResult& result) { return result.fits(); });
  const std::vector<Export> files{
      {"--export-trace", options.export_trace,
       [&](const Manifest& manifest) {
         return FormatReplayTrace(replayed, {manifest.version, options.log, RunSha256(manifest)});
       }},
      {"--export-memory", options.export_memory,
       [&](const Manifest&) { return FormatReplayCsv(replayed); }}};
  return session.Finish(
      text, options.output, files, fits ? kOk : kNegative, [&](Manifest& manifest) {
        manifest.configuration = {
            {"log", options.log},
            {"allocator", fmt::format("{}", fmt::join(specifications, " "))},
            {"memory",
             memory == Bytes::Unlimited() ? "unlimited" : fmt::format("{} B", memory.count())}};
        ManifestInput input{"log", "file", options.log, {}};
        input.sha256 = HashInput(input, manifest.configuration);
        manifest.inputs.push_back(std::move(input));
      });
}

}  // namespace

void AddReplay(Command& program, Session& session) {
  Command& verb = program.Add(
      "replay",
      "Replay an allocation log on other allocators; exit code 1 if one of them does not serve it");
  auto& options = verb.Runs(Execute, session);
  verb.Text("log", options.log,
            "A PyTorch memory snapshot (.pickle, .pickle.gz; one with a request that failed is "
            "reported: who held the memory, what would have served it), an RMM log, CSV with "
            "id,lower,upper,size, or a file of spillway run --export-decisions")
      .Required();
  verb.Texts("--allocator", options.allocators,
             "NAME or NAME:key=value,..., several separated by commas; planned knows the log in "
             "advance (planned:effort=thorough for lower plans, in minutes); or help");
  verb.Text("--memory", options.memory, "Memory of each allocator: a size (12GiB), or unlimited");
  verb.Number("--trace-device", options.device, {0, 1 << 16},
              "Which device of a snapshot, if several have events");
  options.format.Add(verb);
  verb.Flag("--out-of-memory-report", options.out_of_memory_report,
            "Say at the failing request who holds the memory, how much is free but scattered, "
            "and what would have served it");
  AddOutput(verb, options.output, options.format, "; operations per second are left out of it");
  verb.File("--export-trace", options.export_trace,
            "Write the memory over the log as Chrome/Perfetto counters");
  verb.File("--export-memory", options.export_memory, "Write the memory over the log as CSV");
}

}  // namespace spillway::cli
