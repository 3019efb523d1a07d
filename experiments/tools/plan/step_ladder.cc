#include "experiments/tools/plan/step_ladder.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <functional>
#include <optional>
#include <utility>

#include "policies/parts/in_parallel.h"
#include "traces/base/error.h"
#include "traces/base/file.h"
#include "traces/base/json.h"

namespace spillway::lab {
namespace {

using Value = JsonDocument::Value;

constexpr int64_t kMaxAmount = Bytes::Unlimited().count();
constexpr int64_t kMaxNanoseconds = (int64_t{1} << 62) / 1000;

class SizesReader {
 public:
  SizesReader(std::string_view text, const std::string& origin, const Trace& trace)
      : json_(text, origin), ops_(trace.ops.size()), tensors_(trace.tensors.size()) {
    again_ = static_cast<size_t>(std::ranges::count_if(
        trace.ops, [](const Op& op) { return op.recorded && op.recorded->again; }));
  }

  std::vector<StepSize> Read() {
    json_.ReadRootMap([this](std::string_view key, Value value) {
      if (key == "sizes") json_.ReadArray(value, [this](Value size) { ReadSize(size); });
    });
    return std::move(sizes_);
  }

 private:
  void ReadSize(Value value) {
    StepSize size;
    json_.ReadObject(
        value, Required("name", [&](Value v) { size.name = ReadName(v); }),
        Required("tensors",
                 [&](Value v) {
                   json_.ReadArray(v, [&](Value bytes) {
                     size.tensors.emplace_back(json_.ReadInteger(bytes, 0, kMaxAmount));
                   });
                   Expect(tensors_, size.tensors.size(), "tensors");
                 }),
        Required("ops", [&](Value v) { ReadCosts(v, ops_, "ops", size.ops); }),
        Required("again",
                 [&](Value v) { ReadCosts(v, again_, "ops with \"again\"", size.again); }));
    sizes_.push_back(std::move(size));
  }

  // The name stands in lists and in the names of files.
  std::string ReadName(Value value) {
    constexpr std::string_view kLetters =
        "0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ+-_";
    const std::string name(json_.ReadString(value));
    if (name.empty() || name == "all" || name.find_first_not_of(kLetters) != std::string::npos ||
        std::ranges::find(sizes_, name, &StepSize::name) != sizes_.end()) {
      json_.Fail("expected a name of its own of letters, digits, '+', '-' and '_', not \"all\"");
    }
    return name;
  }

  // Reads arrays of two integers: nanoseconds, bytes.
  void ReadCosts(Value value, size_t count, std::string_view what,
                 std::vector<StepSize::Cost>& costs) {
    json_.ReadArray(value, [&](Value pair) {
      size_t read = 0;
      StepSize::Cost& cost = costs.emplace_back();
      json_.ReadArray(pair, [&](Value number) {
        if (read == 0)
          cost.time = Duration::Nanoseconds(json_.ReadInteger(number, 0, kMaxNanoseconds));
        if (read == 1) cost.workspace = Bytes(json_.ReadInteger(number, 0, kMaxAmount));
        ++read;
      });
      if (read != 2) json_.Fail("expected two numbers: time_ns, workspace");
    });
    Expect(count, costs.size(), what);
  }

  void Expect(size_t wanted, size_t found, std::string_view what) {
    if (wanted == found) return;
    json_.Fail(fmt::format("the trace has {} {}, and the size {}", wanted, what, found));
  }

  JsonDocument json_;
  const size_t ops_, tensors_;
  size_t again_ = 0;
  std::vector<StepSize> sizes_;
};

std::shared_ptr<const Trace> AtSize(const Trace& trace, const StepSize& size) {
  auto made = std::make_shared<Trace>(trace);
  for (size_t i = 0; i < size.tensors.size(); ++i) made->tensors[i].size = size.tensors[i];
  auto again = size.again.begin();
  for (size_t i = 0; i < size.ops.size(); ++i) {
    RecordedCost& cost = *made->ops[i].recorded;
    cost.time = size.ops[i].time;
    cost.workspace = size.ops[i].workspace;
    if (!cost.again) continue;
    cost.again->time = again->time;
    cost.again->workspace = again->workspace;
    ++again;
  }
  made->Validate();
  return made;
}

// Returns the sizes with the names in the list, in its order.
std::vector<StepSize> Named(std::vector<StepSize> sizes, std::string_view list,
                            const std::string& workload) {
  if (sizes.empty()) {
    throw UsageError(fmt::format(
        "plan: --family {}: {} has no other sizes; write them with write_step(..., lengths=) or "
        "explain --export-step --lengths of the Python package spillway_torch",
        list, workload));
  }
  if (list == "all") return sizes;
  std::vector<StepSize> named;
  for (size_t begin = 0; begin <= list.size();) {
    const size_t end = std::min(list.find(',', begin), list.size());
    const std::string_view name = list.substr(begin, end - begin);
    begin = end + 1;
    const auto found = std::ranges::find(sizes, name, &StepSize::name);
    if (found == sizes.end()) {
      std::vector<std::string> valid{"all"};
      for (const StepSize& size : sizes) valid.push_back(size.name);
      throw UsageError(fmt::format("plan: --family {}: {} has no size '{}' (valid: {})", list,
                                   workload, name, fmt::join(valid, ", ")));
    }
    if (std::ranges::find(named, name, &StepSize::name) == named.end()) named.push_back(*found);
  }
  return named;
}

}  // namespace

std::vector<StepSize> ParseStepSizes(std::string_view text, const std::string& origin,
                                     const Trace& trace) {
  return SizesReader(text, origin, trace).Read();
}

bool Covers(const StepSize& larger, const StepSize& smaller) {
  const auto costs = [](const StepSize::Cost& a, const StepSize::Cost& b) {
    return a.time >= b.time && a.workspace >= b.workspace;
  };
  return std::ranges::equal(larger.tensors, smaller.tensors, std::greater_equal()) &&
         std::ranges::equal(larger.ops, smaller.ops, costs) &&
         std::ranges::equal(larger.again, smaller.again, costs);
}

StepLadder::StepLadder(const Case& asked, std::string_view names) : recorded_(asked) {
  std::vector<StepSize> sizes =
      Named(ParseStepSizes(ReadFile(asked.workload), asked.workload, recorded_.trace()), names,
            asked.workload);
  for (StepSize& size : sizes) {
    std::shared_ptr<const Trace> trace = AtSize(recorded_.trace(), size);
    rungs_.push_back({std::move(size), std::make_unique<StepPlanner>(asked, std::move(trace))});
  }
  std::ranges::stable_sort(rungs_, {}, [](const Rung& rung) { return rung.planner->eager_peak(); });
}

std::vector<PlannedStep> StepLadder::In(Bytes memory) const {
  std::vector<PlannedStep> planned(rungs_.size());
  InParallel(rungs_.size(), [&](size_t i) { planned[i] = rungs_[i].planner->In(memory); });
  for (size_t i = rungs_.size(); i-- > 0;) {
    PlannedStep& own = planned[i];
    for (size_t j = i + 1; j < rungs_.size(); ++j) {
      const PlannedStep& larger = planned[j];
      const auto is_slower = [&] {
        return !own.fits() || own.prediction.peak > memory ||
               own.prediction.step > larger.prediction.step;
      };
      if (!larger.fits() || !Covers(rungs_[j].size, rungs_[i].size) || !is_slower()) continue;
      own = rungs_[i].planner->Predicted(larger.plan, memory);
      if (!is_slower()) continue;
      const StepPrediction eager = own.prediction;
      own.prediction = larger.prediction;
      own.prediction.eager_peak = eager.eager_peak;
      own.prediction.eager_step = eager.eager_step;
    }
  }
  return planned;
}

}  // namespace spillway::lab
