#include "policies/kernels/workspace_division.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <memory>
#include <tuple>
#include <utility>

#include "policies/kernels/integer_program.h"
#include "traces/base/error.h"

namespace spillway::policies {
namespace {

Bytes Sum(std::span<const Front> fronts, const std::vector<size_t>& choice) {
  Bytes sum;
  for (size_t k = 0; k < fronts.size(); ++k) sum += fronts[k][choice[k]].workspace;
  return sum;
}

// A step from one division of a kernel to one further on its lower convex hull.
struct Gain {
  size_t kernel = 0;
  size_t to = 0;
  Bytes workspace;  // how much more it needs
  Duration time;    // how much less it takes

  double slope() const {
    return static_cast<double>(time.picoseconds()) / static_cast<double>(workspace.count());
  }
};

// Returns the gains of all kernels, the steepest first.
std::vector<Gain> HullGains(std::span<const Front> fronts) {
  std::vector<Gain> gains;
  for (size_t k = 0; k < fronts.size(); ++k) {
    for (size_t at = 0; at + 1 < fronts[k].size();) {
      Gain steepest;
      for (size_t to = at + 1; to < fronts[k].size(); ++to) {
        const Gain gain{k, to, fronts[k][to].workspace - fronts[k][at].workspace,
                        fronts[k][at].time - fronts[k][to].time};
        if (steepest.to == 0 || gain.slope() >= steepest.slope()) steepest = gain;
      }
      gains.push_back(steepest);
      at = steepest.to;
    }
  }
  std::ranges::stable_sort(gains, std::greater(), &Gain::slope);
  return gains;
}

// The linear relaxation: how much time the kernels from some kernel on can save with a workspace
// beyond the least, if divisions can be mixed.
class Relaxation {
 public:
  Relaxation(std::span<const Gain> gains, size_t from) {
    for (const Gain& gain : gains) {
      if (gain.kernel < from) continue;
      workspace_.push_back(workspace_.back() + static_cast<double>(gain.workspace.count()));
      time_.push_back(time_.back() + static_cast<double>(gain.time.picoseconds()));
    }
  }

  double Saved(Bytes workspace) const {
    const auto given = static_cast<double>(workspace.count());
    const auto next = std::ranges::upper_bound(workspace_, given);
    const auto i = static_cast<size_t>(next - workspace_.begin());
    if (next == workspace_.end()) return time_.back();
    const double share = (given - workspace_[i - 1]) / (workspace_[i] - workspace_[i - 1]);
    return time_[i - 1] + share * (time_[i] - time_[i - 1]);
  }

 private:
  std::vector<double> workspace_{0};
  std::vector<double> time_{0};
};

// Returns the time of all kernels if every gain is taken that fits, the steepest first.
Duration TimeOfGreedy(std::span<const Front> fronts, std::span<const Gain> gains, Bytes spare) {
  std::vector<size_t> choice(fronts.size(), 0);
  for (const Gain& gain : gains) {
    const Front front = fronts[gain.kernel];
    size_t& now = choice[gain.kernel];
    const Bytes more = front[gain.to].workspace - front[now].workspace;
    if (more > spare) continue;
    spare -= more;
    now = gain.to;
  }
  Duration time;
  for (size_t k = 0; k < fronts.size(); ++k) time += fronts[k][choice[k]].time;
  return time;
}

// The sums over the kernels so far.
struct State {
  Bytes workspace;
  Duration time;
  uint32_t before = 0;    // the state of the kernel before that it continues
  uint32_t division = 0;  // the division of the last kernel
};

}  // namespace

SegmentChoice DivideExactly(std::span<const Front> fronts, Bytes total) {
  std::vector<Bytes> least(fronts.size() + 1);       // the least workspace from each kernel on
  std::vector<Duration> slowest(fronts.size() + 1);  // the time with `least`
  for (size_t k = fronts.size(); k-- > 0;) {
    SPILLWAY_CHECK(!fronts[k].empty());
    least[k] = least[k + 1] + fronts[k].front().workspace;
    slowest[k] = slowest[k + 1] + fronts[k].front().time;
  }
  if (least[0] > total) return std::nullopt;
  const std::vector<Gain> gains = HullGains(fronts);
  const auto known =
      static_cast<double>(TimeOfGreedy(fronts, gains, total - least[0]).picoseconds());
  const double limit = known * (1 + 1e-12);  // a relaxation is rounded

  std::vector<std::vector<State>> states{{State{}}};
  for (size_t k = 0; k < fronts.size(); ++k) {
    const Relaxation rest(gains, k + 1);
    std::vector<State> next;
    for (uint32_t s = 0; s < states[k].size(); ++s) {
      for (uint32_t d = 0; d < fronts[k].size(); ++d) {
        const State state{states[k][s].workspace + fronts[k][d].workspace,
                          states[k][s].time + fronts[k][d].time, s, d};
        const Bytes spare = total - state.workspace - least[k + 1];
        if (spare < Bytes(0)) break;  // later divisions need more
        const Duration bound = state.time + slowest[k + 1];
        if (static_cast<double>(bound.picoseconds()) - rest.Saved(spare) > limit) continue;
        next.push_back(state);
      }
    }
    std::ranges::sort(next, [](const State& a, const State& b) {
      return std::tie(a.workspace, a.time) < std::tie(b.workspace, b.time);
    });
    std::vector<State> desirable;
    for (const State& state : next) {
      if (desirable.empty() || state.time < desirable.back().time) desirable.push_back(state);
    }
    states.push_back(std::move(desirable));
  }
  std::vector<size_t> choice(fronts.size());
  size_t at = states.back().size() - 1;  // the fastest
  for (size_t k = fronts.size(); k-- > 0;) {
    const State& state = states[k + 1][at];
    choice[k] = state.division;
    at = state.before;
  }
  return choice;
}

#ifdef SPILLWAY_HAVE_CBC

SegmentChoice DivideByIlp(std::span<const Front> fronts, Bytes total) {
  std::vector<size_t> choice(fronts.size());
  const Bytes least = Sum(fronts, choice);
  if (least > total) return std::nullopt;
  // Kernels with the same front are equal. The program has one variable for the number of equal
  // kernels that take a division; otherwise the search would try all permutations.
  std::vector<std::pair<Front, std::vector<size_t>>> classes;
  for (size_t k = 0; k < fronts.size(); ++k) {
    const auto known = std::ranges::find_if(
        classes, [&](const auto& alike) { return alike.first.data() == fronts[k].data(); });
    if (known == classes.end()) {
      classes.push_back({fronts[k], {k}});
    } else {
      known->second.push_back(k);
    }
  }
  // Columns: the divisions of each class. Rows: the number of kernels of each class, and the
  // workspace beyond the least, as a share of the spare workspace.
  const Bytes spare = total - least;
  const double share = 1 / std::max(1.0, static_cast<double>(spare.count()));
  Duration most;  // the most time that a division saves
  for (const auto& [front, members] : classes) {
    most = std::max(most, front.front().time - front.back().time);
  }
  const double unit = std::max(1.0, static_cast<double>(most.picoseconds()) / 1e3);
  IntegerProgram program;
  const auto last_row = static_cast<int>(classes.size());
  for (const auto& [front, members] : classes) {
    const auto row = static_cast<int>(program.row_most.size());
    const auto count = static_cast<double>(members.size());
    for (const Division& division : front) {
      program.starts.push_back(static_cast<int>(program.rows.size()));
      program.rows.insert(program.rows.end(), {row, last_row});
      const Bytes more = division.workspace - front.front().workspace;
      program.factors.insert(program.factors.end(),
                             {1.0, static_cast<double>(more.count()) * share});
      program.most.push_back(more <= spare ? count : 0.0);
      const Duration beyond = division.time - front.back().time;
      program.costs.push_back(static_cast<double>(beyond.picoseconds()) / unit);
    }
    program.row_least.push_back(count);
    program.row_most.push_back(count);
  }
  program.starts.push_back(static_cast<int>(program.rows.size()));
  program.row_least.push_back(0.0);
  program.row_most.push_back(1.0);
  program.integer.assign(program.costs.size(), true);
  const std::vector<double> solution = SolveByCbc(program);
  if (solution.empty()) return DivideExactly(fronts, total);
  auto value = solution.begin();
  for (const auto& [front, members] : classes) {
    size_t member = 0;
    for (size_t d = 0; d < front.size(); ++d, ++value) {
      for (auto left = std::lround(*value); left > 0 && member < members.size(); --left) {
        choice[members[member++]] = d;
      }
    }
  }
  if (Sum(fronts, choice) > total) return DivideExactly(fronts, total);
  return choice;
}

#else

SegmentChoice DivideByIlp(std::span<const Front> fronts, Bytes total) {
  return DivideExactly(fronts, total);
}

#endif

}  // namespace spillway::policies
