#include "experiments/run/prepared.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstddef>
#include <utility>

#include "sim/alloc/make_allocator.h"
#include "traces/base/error.h"
#include "traces/base/params.h"

namespace spillway::lab {

PolicyChoice::PolicyChoice(std::string_view specification)
    : name_(specification),
      spec_(ParsePolicySpec(specification)),
      make_([name = name_] { return PolicyLibrary().Make(name); }) {}

PolicyChoice PolicyChoice::OneOf(std::vector<PolicyChoice> candidates) {
  SPILLWAY_CHECK(!candidates.empty());
  PolicyChoice choice = candidates.front();
  choice.candidates_ = std::make_shared<const std::vector<PolicyChoice>>(std::move(candidates));
  return choice;
}

std::vector<PolicyChoice> PolicyChoice::Candidates() const {
  if (candidates_) return *candidates_;
  if (spec_.policy.empty()) return {*this};
  std::vector<PolicyChoice> candidates;
  for (const std::string& name : PolicyLibrary().Candidates(name_)) candidates.emplace_back(name);
  return candidates;
}

Arena::Arena(std::string_view allocator)
    : name_(allocator),
      make_([specification = ParseSpecification("allocator", allocator)](Bytes capacity,
                                                                         Bytes alignment) {
        return MakeAllocator(specification, capacity, alignment);
      }) {}

Arena Arena::Unplanned(std::string name) {
  return {std::move(name), [](Bytes capacity, Bytes alignment) {
            return std::make_unique<sim::Planned>(capacity, alignment);
          }};
}

Arena Arena::Planned(std::string name, std::shared_ptr<const AllocationPlan> plan) {
  Arena arena(std::move(name), [plan](Bytes, Bytes alignment) {
    return std::make_unique<sim::Planned>(plan, alignment);
  });
  arena.plan_ = std::move(plan);
  arena.for_trials_ = std::make_shared<const Arena>(Unplanned(arena.name_));
  return arena;
}

Arena Arena::RecordedBy(Maker make) const {
  Arena arena(name_, std::move(make));
  arena.for_trials_ = std::make_shared<const Arena>(*this);
  return arena;
}

Draft Draft::Prediction() const {
  Draft prediction = *this;
  prediction.backend = kSimulator;
  prediction.options.iterations = 0;
  return prediction;
}

Duration Execution::typical_iteration() const {
  SPILLWAY_CHECK(!iteration_times.empty());
  if (iteration_times.size() < kWarmUp + 2) return iteration_times.back();
  std::vector<Duration> timed(iteration_times.begin() + kWarmUp, iteration_times.end() - 1);
  const auto middle = timed.begin() + static_cast<std::ptrdiff_t>(timed.size() / 2);
  std::nth_element(timed.begin(), middle, timed.end());
  return *middle;
}

}  // namespace spillway::lab
