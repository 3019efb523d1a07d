#include "policies/parts/rematerialization.h"

#include <algorithm>
#include <limits>
#include <memory>
#include <utility>

#if defined(SPILLWAY_HAVE_CBC) && defined(SPILLWAY_HAVE_CLP)
#define SPILLWAY_HAVE_SOLVERS
#include <coin/Clp_C_Interface.h>
#endif

#include "policies/kernels/integer_program.h"

namespace spillway::policies {
namespace {

// In percent of the budget. If no rounding fits, the relaxation gets `kStep` less, as long as it
// has `kLeastPercent`.
[[maybe_unused]] constexpr int64_t kStep = 5;
[[maybe_unused]] constexpr int64_t kLeastPercent = 50;

// Returns the first unit that cannot run again.
size_t FirstFixed(const RematerializationProblem& problem) {
  const auto first = std::ranges::find(problem, false, &RematerializedUnit::again);
  return static_cast<size_t>(first - problem.begin());
}

// Returns, by unit, the last unit before `end` that reads its value, or the unit itself if none
// does.
std::vector<size_t> LastReaders(const RematerializationProblem& problem, size_t end) {
  std::vector<size_t> last(problem.size());
  for (size_t i = 0; i < problem.size(); ++i) {
    last[i] = i;
    if (i >= end) continue;
    for (const size_t read : problem[i].reads) last[read] = i;
  }
  return last;
}

#ifdef SPILLWAY_HAVE_SOLVERS

// Returns true if some unit cannot run for the first time within the budget: its own bytes and the
// values that it reads are more than that.
bool ExceedsAlways(const RematerializationProblem& problem, Bytes budget) {
  return std::ranges::any_of(problem, [&](const RematerializedUnit& unit) {
    Bytes used = unit.fixed + (unit.again ? unit.value : Bytes(0));
    for (const size_t read : unit.reads) {
      if (problem[read].again) used += problem[read].value;
    }
    return used > budget;
  });
}

using Terms = std::vector<std::pair<int, double>>;  // {variable, factor}

constexpr double kInfinity = std::numeric_limits<double>::infinity();

// An integer program, built row by row.
class RowByRow {
 public:
  int Variable(double most, bool integer, double cost = 0) {
    program_.most.push_back(most);
    program_.integer.push_back(integer);
    program_.costs.push_back(cost);
    columns_.emplace_back();
    return static_cast<int>(columns_.size()) - 1;
  }
  // Adds a row: the sum over the terms is at least `least` and at most `most`.
  void Row(const Terms& terms, double least, double most) {
    for (const auto& [variable, factor] : terms) {
      columns_[static_cast<size_t>(variable)].emplace_back(
          static_cast<int>(program_.row_least.size()), factor);
    }
    program_.row_least.push_back(least);
    program_.row_most.push_back(most);
  }

  // Returns the values of the variables at the least cost that a search of `nodes` nodes finds;
  // with 0 nodes, the values of the relaxation. Returns an empty vector if none are found.
  std::vector<double> Solve(int64_t nodes) const {
    IntegerProgram program = program_;
    for (const auto& column : columns_) {
      program.starts.push_back(static_cast<int>(program.rows.size()));
      for (const auto& [row, factor] : column) {
        program.rows.push_back(row);
        program.factors.push_back(factor);
      }
    }
    program.starts.push_back(static_cast<int>(program.rows.size()));
    return nodes == 0 ? Relaxed(program) : SolveByCbc(program, nodes);
  }

 private:
  static std::vector<double> Relaxed(const IntegerProgram& program) {
    const std::unique_ptr<Clp_Simplex, decltype(&Clp_deleteModel)> model(Clp_newModel(),
                                                                         &Clp_deleteModel);
    Clp_setLogLevel(model.get(), 0);
    const std::vector<double> zeros(program.costs.size(), 0.0);
    Clp_loadProblem(model.get(), static_cast<int>(program.costs.size()),
                    static_cast<int>(program.row_least.size()), program.starts.data(),
                    program.rows.data(), program.factors.data(), zeros.data(), program.most.data(),
                    program.costs.data(), program.row_least.data(), program.row_most.data());
    Clp_initialSolve(model.get());
    if (Clp_status(model.get()) != 0) return {};
    const double* const values = Clp_primalColumnSolution(model.get());
    return {values, values + program.costs.size()};
  }

  IntegerProgram program_;      // without its entries
  std::vector<Terms> columns_;  // by variable: {row, factor}
};

// The integer program of section 4. The paper's R, S and FREE are `again`, `kept` and `free`; U is
// `used`, in shares of the budget. Only `kept` is declared to be an integer: then the least values
// of `again` and the largest values of `free` are integers, too.
class Formulation {
 public:
  Formulation(const RematerializationProblem& problem, Bytes budget)
      : problem_(problem),
        budget_(static_cast<double>(std::max<int64_t>(1, budget.count()))),
        first_(FirstFixed(problem)),
        kept_(problem.size() + 1, std::vector<int>(problem.size(), kNothing)) {
    for (const RematerializedUnit& unit : problem) time_ += unit.time;
    const std::vector<size_t> last = LastReaders(problem, problem.size());
    for (size_t stage = first_; stage < problem.size(); ++stage) {
      for (size_t i = 0; i < stage; ++i) {
        if (problem[i].again && last[i] >= stage) kept_[stage][i] = program_.Variable(1, true);
      }
    }
    AddStagesBefore();
    for (size_t stage = first_; stage < problem.size(); ++stage) AddStage(stage);
  }

  // Returns how much of each value is kept, or empty if nothing satisfies the program.
  std::vector<std::vector<double>> Solve(int64_t nodes) const {
    const std::vector<double> values = program_.Solve(nodes);
    if (values.empty()) return {};
    std::vector<std::vector<double>> kept(kept_.size(), std::vector<double>(problem_.size()));
    for (size_t stage = 0; stage < kept_.size(); ++stage) {
      for (size_t i = 0; i < problem_.size(); ++i) {
        const int variable = kept_[stage][i];
        if (variable != kNothing) kept[stage][i] = values[static_cast<size_t>(variable)];
      }
    }
    return kept;
  }

 private:
  static constexpr int kNothing = -1;

  double Share(Bytes size) const { return static_cast<double>(size.count()) / budget_; }

  void AddStagesBefore() {
    const std::vector<size_t> last = LastReaders(problem_, first_);
    for (size_t stage = 0; stage < first_; ++stage) {
      double used = Share(problem_[stage].fixed) + Share(problem_[stage].value);
      Terms terms;
      for (size_t i = 0; i < stage; ++i) {
        const int kept = first_ < problem_.size() ? kept_[first_][i] : kNothing;
        if (last[i] >= stage) {
          used += Share(problem_[i].value);
        } else if (kept != kNothing) {
          terms.emplace_back(kept, Share(problem_[i].value));
        }
      }
      program_.Row(terms, -kInfinity, 1 - used);
    }
  }

  // The computations of earlier units in a stage.
  struct Stage {
    std::vector<int> again;                    // by unit: the variable, or kNothing
    std::vector<std::vector<size_t>> readers;  // by unit: the units that read it, if made again
    std::vector<bool> needed;                  // by unit: the unit of the stage reads it
  };

  void AddStage(size_t stage) { AddMemory(stage, AddComputations(stage)); }

  // Adds the rows by which a value that is read or kept for the next stage has been kept or made
  // again.
  Stage AddComputations(size_t stage) {
    const std::vector<int>& kept = kept_[stage];
    const std::vector<int>& next = kept_[stage + 1];
    Stage made{std::vector<int>(stage, kNothing), std::vector<std::vector<size_t>>(stage),
               std::vector<bool>(stage)};
    std::vector<int>& again = made.again;
    for (size_t i = 0; i < stage; ++i) {
      if (!problem_[i].again) continue;
      const double time = static_cast<double>(problem_[i].time.picoseconds()) /
                          static_cast<double>(std::max<int64_t>(1, time_.picoseconds()));
      again[i] = program_.Variable(1, false, time * 1000);
    }
    const auto is_there = [&](size_t i, Terms terms,
                              double least) {  // the sum of the terms <= `kept` + `again`
      for (auto& [variable, factor] : terms) factor = -factor;
      if (kept[i] != kNothing) terms.emplace_back(kept[i], 1);
      terms.emplace_back(again[i], 1);
      program_.Row(terms, least, kInfinity);
    };
    for (size_t i = 0; i < stage; ++i) {
      if (again[i] == kNothing) continue;
      if (next[i] != kNothing) is_there(i, {{next[i], 1}}, 0);
      for (const size_t read : problem_[i].reads) {
        if (again[read] == kNothing) continue;
        is_there(read, {{again[i], 1}}, 0);
        made.readers[read].push_back(i);
      }
    }
    for (const size_t read : problem_[stage].reads) {
      if (again[read] == kNothing) continue;
      made.needed[read] = true;
      is_there(read, {}, 1);
    }
    return made;
  }

  // Adds the rows by which the values that are there, before each unit and after it, fit.
  void AddMemory(size_t stage, const Stage& made) {
    const std::vector<int>& kept = kept_[stage];
    const std::vector<int>& next = kept_[stage + 1];
    const std::vector<int>& again = made.again;
    const RematerializedUnit& unit = problem_[stage];
    const double room = 1 - Share(unit.fixed);
    Terms all;
    for (size_t i = 0; i < stage; ++i) {
      if (kept[i] != kNothing) all.emplace_back(kept[i], Share(problem_[i].value));
    }
    int used = program_.Variable(kInfinity, false);  // the bytes that are there
    all.emplace_back(used, -1);
    program_.Row(all, 0, 0);
    for (size_t k = 0; k < stage; ++k) {
      if (again[k] == kNothing) continue;
      const double value = Share(problem_[k].value);
      program_.Row({{used, 1}, {again[k], value + Share(problem_[k].extra)}}, -kInfinity, room);
      const int after = program_.Variable(kInfinity, false);
      Terms change{{after, 1}, {used, -1}, {again[k], -value}};
      const auto leaves = [&](size_t i) {
        if (made.needed[i] || problem_[i].value == Bytes(0)) return;
        const int free = program_.Variable(1, false);
        program_.Row({{again[k], 1}, {free, -1}}, 0, kInfinity);
        if (next[i] != kNothing) {
          program_.Row({{free, 1}, {next[i], 1}}, -kInfinity, 1);
        }
        for (const size_t reader : made.readers[i]) {
          if (reader <= k) continue;
          program_.Row({{free, 1}, {again[reader], 1}}, -kInfinity, 1);
        }
        change.emplace_back(free, Share(problem_[i].value));
      };
      leaves(k);
      for (const size_t read : problem_[k].reads) {
        if (again[read] != kNothing) leaves(read);
      }
      program_.Row(change, 0, 0);
      used = after;
    }
    program_.Row({{used, 1}}, -kInfinity, room - (unit.again ? Share(unit.value) : 0));
  }

  const RematerializationProblem& problem_;
  const double budget_;
  const size_t first_;
  Duration time_;
  RowByRow program_;
  std::vector<std::vector<int>> kept_;  // variables, by stage and unit
};

// Returns the schedule that keeps the values kept to more than the threshold. Before the first unit
// that cannot run again, it keeps the values that are used before that unit, and the values that
// are kept when it runs.
Retention RoundAt(double threshold, const std::vector<std::vector<double>>& kept,
                  const RematerializationProblem& problem) {
  const size_t first = FirstFixed(problem);
  const std::vector<size_t> last = LastReaders(problem, first);
  Retention rounded(problem.size() + 1, std::vector<bool>(problem.size()));
  for (size_t stage = 0; stage < rounded.size(); ++stage) {
    for (size_t i = 0; i < std::min(stage, problem.size()); ++i) {
      const bool used = stage < first && last[i] >= stage;
      rounded[stage][i] = used || kept[std::max(stage, first)][i] > threshold;
    }
  }
  return rounded;
}

#endif

}  // namespace

std::optional<RematerializationCost> CostOf(const RematerializationProblem& problem,
                                            const Retention& kept) {
  RematerializationCost cost;
  for (size_t stage = 0; stage < problem.size(); ++stage) {
    const RematerializedUnit& unit = problem[stage];
    // The units to run are found from the last to the first.
    std::vector<bool> runs(stage), there(stage);
    std::vector<size_t> last_reader(stage, stage);
    for (size_t i = 0; i < stage; ++i) there[i] = problem[i].again && kept[stage][i];
    const auto want = [&](size_t i) {
      if (problem[i].again && !there[i]) runs[i] = true;
    };
    for (const size_t read : unit.reads) want(read);
    for (size_t i = stage; i-- > 0;) {
      if (kept[stage + 1][i]) want(i);
      if (!runs[i]) continue;
      for (const size_t read : problem[i].reads) want(read);
    }
    if (stage < FirstFixed(problem) && std::ranges::find(runs, true) != runs.end()) {
      return std::nullopt;
    }
    Bytes used = unit.fixed;
    for (size_t i = 0; i < stage; ++i) {
      if (there[i]) used += problem[i].value;
    }
    const auto reads = [&](size_t reader, size_t i) {
      return std::ranges::find(problem[reader].reads, i) != problem[reader].reads.end();
    };
    for (size_t k = 0; k < stage; ++k) {
      if (!runs[k]) continue;
      cost.time += problem[k].time;
      cost.peak = std::max(cost.peak, used + problem[k].value + problem[k].extra);
      used += problem[k].value;
      for (size_t i = 0; i <= k; ++i) {
        if (!problem[i].again || (i != k && !reads(k, i))) continue;
        bool stays = kept[stage + 1][i] || reads(stage, i);
        for (size_t j = k + 1; j < stage; ++j) stays = stays || (runs[j] && reads(j, i));
        if (!stays) used -= problem[i].value;
      }
    }
    cost.time += unit.time;
    cost.peak = std::max(cost.peak, used + (unit.again ? unit.value : Bytes(0)));
  }
  return cost;
}

std::optional<Retention> Rematerialize([[maybe_unused]] const RematerializationProblem& problem,
                                       [[maybe_unused]] Bytes budget,
                                       [[maybe_unused]] int64_t nodes) {
  std::optional<Retention> best;
#ifdef SPILLWAY_HAVE_SOLVERS
  if (ExceedsAlways(problem, budget)) return std::nullopt;
  Duration shortest = Duration::Max();
  const auto take = [&](const std::vector<std::vector<double>>& kept, double threshold) {
    Retention rounded = RoundAt(threshold, kept, problem);
    const auto cost = CostOf(problem, rounded);
    if (!cost || cost->peak > budget || cost->time >= shortest) return;
    shortest = cost->time;
    best = std::move(rounded);
  };
  for (int64_t percent = 100; percent >= kLeastPercent && !best; percent -= kStep) {
    const Bytes lack(budget.count() / 100 * (100 - percent));
    const Formulation formulation(problem, budget - lack);
    const auto relaxed = formulation.Solve(0);
    if (relaxed.empty()) break;
    for (int threshold = 1; threshold < 20; ++threshold) take(relaxed, threshold / 20.0);
    take(relaxed, 0.999);
    if (nodes > 0 && percent == 100) {
      if (const auto kept = formulation.Solve(nodes); !kept.empty()) take(kept, 0.5);
    }
  }
#endif
  return best;
}

}  // namespace spillway::policies
