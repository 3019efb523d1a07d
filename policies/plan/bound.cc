#include "policies/plan/bound.h"

#include <algorithm>
#include <limits>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "policies/plan/facts.h"
#include "traces/liveness.h"

#ifdef SPILLWAY_HAVE_CLP
#include <coin/Clp_C_Interface.h>
#endif

namespace spillway::policies {
namespace {

// The most ops for which a linear program is solved.
constexpr size_t kMoments = 6;

#ifdef SPILLWAY_HAVE_CLP

// A linear program, built row by row.
class LinearProgram {
 public:
  static constexpr double kInfinity = std::numeric_limits<double>::infinity();

  // Adds a variable in [least, most] and returns its index.
  int Variable(double least, double most, double cost = 0) {
    least_.push_back(least);
    most_.push_back(most);
    costs_.push_back(cost);
    return static_cast<int>(costs_.size()) - 1;
  }
  // Adds a row: the sum over the terms, {variable, factor}, is at least `least` and at most `most`.
  void Row(const std::vector<std::pair<int, double>>& terms, double least,
           double most = kInfinity) {
    for (const auto& [variable, factor] : terms) {
      variables_.push_back(variable);
      factors_.push_back(factor);
    }
    starts_.push_back(static_cast<int>(variables_.size()));
    row_least_.push_back(least);
    row_most_.push_back(most);
  }

  // Returns the least cost, or nullopt if nothing satisfies all rows.
  std::optional<double> Solve() const {
    const std::unique_ptr<Clp_Simplex, decltype(&Clp_deleteModel)> model(Clp_newModel(),
                                                                         &Clp_deleteModel);
    Clp_setLogLevel(model.get(), 0);
    const std::vector<int> nowhere(costs_.size() + 1, 0);
    Clp_loadProblem(model.get(), static_cast<int>(costs_.size()), 0, nowhere.data(), nullptr,
                    nullptr, least_.data(), most_.data(), costs_.data(), nullptr, nullptr);
    Clp_addRows(model.get(), static_cast<int>(row_least_.size()), row_least_.data(),
                row_most_.data(), starts_.data(), variables_.data(), factors_.data());
    Clp_dual(model.get(), 0);
    if (Clp_status(model.get()) != 0) return std::nullopt;
    return Clp_objectiveValue(model.get());
  }

 private:
  std::vector<double> least_, most_, costs_, row_least_, row_most_, factors_;
  std::vector<int> starts_{0}, variables_;
};

#endif

class Moments {
 public:
  Moments(const Trace& trace, const CostModel& cost, Bytes memory)
      : trace_(trace), liveness_(trace), cost_(cost), memory_(memory), starts_{Duration()} {
    Bytes staying;
    for (size_t i = 0; i < trace.tensors.size(); ++i) {
      const bool root = liveness_.Root(static_cast<TensorId>(i)) == static_cast<TensorId>(i);
      if (root && StaysOnDevice(trace.tensors[i].kind)) staying += trace.tensors[i].size;
    }
    for (size_t i = 0; i < trace.ops.size(); ++i) {
      Bytes room = memory - staying;
      for (const TensorId id : liveness_.Storages(static_cast<OpId>(i))) {
        if (!StaysOnDevice(trace.tensor(id).kind)) room -= trace.tensor(id).size;
      }
      const Op& op = trace.ops[i];
      Duration time;
      for (size_t slot = 0; slot < op.slots.size(); ++slot) {
        const auto kernels = cost.Kernels(op, slot, op.batch);
        time += LeastTime(static_cast<OpId>(i), kernels[FastestWithin(kernels, room)]);
      }
      if (op.lane != 0) time = Duration();  // it runs beside the ops of lane 0
      times_.push_back(time);
      starts_.push_back(starts_.back() + time);
    }
  }

  Duration Bound() const {
    Duration bound = starts_.back();
#ifdef SPILLWAY_HAVE_CLP
    for (const OpId op : Fullest()) bound = std::max(bound, At(op).value_or(Duration()));
#endif
    return bound;
  }

 private:
  // Returns the least time of the kernel, whatever runs before it.
  Duration LeastTime(OpId op, const Kernel& kernel) const {
    if (kernel.in_sequence == Duration()) return kernel.time;
    const auto may_be_warm = [&](TensorId storage) {
      return std::ranges::any_of(liveness_.Uses(storage), [&](OpId other) {
        return other != op && Alike(trace_, liveness_, op, other);
      });
    };
    const bool warm = std::ranges::any_of(liveness_.Storages(op), may_be_warm);
    return kernel.time - (warm ? kernel.in_sequence : Duration());
  }

#ifdef SPILLWAY_HAVE_CLP
  // The storages that are alive at an op.
  struct Alive {
    Bytes used;                  // bytes of storages that the op uses or that stay on the device
    std::vector<TensorId> idle;  // written before the op and read after it
  };

  Alive AliveAt(OpId op) const {
    Alive alive;
    const auto named = liveness_.Storages(op);
    for (size_t i = 0; i < trace_.tensors.size(); ++i) {
      const auto id = static_cast<TensorId>(i);
      const auto uses = liveness_.Uses(id);
      if (liveness_.Root(id) != id) continue;
      const Tensor& tensor = trace_.tensor(id);
      if (StaysOnDevice(tensor.kind) || std::ranges::find(named, id) != named.end()) {
        alive.used += tensor.size;
      } else if (!uses.empty() && uses.back() > op &&
                 (uses.front() < op || tensor.kind == TensorKind::kInput)) {
        alive.idle.push_back(id);
      }
    }
    return alive;
  }

  // Returns the ops at which the most bytes are alive. Of ops near each other, only the fullest
  // counts.
  std::vector<OpId> Fullest() const {
    std::vector<Bytes> changes(trace_.ops.size() + 1);
    for (size_t i = 0; i < trace_.tensors.size(); ++i) {
      const auto id = static_cast<TensorId>(i);
      if (liveness_.Root(id) != id || liveness_.Uses(id).empty()) continue;
      if (StaysOnDevice(trace_.tensor(id).kind)) continue;
      const bool arrives = trace_.tensor(id).kind == TensorKind::kInput;
      changes[arrives ? 0 : Index(*liveness_.FirstUse(id))] += trace_.tensor(id).size;
      changes[Index(*liveness_.LastUse(id)) + 1] -= trace_.tensor(id).size;
    }
    std::vector<std::pair<Bytes, OpId>> ops;
    Bytes alive;
    for (size_t i = 0; i < trace_.ops.size(); ++i) {
      alive += changes[i];
      ops.emplace_back(alive, static_cast<OpId>(i));
    }
    std::ranges::stable_sort(ops, std::ranges::greater(), &std::pair<Bytes, OpId>::first);
    const size_t apart = trace_.ops.size() / (4 * kMoments);
    std::vector<OpId> fullest;
    for (const auto& [bytes, op] : ops) {
      const bool near = std::ranges::any_of(fullest, [&, at = Index(op)](OpId other) {
        return std::max(at, Index(other)) - std::min(at, Index(other)) < apart;
      });
      if (!near) fullest.push_back(op);
      if (fullest.size() == kMoments) break;
    }
    return fullest;
  }

  // Returns the ops that must run again after `op` if a storage is dropped before it, or an empty
  // vector if one of these ops cannot run again.
  std::vector<OpId> OpsToRecompute(TensorId storage, OpId op) const {
    std::vector<OpId> ops;
    std::vector<TensorId> open{storage};
    for (size_t i = 0; i < open.size(); ++i) {
      for (const OpId writer : liveness_.Writers(open[i])) {
        if (writer >= op) break;
        if (!trace_.op(writer).recomputable) return {};
        if (std::ranges::find(ops, writer) == ops.end()) ops.push_back(writer);
        for (const TensorId input : trace_.op(writer).inputs) {
          const TensorId id = liveness_.Root(input);
          const bool ended = *liveness_.LastUse(id) < op && !StaysOnDevice(trace_.tensor(id).kind);
          if (ended && std::ranges::find(open, id) == open.end()) open.push_back(id);
        }
      }
    }
    return ops;
  }

  // Storages with the same variables in a linear program: the program has a solution in which it
  // treats all of them alike.
  struct Kind {
    Bytes size;
    bool is_input = false;
    // The time of the ops that recompute this storage alone; nullopt if it cannot be recomputed.
    std::optional<Duration> recompute_time;
    std::vector<OpId> shared;  // the ops that recompute this storage and others

    auto operator<=>(const Kind&) const = default;
  };

  // Returns how many of these storages, which are idle at the op, are of each kind.
  std::map<Kind, int> KindsOf(std::span<const TensorId> idle, OpId op) const {
    std::vector<std::vector<OpId>> ops_to_recompute;
    std::vector<int> recomputed(trace_.ops.size());  // by op: how many of the storages
    for (const TensorId storage : idle) {
      ops_to_recompute.push_back(OpsToRecompute(storage, op));
      for (const OpId writer : ops_to_recompute.back()) ++recomputed[Index(writer)];
    }
    std::map<Kind, int> kinds;
    for (size_t i = 0; i < idle.size(); ++i) {
      const Tensor& tensor = trace_.tensor(idle[i]);
      Kind kind{tensor.size, tensor.kind == TensorKind::kInput, {}, {}};
      if (!ops_to_recompute[i].empty()) kind.recompute_time = Duration();
      for (const OpId writer : ops_to_recompute[i]) {
        if (recomputed[Index(writer)] == 1) {
          *kind.recompute_time += times_[Index(writer)];
        } else {
          kind.shared.push_back(writer);
        }
      }
      ++kinds[std::move(kind)];
    }
    return kinds;
  }

  // Returns the bound from the linear program at this op, or nullopt if nothing satisfies it. The
  // program counts times in shares of the kernels' time, and bytes in shares of the bytes alive.
  std::optional<Duration> At(OpId id) const {
    const Op& op = trace_.op(id);
    const Alive alive = AliveAt(id);
    Bytes all = alive.used;
    for (const TensorId storage : alive.idle) all += trace_.tensor(storage).size;
    for (size_t slot = 0; slot < op.slots.size(); ++slot) {
      all += cost_.Kernels(op, slot, op.batch).front().workspace;
    }
    if (all <= memory_) return starts_.back();
    const auto all_time = static_cast<double>(std::max<int64_t>(1, starts_.back().picoseconds()));
    const auto all_bytes = static_cast<double>(std::max<int64_t>(1, all.count()));
    const auto share = [&](Duration time) {
      return static_cast<double>(time.picoseconds()) / all_time;
    };
    const auto share_of = [&](Bytes size) { return static_cast<double>(size.count()) / all_bytes; };
    const auto copy = [&](Direction direction, Bytes size) {
      return share(cost_.CopyTime(direction, size));
    };
    LinearProgram program;
    const int total = program.Variable(share(starts_.back()), LinearProgram::kInfinity, 1);
    const int start = program.Variable(share(starts_[Index(id)]), LinearProgram::kInfinity);
    const int workspace = program.Variable(0, LinearProgram::kInfinity);
    using Terms = std::vector<std::pair<int, double>>;
    Terms out{{start, 1}}, in{{total, 1}, {start, -1}}, after{{total, 1}, {start, -1}};
    Terms room{{workspace, -1}};
    double lacking = share_of(alive.used - memory_);
    std::map<OpId, int> again;
    for (const auto& [kind, count] : KindsOf(alive.idle, id)) {
      const auto times = [count = count](double one) { return static_cast<double>(count) * one; };
      const double size = times(share_of(kind.size));
      lacking += size;
      const int copied = program.Variable(0, 1);
      room.emplace_back(copied, size);
      // An input may have started outside, so it need not be copied out.
      if (!kind.is_input) out.emplace_back(copied, -times(copy(Direction::kToHost, kind.size)));
      in.emplace_back(copied, -times(copy(Direction::kToDevice, kind.size)));
      if (!kind.recompute_time) continue;
      const int dropped = program.Variable(0, 1);
      room.emplace_back(dropped, size);
      program.Row({{copied, 1}, {dropped, 1}}, 0, 1);
      after.emplace_back(dropped, -times(share(*kind.recompute_time)));
      for (const OpId writer : kind.shared) {
        const auto [known, added] = again.try_emplace(writer, 0);
        if (added) {
          known->second = program.Variable(0, LinearProgram::kInfinity);
          after.emplace_back(known->second, -share(times_[Index(writer)]));
        }
        program.Row({{known->second, 1}, {dropped, -1}}, 0);
      }
    }
    for (size_t slot = 0; slot < op.slots.size(); ++slot) {
      Terms one, fits{{workspace, 1}};
      for (const Kernel& kernel : cost_.Kernels(op, slot, op.batch)) {
        const int part = program.Variable(0, 1);
        one.emplace_back(part, 1);
        fits.emplace_back(part, -share_of(kernel.workspace));
        if (op.lane == 0) after.emplace_back(part, -share(LeastTime(id, kernel)));
      }
      program.Row(one, 1, 1);
      program.Row(fits, 0);
    }
    program.Row(room, lacking);
    program.Row(out, 0);
    program.Row(in, 0);
    program.Row(after, share(starts_.back() - starts_[Index(id) + 1]));
    const std::optional<double> least = program.Solve();
    if (!least) return std::nullopt;
    // The solver is exact to about 1e-7.
    return Duration::Picoseconds(static_cast<int64_t>(*least * (1 - 1e-5) * all_time));
  }
#endif

  const Trace& trace_;
  const Liveness liveness_;
  const CostModel& cost_;
  const Bytes memory_;
  std::vector<Duration>
      times_;  // by op, with the fastest kernels that fit in the rest of the memory
  std::vector<Duration> starts_;  // sums of `times_`
};

}  // namespace

Duration JointBound(const Trace& trace, const CostModel& cost, Bytes memory) {
  return Moments(trace, cost, memory).Bound();
}

bool JointBoundHolds(const Trace& trace, Bytes alignment, const Report& report) {
  const bool whole = std::ranges::all_of(report.decisions, [&](const Decision& decision) {
    return decision.verb != Verb::kRun || decision.run.batch == trace.op(decision.op).batch;
  });
  return whole && report.pools.size() == 1 && report.bounds.layer == LayerBound(trace, alignment);
}

}  // namespace spillway::policies
