#include "experiments/run/simulate.h"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <charconv>
#include <string>
#include <utility>
#include <vector>

#include "experiments/run/pool_search.h"
#include "policies/registry.h"
#include "traces/base/error.h"

namespace spillway {
namespace {

// Does nothing: the runtime's own liveness and the fastest kernels.
class IdealPolicy final : public Policy {};

}  // namespace

Report SimulateIdeal(const Setup& setup) {
  Setup unlimited = setup;
  unlimited.memory = Bytes::Unlimited();
  unlimited.plan = nullptr;
  unlimited.compression = nullptr;
  IdealPolicy policy;
  return Simulate(unlimited, policy).report;
}

std::optional<Bytes> NeededMemory(const Setup& setup,
                                  const std::function<std::unique_ptr<Policy>()>& make_policy) {
  Setup trial = setup;
  trial.memory = Bytes::Unlimited();
  const Report unlimited = Simulate(trial, *make_policy()).report;
  if (!unlimited.fits()) return std::nullopt;
  return SearchPool(unlimited.metrics.peak_allocated, [&](Bytes memory) -> std::optional<Bytes> {
    trial.memory = memory;
    const Report report = Simulate(trial, *make_policy()).report;
    if (report.fits()) return Bytes(0);
    const OutOfMemory& failure = *report.out_of_memory;
    if (failure.pool != PoolId::kDevice) return std::nullopt;
    const Bytes lacking =
        RoundUp(failure.wanted, setup.device.alignment) - failure.stats.largest_free;
    return std::max(lacking, setup.device.alignment);
  });
}

Bytes ParseMemory(std::string_view text, const Setup& setup, const Report* ideal) {
  if (text == "unlimited") return Bytes::Unlimited();
  PolicyRegistry registry;
  RegisterBuiltinPolicies(registry);
  for (const PolicyRegistry::Entry& entry : registry.entries()) {
    if (text.substr(0, text.find(':')) != entry.name) continue;
    const auto needed = NeededMemory(setup, [&] { return registry.Make(text); });
    return std::min(needed.value_or(setup.device.memory), setup.device.memory);
  }
  const bool is_percentage = text.ends_with('%');
  if (!is_percentage && !text.empty() && std::isalpha(static_cast<unsigned char>(text[0])) != 0) {
    std::vector<std::string> names{"unlimited"};
    for (const PolicyRegistry::Entry& entry : registry.entries()) names.push_back(entry.name);
    throw UsageError(fmt::format("{}; also accepted: a size such as 12GiB, and N%",
                                 UnknownName("memory", text, names)));
  }
  if (!is_percentage) {
    try {
      return ParseBytes(text);
    } catch (const InputError& error) {
      throw UsageError(
          fmt::format("memory: {}; also accepted: N%, unlimited and the name of a built-in policy",
                      error.what()));
    }
  }
  double percent = 0;
  const char* last = text.data() + text.size() - 1;
  const auto [end, error] = std::from_chars(text.data(), last, percent);
  if (error != std::errc() || end != last || !(percent >= 0) || percent > 1e6) {
    throw UsageError(fmt::format("memory: '{}' is not a percentage from 0% up", text));
  }
  const Bytes peak = (ideal != nullptr ? *ideal : SimulateIdeal(setup)).metrics.peak_reserved;
  return MemoryAt(percent, LayerBound(*setup.trace, setup.device.alignment), peak,
                  setup.device.alignment);
}

}  // namespace spillway
