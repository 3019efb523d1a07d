// The verb `spillway plan` plans a recorded step within a budget, for the program to carry out.

#include <fmt/format.h>

#include <algorithm>
#include <optional>
#include <string>
#include <vector>

#include "experiments/cli/frame/arguments.h"
#include "experiments/cli/frame/case_options.h"
#include "experiments/cli/frame/format_option.h"
#include "experiments/cli/frame/session.h"
#include "experiments/cli/frame/verbs.h"
#include "experiments/output/columns.h"
#include "experiments/output/wrap.h"
#include "experiments/run/isolation.h"
#include "experiments/tools/plan/step_curve.h"
#include "experiments/tools/plan/step_ladder.h"
#include "traces/base/error.h"
#include "traces/base/file.h"

namespace spillway::cli {
namespace {

struct PlanOptions {
  Case asked;
  bool curve = false;
  bool explain = false;
  std::string predict, family;
  FormatOption format;
  std::string output;
};

// A row of the results.
struct Row {
  PlannedStep planned;
  const StepPlanner* planner = nullptr;
  std::string size{};  // empty: the recorded one
  bool is_knee = false;

  const StepFloor& floor() const { return planner->floor(); }
};

// The sizes of the tensors of `trace` do not count, but its names do.
Columns<Row> RowColumns(const Trace& trace, const Case& asked) {
  const auto fits = [](auto get) {
    return [get](const Row& row) { return When(row.planned.fits(), get(row.planned)); };
  };
  const auto moved = [](StepFate fate) {
    return [fate](const Row& row) {
      Bytes bytes;
      for (const StepPlan::Storage& storage : row.planned.plan.storages) {
        if (storage.fate == fate) bytes += row.planner->trace().tensor(storage.storage).size;
      }
      return When(row.planned.fits(), bytes);
    };
  };
  const auto count = [fits](StepFate fate) {
    return fits([fate](const PlannedStep& planned) {
      return std::ranges::count(planned.plan.storages, fate, &StepPlan::Storage::fate);
    });
  };
  return {
      {"workload", "", "name of the step", [&](auto&) { return trace.name; }},
      {"policy", "", "as given", [&](auto&) { return asked.policy.name(); }},
      {"size", "", "of the inputs, if --family is given",
       [](auto& r) { return When(!r.size.empty(), r.size); }, "size"},
      {"memory_bytes", "B", "the budget", [](auto& r) { return r.planned.memory; }, "budget GiB"},
      {"status", "", "ok, or none if no plan was found",
       [](auto& r) { return r.planned.fits() ? "ok" : "none"; }, "status"},
      {"least_bytes", "B", "the least memory with which a plan was found, if none was found",
       [](auto& r) { return When(!r.planned.fits(), r.planned.best); }},
      {"peak_allocated_bytes", "B", "most bytes in blocks at once",
       fits([](auto& p) { return p.prediction.peak; }), "peak GiB"},
      {"iteration_ms", "ms", "the step under the plan",
       fits([](auto& p) { return p.prediction.step; }), "time ms"},
      {"slowdown", "1", "it over the step without a plan", fits([](auto& p) {
         return static_cast<double>(p.prediction.step.picoseconds()) /
                static_cast<double>(p.prediction.eager_step.picoseconds());
       }),
       "slowdown"},
      {"offloaded_bytes", "B", "storages that go to the host", moved(StepFate::kOffload),
       "offloaded GiB"},
      {"evicted_bytes", "B", "storages that are recomputed", moved(StepFate::kEvict),
       "evicted GiB"},
      {"state_bytes", "B", "optimizer state that is on the host but while an update uses it",
       [](const Row& row) {
         Bytes bytes;
         for (const TensorId id : row.planned.plan.state) {
           bytes += row.planner->trace().tensor(id).size;
         }
         return When(row.planned.fits(), bytes);
       }},
      {"offloaded_storages", "1", "their number", count(StepFate::kOffload)},
      {"evicted_storages", "1", "their number", count(StepFate::kEvict)},
      {"host_ms", "ms", "of the step, at least: the host starts operators and copies",
       fits([](auto& p) { return p.prediction.host; })},
      {"forward_host_ms", "ms", "the part of it until forward ends",
       fits([](auto& p) { return p.prediction.forward; })},
      {"update_ms", "ms", "of the step: behind the last operator that is no update",
       fits([](auto& p) { return p.prediction.update; })},
      {"knee", "", "the farthest below the line from the first plan to the last",
       [](auto& r) { return r.is_knee; }},
      {"eager_peak_bytes", "B", "without a plan",
       [](auto& r) { return r.planned.prediction.eager_peak; }},
      {"eager_ms", "ms", "the step without a plan",
       [](auto& r) { return r.planned.prediction.eager_step; }},
      {"floor_bytes", "B", "the least memory that any plan needs",
       [](auto& r) { return r.floor().size; }},
      {"floor_op", "", "the op that needs it",
       [&](auto& r) { return trace.op(r.floor().op).name; }},
      {"floor_throughout_bytes", "B", "of the floor: exists during the whole step",
       [](auto& r) { return r.floor().throughout; }},
      {"floor_state_bytes", "B",
       "optimizer state that is on the host there, and that would exist during the whole step",
       [](auto& r) { return r.floor().state; }},
      {"floor_gradients_bytes", "B", "of the floor: gradients that backward made before",
       [](auto& r) { return r.floor().gradients; }},
      {"floor_storages", "", "the largest other storages of that moment",
       [&](auto& r) {
         std::vector<std::string> names;
         for (const TensorId id : r.floor().held) {
           if (names.size() < 3) names.push_back(trace.tensor(id).name);
         }
         return fmt::format("{}", fmt::join(names, " "));
       }},
      {"floor_without_bytes", "B", "the floor if no op of that kind needed more than others do",
       [](auto& r) {
         const auto& without = r.floor().without;
         return When(without.has_value(), without ? without->first : Bytes());
       }},
      {"floor_without_op", "", "the op that would then need the most",
       [&](auto& r) {
         const auto& without = r.floor().without;
         return When(without.has_value(), without ? trace.op(without->second).name : std::string());
       }},
  };
}

// Returns the index of the row that lies farthest below the line from the first plan to the last.
std::optional<size_t> KneeOf(const std::vector<Row>& rows) {
  std::vector<size_t> fitting;
  for (size_t i = 0; i < rows.size(); ++i) {
    if (rows[i].planned.fits()) fitting.push_back(i);
  }
  if (fitting.size() < 3) return std::nullopt;
  const auto memory = [&](size_t i) { return static_cast<double>(rows[i].planned.memory.count()); };
  const auto time = [&](size_t i) {
    return static_cast<double>(rows[i].planned.prediction.step.picoseconds());
  };
  const size_t first = fitting.front(), last = fitting.back();
  std::optional<size_t> knee;
  double most = 0;
  for (const size_t i : fitting) {
    const double share = (memory(i) - memory(first)) / (memory(last) - memory(first));
    const double below = time(first) + share * (time(last) - time(first)) - time(i);
    if (below > most) {
      most = below;
      knee = i;
    }
  }
  return knee;
}

// Returns a sentence on the floor, and on the least memory in which one of the plans was found if
// that is more; an empty text if a plan was found for each row.
std::string LeastOf(const StepPlanner& planner, const std::vector<Row>& rows) {
  const Bytes floor = planner.floor().size;
  Bytes least = Bytes::Unlimited();
  bool all = true;
  for (const Row& row : rows) {
    const PlannedStep& planned = row.planned;
    all = all && planned.fits();
    const Bytes found = planned.fits() ? planned.prediction.peak : planned.best;
    if (found > Bytes()) least = std::min(least, found);
  }
  if (all) return {};
  std::string text =
      fmt::format("\nNo plan takes less than the floor, {}", FormatBytes(floor, least));
  if (least > floor && least != Bytes::Unlimited()) {
    text +=
        fmt::format("; the least memory in which one was found is {}", FormatBytes(least, floor));
  }
  return text + ".\n";
}

std::string Explanation(const StepPlanner& planner, const PlannedStep& planned) {
  const Trace& trace = planner.trace();
  const StepFloor& floor = planner.floor();
  std::string text = fmt::format(
      "\nNo plan takes less than the floor, {}, which {} needs: {} exist during the whole step, {} "
      "are gradients that backward made before.\n",
      FormatBytes(floor.size), trace.op(floor.op).name, FormatBytes(floor.throughout),
      FormatBytes(floor.gradients));
  if (floor.state > Bytes(0)) {
    Bytes outside;
    for (const TensorId id : planned.plan.state) outside += trace.tensor(id).size;
    text += fmt::format(
        "{} of {} of the optimizer's state are on the host but while an update uses them.\n",
        FormatBytes(outside), FormatBytes(floor.state));
  }
  std::vector<const StepPlan::Storage*> storages;
  for (const StepPlan::Storage& storage : planned.plan.storages) storages.push_back(&storage);
  std::ranges::stable_sort(storages, std::greater(),
                           [&](auto* storage) { return trace.tensor(storage->storage).size; });
  for (const StepPlan::Storage* storage : storages) {
    const Tensor& tensor = trace.tensor(storage->storage);
    const bool offloads = storage->fate == StepFate::kOffload;
    text += fmt::format("  {:>10}  {} is {}\n", FormatBytes(tensor.size), tensor.name,
                        offloads ? "offloaded" : "recomputed");
  }
  return text;
}

// Returns "plan-512.json" for "plan.json" and the size "512".
std::string PathFor(const std::string& path, const std::string& size) {
  if (size.empty()) return path;
  const size_t name = path.find_last_of('/') + 1;
  const size_t dot = std::max(path.find_last_of('.'), name);
  const size_t end = dot == std::string::npos || dot == name ? path.size() : dot;
  return fmt::format("{}-{}{}", path.substr(0, end), size, path.substr(end));
}

void CheckOptions(const PlanOptions& options) {
  if (options.curve && (options.asked.memory || !options.predict.empty())) {
    throw UsageError(
        "plan: --curve plans for budgets of its own: leave --memory and --predict out");
  }
  if (!options.family.empty() && (options.curve || options.explain)) {
    throw UsageError("plan: --curve and --explain are about one size: leave --family out");
  }
  if (!options.curve && !options.asked.memory) {
    throw UsageError("plan: a budget is needed: --memory, or --curve for several");
  }
}

// Returns the rows of a plan for each budget, or for each size.
std::vector<Row> RowsOf(const PlanOptions& options, const StepPlanner& recorded,
                        const StepLadder* ladder) {
  std::vector<Row> rows;
  if (options.curve) {
    for (PlannedStep& planned : recorded.Curve()) rows.push_back({std::move(planned), &recorded});
    if (const auto knee = KneeOf(rows)) rows[*knee].is_knee = true;
    return rows;
  }
  const Bytes memory =
      ParseSize("memory", options.asked.memory->text(), "; plan needs a fixed size of memory");
  std::optional<StepPlan> given;
  if (!options.predict.empty()) {
    given = ParseStepPlan(ReadFile(options.predict), options.predict, recorded.trace(),
                          recorded.places());
  }
  if (ladder == nullptr) {
    rows.push_back({given ? recorded.Predicted(*given, memory) : recorded.In(memory), &recorded});
    return rows;
  }
  std::vector<PlannedStep> planned;
  if (!given) planned = ladder->In(memory);
  for (const StepLadder::Rung& rung : ladder->rungs()) {
    rows.push_back({given ? rung.planner->Predicted(*given, memory) : planned[rows.size()],
                    rung.planner.get(), rung.size.name});
  }
  return rows;
}

int Execute(const PlanOptions& options, Session& session) {
  CheckOptions(options);
  CheckPolicy(options.asked);
  std::optional<StepLadder> ladder;
  std::optional<StepPlanner> single;
  if (options.family.empty()) {
    single.emplace(options.asked);
  } else {
    ladder.emplace(options.asked, options.family);
  }
  const StepPlanner& recorded = single ? *single : ladder->recorded();
  const Columns<Row> columns = RowColumns(recorded.trace(), options.asked);
  CheckView(options.format.view(), columns);
  const std::vector<Row> rows = RowsOf(options, recorded, ladder ? &*ladder : nullptr);
  const auto table = [&] {
    std::vector<std::string_view> shown;
    for (const Column<Row>& column : columns) {
      if (column.header.empty() || (single && column.name == "size")) continue;
      shown.push_back(column.name);
    }
    std::string text = FormatTable(columns, shown, Items<Row>(rows), options.format.width());
    if (single) text += LeastOf(recorded, rows);
    if (options.explain) text += Explanation(recorded, rows.front().planned);
    return text;
  };
  const bool any = std::ranges::any_of(rows, [](const Row& row) { return row.planned.fits(); });
  std::vector<Export> exports;
  for (const Row& row : rows) {
    if (options.output.empty() || !row.planned.fits()) continue;
    const std::string memory = options.curve ? std::to_string(row.planned.memory.count()) : "";
    exports.push_back({"--output", PathFor(options.output, memory + row.size),
                       [&row](const Manifest&) { return row.planner->Format(row.planned); }});
  }
  return session.Finish(
      FormatAs(options.format.view(), columns, rows, "spillway.step-plans/v1", table), "", exports,
      any ? kOk : kNegative,
      [&](Manifest& manifest) { DescribeCases({recorded.loaded()}, manifest); });
}

}  // namespace

void AddPlan(Command& program, Session& session) {
  Command& verb = program.Add(
      "plan",
      "Plan a step that was recorded with the Python package spillway_torch, within a budget, for "
      "the package to carry out; exit code 1 if no plan is found");
  verb.examples = {"plan step.json --memory 8GiB -o plan.json", "plan step.json --curve"};
  auto& options = verb.Runs(Execute, session);
  options.asked.policy = "joint";
  AddCaseOptions(verb, {"workload", "device", "memory", "policy"}, options.asked);
  verb.Declared("--policy").initial = "joint";
  verb.Declared("--policy")
      .Help(
          "The policy that decides; joint without parameters stands for a search in the moves that "
          "the program has");
  verb.Declared("--memory").Help("The budget: a size (12GiB)");
  verb.Flag("--curve", options.curve,
            "Plan for budgets between the least memory of any plan and that of the step as it is; "
            "-o plan.json writes plan-BYTES.json for each budget that has a plan");
  verb.Flag("--explain", options.explain,
            "Say what needs the memory, and list all storages that move");
  verb.Text("--family", options.family,
            "Plan for each of these sizes of the step's inputs that the file knows, as it names "
            "them (256,512), or for all; a plan is good for all smaller sizes, and -o plan.json "
            "writes plan-SIZE.json for each");
  verb.Text("--predict", options.predict, "Predict the plan in this file, and search for none");
  options.format.Add(verb);
  verb.Text("-o,--output", options.output, "Write the plan to this file");
}

}  // namespace spillway::cli
