#include "experiments/tools/limit/limit.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <map>
#include <memory>
#include <set>
#include <utility>

#include "experiments/output/run_result.h"
#include "experiments/run/prepare.h"
#include "traces/base/error.h"

namespace spillway::lab {
namespace {

// Returns true iff the text is a name that stands for a number: n, or n followed by a digit from 1
// to 9.
bool IsVariable(std::string_view text) {
  return text == "n" || (text.size() == 2 && text[0] == 'n' && text[1] >= '1' && text[1] <= '9');
}

LoadedCase Load(const LimitSearch& search, const PolicyChoice& policy, int64_t value) {
  Case asked = search.asked;
  asked.workload = search.family.At(value).Name();
  asked.policy = policy;
  return {asked, std::make_shared<const Inputs>(asked)};
}

// Returns the report of a simulation. If `check` is set, verifies the run.
Report Try(const LoadedCase& at, bool check) {
  Case asked = at.asked;
  asked.check = check;
  try {
    return RunCase(asked, *at.inputs).report;
  } catch (const PolicyError& error) {
    throw PolicyError(fmt::format("{}: {}", asked.workload, error.what()));
  }
}

LimitResult Search(const LimitSearch& search, const PolicyChoice& policy,
                   const std::function<void(int64_t)>& progress) {
  LimitResult result;
  std::map<int64_t, OutOfMemory> requests;  // that failed
  int64_t largest = 0;
  result.limit = FindLimit(search.family.most(), search.scan, [&](int64_t value) {
    progress(value);
    LoadedCase at = Load(search, policy, value);
    const Report report = Try(at, false);
    if (!report.fits()) {
      requests[value] = *report.out_of_memory;
    } else if (value > largest) {
      largest = value;
      result.metrics = report.metrics;
    }
    if (value == std::max<int64_t>(largest, 1)) result.at = std::move(at);
    return report.fits();
  });
  if (search.asked.check) {
    for (const int64_t value : {largest, largest + 1}) {
      if (value >= 1 && value <= search.family.most()) Try(Load(search, policy, value), true);
    }
  }
  const auto next = requests.find(result.limit.largest + 1);
  if (next != requests.end()) {
    result.next_reason = next->second.Message();
    result.next_brief = Brief(next->second);
  }
  return result;
}

}  // namespace

std::string_view Name(LimitQuantity quantity) {
  constexpr std::string_view kNames[] = {"batch", "depth", "length"};
  return kNames[static_cast<size_t>(quantity)];
}

WorkloadFamily WorkloadFamily::OfBatches(std::string_view network) {
  if (network.ends_with(".json") || network.ends_with(".zst")) {
    throw UsageError(fmt::format(
        "'{}' is a trace of one batch, but limit searches for the largest batch: spillway fit "
        "tells how much memory the trace needs, spillway compare --memory how it runs in less",
        network));
  }
  if (const size_t colon = network.rfind(':'); colon != std::string_view::npos) {
    throw UsageError(fmt::format(
        "'{}' has a batch, but limit searches for the largest batch: expected a network "
        "alone, '{}'; --vary depth and --vary length search for the deepest network and the "
        "longest sequence",
        network, network.substr(0, colon)));
  }
  WorkloadFamily family(LimitQuantity::kBatch, network, network, 0, kLargestBatch);
  ParseWorkload(family.At(1).Name());
  return family;
}

WorkloadFamily WorkloadFamily::OfDepths(std::string_view workload) {
  const size_t colon = workload.rfind(':');
  const size_t open = workload.find('(');
  std::vector<std::pair<size_t, size_t>> variables;  // begin, end
  for (size_t begin = open; begin != std::string_view::npos && ++begin < workload.size();) {
    const size_t end = workload.find_first_of(",)", begin);
    if (end == std::string_view::npos) break;
    if (IsVariable(workload.substr(begin, end - begin))) variables.emplace_back(begin, end);
    begin = workload[end] == ',' ? end : std::string_view::npos;
  }
  if (variables.size() != 1 || colon == std::string_view::npos || colon < variables[0].second) {
    throw UsageError(
        fmt::format("'{}' has no depth to vary: expected a network with a name in the place of one "
                    "number, and its batch, for example resnet(6,32,n3,6):16",
                    workload));
  }
  const auto [begin, end] = variables[0];
  // A number in place of the name lets `ParseWorkload` check the network and its batch.
  const Workload least =
      ParseWorkload(fmt::format("{}1{}", workload.substr(0, begin), workload.substr(end)));
  WorkloadFamily family(LimitQuantity::kDepth, workload, workload.substr(0, begin), least.batch,
                        kMostBlocks);
  family.after_ = workload.substr(end, colon - end);
  return family;
}

WorkloadFamily WorkloadFamily::OfLengths(std::string_view workload) {
  const Workload given = ParseWorkload(workload);
  LengthOf(given.network);
  return {LimitQuantity::kLength, workload, given.network, given.batch, kLongestSequence};
}

Workload WorkloadFamily::At(int64_t value) const {
  SPILLWAY_CHECK(value >= 1 && value <= most_);
  if (quantity_ == LimitQuantity::kBatch) return {before_, value};
  if (quantity_ == LimitQuantity::kLength) return {WithLength(before_, value), batch_};
  return {fmt::format("{}{}{}", before_, value, after_), batch_};
}

std::optional<int64_t> ResNetDepth(std::string_view network) {
  constexpr std::string_view kPrefix = "resnet(";
  if (!network.starts_with(kPrefix)) return std::nullopt;
  int64_t sum = 0;
  for (const char* at = network.data() + kPrefix.size(); at < network.data() + network.size();) {
    int64_t blocks = 0;
    const auto [end, error] = std::from_chars(at, network.data() + network.size(), blocks);
    if (error != std::errc()) return std::nullopt;
    sum += blocks;
    if (*end != ',') break;
    at = end + 1;
  }
  return 3 * sum + 2;
}

Limit FindLimit(int64_t most, int64_t scan, const std::function<bool(int64_t)>& fits) {
  SPILLWAY_CHECK(most >= 1 && scan >= 1);
  Limit limit;
  std::set<int64_t> misfits;
  const auto fits_at = [&](int64_t value) {
    if (misfits.contains(value)) return false;
    ++limit.trials;
    const bool fit = fits(value);
    if (!fit) misfits.insert(value);
    return fit;
  };
  bool found = true;
  while (found) {
    int64_t misfit = most + 1;
    for (int64_t step = 1; limit.largest < most; step *= 2) {
      const int64_t value = std::min(limit.largest + step, most);
      if (!fits_at(value)) {
        misfit = value;
        break;
      }
      limit.largest = value;
    }
    while (misfit - limit.largest > 1) {
      const int64_t middle = limit.largest + (misfit - limit.largest) / 2;
      (fits_at(middle) ? limit.largest : misfit) = middle;
    }
    found = false;
    limit.scanned_to = std::min(limit.largest + scan, most);
    for (int64_t value = misfit + 1; value <= limit.scanned_to && !found; ++value) {
      found = fits_at(value);
      if (found) limit.largest = value;
    }
  }
  limit.misfits.assign(misfits.begin(), misfits.end());
  return limit;
}

LimitResult FindLimit(const LimitSearch& search, const PolicyChoice& policy,
                      const std::function<void(int64_t)>& progress) {
  LimitResult result;
  try {
    result = Search(search, policy, progress);
  } catch (const PolicyError& error) {
    result.failed = true;
    result.at = Load(search, policy, 1);
    result.next_reason = result.next_brief = error.what();
  }
  result.search = &search;
  result.policy = policy.name();
  return result;
}

Columns<LimitResult> LimitColumns(LimitQuantity quantity) {
  const auto bounded = [](const LimitResult& result) {
    return result.limit.largest == result.search->family.most();
  };
  const auto if_any = [](auto get) {
    return [get](const LimitResult& result) { return When(result.limit.largest > 0, get(result)); };
  };
  const auto metric = [=](auto member) {
    return if_any(
        [member](const LimitResult& result) { return result.metrics.value_or(Metrics()).*member; });
  };
  const auto workload = [](const LimitResult& result) {
    return result.search->family.At(std::max<int64_t>(result.limit.largest, 1));
  };
  return {
      {"network", "", "as given", [](auto& r) { return r.search->family.text(); }},
      {"vary", "", "batch, depth or length",
       [](auto& r) { return Name(r.search->family.quantity()); }},
      {"preset", "", "how memory is counted",
       [](auto& r) { return r.search->asked.preset.value_or("torch"); }},
      {"mode", "", "training or inference",
       [](auto& r) { return r.search->asked.training.value_or(true) ? "training" : "inference"; }},
      {"device", "", "name of the GPU", [](auto& r) { return r.search->device.name; }},
      {"memory_bytes", "B", "device memory", [](auto& r) { return r.search->memory(); }},
      {"allocator", "", "as given", [](auto& r) { return r.search->asked.allocator.name(); }},
      {"policy", "", "as given", &LimitResult::policy, "policy"},
      {"status", "",
       "ok, none (nothing fits), bounded (all that was allowed fits) or failed (the policy broke "
       "down)",
       [=](auto& r) {
         return r.failed ? "failed" : bounded(r) ? "bounded" : r.limit.largest > 0 ? "ok" : "none";
       },
       "status"},
      {"limit", "1", "the largest that was seen to fit",
       if_any([](auto& r) { return r.limit.largest; }),
       quantity == LimitQuantity::kDepth ? "limit" : Name(quantity)},
      {"workload", "", "it as a workload", if_any([=](auto& r) { return workload(r).Name(); })},
      {"depth", "1", "of a residual network, in layers",
       [=](auto& r) {
         return r.limit.largest > 0 ? ResNetDepth(workload(r).network) : std::nullopt;
       },
       "depth"},
      {"next", "1", "the next one, which does not fit",
       [=](auto& r) { return When(!bounded(r) && !r.failed, r.limit.largest + 1); }, "next"},
      {"next_reason", "", "why it does not, or how the policy failed on which workload",
       [=](auto& r) { return When(!bounded(r), r.next_reason); }},
      {"scanned_to", "1", "nothing above the limit fits up to here",
       [](auto& r) { return r.limit.scanned_to; }, "none to"},
      {"monotone", "", "nothing smaller was seen not to fit",
       [](auto& r) { return r.limit.monotone(); }, "monotone"},
      {"least_misfit", "1", "the smallest that was seen not to fit",
       [](auto& r) {
         const auto& misfits = r.limit.misfits;
         return misfits.empty() ? std::nullopt : std::optional(misfits.front());
       }},
      {"trials", "1", "runs", [](auto& r) { return r.limit.trials; }, "trials"},
      {"checked", "", "with the independent checker",
       [](auto& r) { return r.search->asked.check; }},
      {"iteration_ms", "ms", "at the limit, as are the next ones", metric(&Metrics::iteration),
       "time ms"},
      {"peak_requested_bytes", "B", "most bytes asked for at once",
       metric(&Metrics::peak_requested)},
      {"peak_allocated_bytes", "B", "most bytes in blocks at once",
       metric(&Metrics::peak_allocated), "peak GiB"},
      {"offloaded_bytes", "B", "copied to the host", metric(&Metrics::offloaded)},
      {"recomputed_ops", "1", "ops that ran again", metric(&Metrics::recomputed_ops)},
      {"samples_per_second", "1/s", "batch over iteration_ms",
       [=](auto& r) {
         return r.metrics ? SamplesPerSecond(workload(r).batch, r.metrics->iteration)
                          : std::nullopt;
       },
       "samples/s"},
  };
}

}  // namespace spillway::lab
