#include "experiments/run/allocator_choice.h"

#include <utility>

#include "sim/packing/packing.h"
#include "traces/base/error.h"
#include "traces/base/params.h"

namespace spillway::lab {
namespace {

// For a thousand blocks that are hard to place on one core, quick takes less than half a second,
// normal five seconds, and thorough a minute and a half.
AllocatorChoice::Planned ReadPlanned(Params& params) {
  const PackingOptions options;
  return params.Enum<AllocatorChoice::Planned>(
      "effort", "normal",
      {{"quick", {200'000'000, options.tolerance}},
       {"normal", {4'000'000'000, options.tolerance}},
       {"thorough", {options.steps, 0}}},
      "the number of steps spent on a plan, equal on every machine; thorough goes on until the "
      "steps are spent or no plan is lower");
}

AllocatorChoice::Auto ReadAuto(Params& params) {
  return {params.Choice("by", "memory", {"memory", "time"}, "the quantity to minimize") == "time"};
}

constexpr const char* kPlannedName = "planned";
constexpr const char* kAutoName = "auto";

// Reads the parameters of a choice with `read`. Throws `UsageError` if the specification has other
// parameters.
template <typename Read>
auto ReadAll(const char* name, Specification specification, Read read) {
  Params params(std::string("allocator '") + name + "'", std::move(specification.values));
  const auto choice = read(params);
  params.Finish();
  return choice;
}

}  // namespace

AllocatorChoice::AllocatorChoice(std::string_view text) : name_(text), choice_(Auto()) {
  Specification specification = ParseSpecification("allocator", text);
  if (specification.name == kPlannedName) {
    choice_ = ReadAll(kPlannedName, std::move(specification), ReadPlanned);
    return;
  }
  if (specification.name == kAutoName) {
    choice_ = ReadAll(kAutoName, std::move(specification), ReadAuto);
    return;
  }
  if (!IsAllocator(specification.name)) {
    std::vector<std::string> names;
    for (const AllocatorInfo& info : AllocatorChoices()) names.push_back(info.name);
    throw UsageError(UnknownName("allocator", specification.name, names));
  }
  choice_ = Arena(text);
}

Arena AllocatorChoice::Undecided() const {
  if (const Arena* arena = std::get_if<Arena>(&choice_)) return *arena;
  return planned() != nullptr ? Arena::Unplanned(name_)
                              : Arena(name_, [](Bytes capacity, Bytes alignment) {
                                  return MakeAllocator("best-fit", capacity, alignment);
                                });
}

std::vector<AllocatorInfo> AllocatorChoices() {
  std::vector<AllocatorInfo> infos = Allocators();
  const auto add = [&](const char* name, const char* description, auto read) {
    Params params(name, {});
    read(params);
    infos.push_back({name, description, params.declared()});
  };
  add(kPlannedName,
      "computes all offsets in advance from a recorded run of the policy; takes seconds",
      ReadPlanned);
  add(kAutoName,
      "tries all of these, with all of the policy's orders, and takes the best by memory or time",
      ReadAuto);
  return infos;
}

}  // namespace spillway::lab
