#include "experiments/run/isolation.h"

#include <fmt/format.h>

#include <atomic>
#include <utility>

#include "experiments/run/archive.h"
#include "experiments/run/case_keys.h"
#include "traces/base/error.h"
#include "traces/format.h"

namespace spillway::lab {
namespace {

std::atomic<bool> isolating = false;

}  // namespace

// The bindings below name every member, so that a new member does not compile until it is named.

void Fields(Archive& archive, OutOfMemory::Holder& holder) {
  auto& [name, size] = holder;
  archive(name, size);
}

void Fields(Archive& archive, OutOfMemory& failure) {
  auto& [op, op_name, pool, what, wanted, capacity, stats, holders] = failure;
  archive(op, op_name, pool, what, wanted, capacity, stats, holders);
}

void Fields(Archive& archive, Report& report) {
  auto& [pools, decisions, placements, timeline, waits, mappings, out_of_memory, metrics, bounds,
         iterations, steady, shortest, longest, pinning, plan] = report;
  archive(pools, decisions, placements, timeline, waits, mappings, out_of_memory, metrics, bounds,
          iterations, steady, shortest, longest, pinning, plan);
}

void Fields(Archive& archive, CompressionSummary& summary) {
  auto& [storages, staging, pinned_peak, pageable_peak, plain_peak, baseline, hides, times,
         offloaded, stored] = summary;
  archive(storages, staging, pinned_peak, pageable_peak, plain_peak, baseline, hides, times,
          offloaded, stored);
}

void Fields(Archive& archive, Execution& execution) {
  auto& [loss, top1, weights_digest, iteration_times, weights] = execution;
  archive(loss, top1, weights_digest, iteration_times, weights);
}

void IsolatePlugins() { isolating = true; }

bool IsIsolated(const Case& asked) {
  return isolating && !asked.in_process && !asked.policy.spec().plugin.empty();
}

CommandResults RunIsolated(const Case& asked, const std::vector<std::string>& arguments) {
  return RunInWorker(arguments, asked.timeout, fmt::format("policy '{}'", asked.policy.name()));
}

Outcome RunIsolated(const Case& asked, const Inputs& inputs) {
  std::vector<std::string> arguments = ArgumentsOf(asked);
  arguments.insert(arguments.begin(), {kCaseVerb, "--quiet"});
  return LoadOutcome(RunIsolated(asked, arguments).text, inputs.trace());
}

std::string SaveOutcome(const Outcome& outcome, const std::shared_ptr<const Trace>& given) {
  const auto& [report, trace, compression, execution, allocator, policy] = outcome;
  return Archive::Save(report, trace == given || !trace ? std::string() : FormatTrace(*trace),
                       compression, execution, allocator, policy.name());
}

Outcome LoadOutcome(std::string bytes, const std::shared_ptr<const Trace>& given) {
  Outcome outcome;
  std::string rewritten, policy;
  Archive::Load(std::move(bytes), outcome.report, rewritten, outcome.compression, outcome.execution,
                outcome.allocator, policy);
  outcome.trace =
      rewritten.empty() ? given : std::make_shared<const Trace>(ParseTrace(rewritten, given->name));
  outcome.policy = policy;
  return outcome;
}

void CheckPolicy(const Case& asked) {
  try {
    if (IsIsolated(asked)) {
      RunIsolated(asked, {kCaseVerb, "--quiet", "--policy", asked.policy.name()});
    } else {
      asked.policy.Make();
    }
  } catch (const PolicyError&) {  // the row of the policy says why
  }
}

}  // namespace spillway::lab
