#include "experiments/run/memory_budget.h"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <charconv>
#include <memory>
#include <utility>
#include <vector>

#include "experiments/run/pool_search.h"
#include "experiments/run/run.h"
#include "policies/registry.h"
#include "traces/base/error.h"

namespace spillway::lab {
namespace {

using Budget = std::variant<Bytes, MemoryBudget::Percentage, PolicyChoice>;

Budget ParseSize(std::string_view text) {
  try {
    return ParseBytes(text);
  } catch (const InputError& error) {
    throw UsageError(
        fmt::format("memory: {}; also accepted: N%, unlimited and the name of a built-in policy",
                    error.what()));
  }
}

Budget ParsePercentage(std::string_view text) {
  double percent = 0;
  const char* last = text.data() + text.size() - 1;
  const auto [end, error] = std::from_chars(text.data(), last, percent);
  if (error != std::errc() || end != last || !(percent >= 0) || percent > 1e6) {
    throw UsageError(fmt::format("memory: '{}' is not a percentage from 0% up", text));
  }
  return MemoryBudget::Percentage{percent};
}

Budget ParseName(std::string_view text) {
  PolicyRegistry registry;
  RegisterBuiltinPolicies(registry);
  std::vector<std::string> names{"unlimited"};
  for (const PolicyRegistry::Entry& entry : registry.entries()) {
    if (text.substr(0, text.find(':')) == entry.name) return PolicyChoice(text);
    names.push_back(entry.name);
  }
  throw UsageError(fmt::format("{}; also accepted: a size such as 12GiB, and N%",
                               UnknownName("memory", text, names)));
}

Budget ParseBudget(std::string_view text) {
  if (text == "unlimited") return Bytes::Unlimited();
  if (text.ends_with('%')) return ParsePercentage(text);
  const bool is_name = !text.empty() && std::isalpha(static_cast<unsigned char>(text[0])) != 0;
  return is_name ? ParseName(text) : ParseSize(text);
}

}  // namespace

MemoryBudget::MemoryBudget(std::string_view text) : text_(text), budget_(ParseBudget(text)) {}

Bytes MemoryBudget::In(const Draft& run, const Report* ideal) const {
  if (const Bytes* size = bytes()) return *size;
  if (const auto* policy = std::get_if<PolicyChoice>(&budget_)) {
    Draft trial = run;
    trial.policy = *policy;
    return std::min(NeededMemory(trial).value_or(run.device.memory), run.device.memory);
  }
  const Bytes peak = (ideal != nullptr ? *ideal : Predict(Ideal(run)).report).metrics.peak_reserved;
  return MemoryAt(std::get<Percentage>(budget_).percent,
                  LayerBound(*run.trace, run.device.alignment), peak, run.device.alignment);
}

Draft Ideal(const Draft& run) {
  Draft ideal = run;
  ideal.memory = Bytes::Unlimited();
  ideal.arena = run.arena.ForTrials();
  ideal.compression = nullptr;
  ideal.policy_plan.clear();
  // This policy makes no decisions: the runtime frees dead tensors and runs the fastest kernels.
  ideal.policy = {"ideal", [] { return std::make_unique<Policy>(); }};
  return ideal;
}

std::optional<Bytes> NeededMemory(const Draft& run) {
  Draft trial = run;
  trial.memory = Bytes::Unlimited();
  const Report unlimited = Predict(trial).report;
  if (!unlimited.fits()) return std::nullopt;
  return SearchPool(unlimited.metrics.peak_allocated, [&](Bytes memory) -> std::optional<Bytes> {
    trial.memory = memory;
    const Report report = Predict(trial).report;
    if (report.fits()) return Bytes(0);
    const OutOfMemory& failure = *report.out_of_memory;
    if (failure.pool != PoolId::kDevice) return std::nullopt;
    const Bytes lacking =
        RoundUp(failure.wanted, run.device.alignment) - failure.stats.largest_free;
    return std::max(lacking, run.device.alignment);
  });
}

}  // namespace spillway::lab
