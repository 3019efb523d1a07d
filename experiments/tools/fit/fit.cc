#include "experiments/tools/fit/fit.h"

#include <fmt/format.h>
#include <tbb/parallel_for.h>
#include <tbb/task_arena.h>

#include <algorithm>
#include <limits>
#include <utility>

#include "experiments/changes/changed_step.h"
#include "experiments/changes/other_world.h"
#include "experiments/changes/shards.h"
#include "experiments/tools/fit/pytorch_remedies.h"
#include "traces/base/error.h"
#include "traces/blocks.h"

namespace spillway::lab {
namespace {

double TimePerSample(const FitRow& row) {
  return row.metrics.iteration.milliseconds() / static_cast<double>(row.batch);
}

// Returns the least number in [begin, end) for which `holds`, or `end` if there is none. If it
// holds for a number, it should hold for all larger numbers: else the result is not the least.
size_t LeastThat(size_t begin, size_t end, const std::function<bool(size_t)>& holds) {
  while (begin < end) {
    const size_t middle = begin + (end - begin) / 2;
    if (holds(middle)) {
      end = middle;
    } else {
      begin = middle + 1;
    }
  }
  return begin;
}

// Returns the results of checkpoints around all blocks, and around as few of the first blocks as
// make it fit. REQUIRES: `blocks` is not empty.
std::vector<FitRow> Checkpointed(const Question& one, const std::vector<std::string>& blocks) {
  const auto row_of = [&](size_t count) { return one.Remedied(Checkpoint(blocks, count)); };
  std::vector<FitRow> rows{row_of(blocks.size())};
  if (rows[0].status == FitStatus::kNot) return rows;
  const size_t count = LeastThat(
      1, blocks.size(), [&](size_t some) { return row_of(some).status != FitStatus::kNot; });
  if (count < blocks.size()) rows.push_back(row_of(count));
  return rows;
}

// Returns the result of the largest batch that fits and is smaller than that of the workload, or
// of batch 1 if none fits; nothing for batch 1.
std::vector<FitRow> WithSmallerBatch(const Question& one,
                                     std::span<const std::shared_ptr<const Trace>> others) {
  const int64_t batch = one.trace().batch;
  if (batch == 1) return {};
  const auto row_of = [&](int64_t smaller) {
    const BatchTrace at = AtBatch(one.workload(), others, smaller);
    return one.About(at).Remedied(SmallerBatch(smaller, at.source));
  };
  const auto less = LeastThat(1, static_cast<size_t>(batch) - 1, [&](size_t samples_less) {
    return row_of(batch - static_cast<int64_t>(samples_less)).status != FitStatus::kNot;
  });
  return {row_of(batch - static_cast<int64_t>(less))};
}

// Returns the result of the same batch in as few micro-batches of equal size as make it fit, or of
// micro-batches of one sample if none do; nothing for batch 1, or if the step has no single update
// at its end.
std::vector<FitRow> WithMicroBatches(const Question& one,
                                     std::span<const std::shared_ptr<const Trace>> others) {
  const int64_t batch = one.trace().batch;
  std::vector<int64_t> counts;  // numbers of micro-batches
  for (int64_t count = 2; count <= batch; ++count) {
    if (batch % count == 0) counts.push_back(count);
  }
  if (counts.empty()) return {};
  const auto row_of = [&](size_t i) {
    return Accumulated(one, AtBatch(one.workload(), others, batch / counts[i]));
  };
  const size_t fewest = LeastThat(0, counts.size() - 1, [&](size_t i) {
    const auto row = row_of(i);
    return row && row->status != FitStatus::kNot;
  });
  const std::optional<FitRow> row = row_of(fewest);
  return row ? std::vector{*row} : std::vector<FitRow>();
}

// Returns the result of the first of `times` with which `make` makes a step that fits, or of the
// last one; nullopt if there are none, or the memory of a process stays the same. `why_not` is as
// that of `FixedChange`, and names `what`.
std::optional<FitRow> Regrouped(const Question& one, const FitRow& as_it_is, const char* what,
                                std::span<const int64_t> times,
                                const std::function<Trace(int64_t)>& make,
                                const std::function<PyTorchRemedy(const Trace&, int64_t)>& remedy,
                                std::string& why_not) {
  if (times.empty()) return std::nullopt;
  const auto row_of = [&](size_t i) {
    Trace made = make(times[i]);
    const PyTorchRemedy its = remedy(made, times[i]);
    return one.About(std::move(made)).Remedied(its);
  };
  try {
    FitRow row = row_of(LeastThat(0, times.size() - 1,
                                  [&](size_t i) { return row_of(i).status != FitStatus::kNot; }));
    if (row.metrics.peak_requested >= as_it_is.metrics.peak_requested) return std::nullopt;
    return row;
  } catch (const UsageError& error) {
    why_not = fmt::format("{} were not tried: {}.", what, error.what());
    return std::nullopt;
  }
}

// Returns the result of the least number of processes with which it fits, as `Regrouped` does: up
// to 16 times as many, each number twice the one before it.
std::optional<FitRow> WithMoreGpus(const Question& one, const FitRow& as_it_is,
                                   std::string& why_not) {
  constexpr int64_t kTimes[] = {2, 4, 8, 16};
  const int64_t world = WorldOf(one.trace());
  if (world == 1) return std::nullopt;
  return Regrouped(
      one, as_it_is, "More GPUs", kTimes,
      [&](int64_t times) { return WithWorld(one.trace(), world * times); },
      [&](const Trace& made, int64_t times) { return MoreGpus(MeshOf(made), times, one.device()); },
      why_not);
}

// The same for the processes among which parameters are shared out, if there are replicas of them.
std::optional<FitRow> WithMoreShards(const Question& one, const FitRow& as_it_is,
                                     std::string& why_not) {
  const int64_t reach = ReachOfShards(one.trace());
  const int64_t replicas = reach == 0 ? 1 : WorldOf(one.trace()) / reach;
  std::vector<int64_t> all;
  for (int64_t times = 2; times <= replicas; ++times) {
    if (replicas % times == 0) all.push_back(times);
  }
  return Regrouped(
      one, as_it_is, "More shards", all,
      [&](int64_t times) { return WithShards(one.trace(), reach * times); },
      [&](const Trace& made, int64_t times) { return MoreShards(MeshOf(made), times); }, why_not);
}

// Returns the result of a policy of research; nothing if the workload does not fit with it.
std::vector<FitRow> WithPolicy(const Question& one, const PolicyChoice& policy) {
  FitRow row = one.Try("policy", policy, FitAllocator::kUsual);
  if (row.status == FitStatus::kNot) {
    row = one.Try("policy and allocator", policy, FitAllocator::kExpandable);
  }
  if (row.status == FitStatus::kNot) return {};
  return {row};
}

// Returns the results of combinations of changes with which it fits: of the numbers, of the
// optimizer, of the loss, of when shards are freed, and of checkpoints around all or as few blocks
// as make it fit, or of the numbers and of what Spillway does. Of the combinations that keep the
// numerics, and of all, only the cheapest is returned.
std::vector<FitRow> Combined(const Question& one, const FitRow& as_it_is,
                             const std::vector<std::string>& blocks) {
  struct Made {
    Question changed;
    std::vector<StepChange> parts;
  };
  std::vector<Made> all{{one, {}}};
  std::vector<StepChange> sharding = ChangesOfSharding();
  std::erase_if(sharding, [](const StepChange& change) { return !change.exact; });
  size_t with_numbers = 0;  // the first of them have no change of another kind
  for (const auto& changes :
       {ChangesOfNumbers(), ChangesOfOptimizer(one.device()), ChangesOfLoss(), sharding}) {
    const size_t before = all.size();
    for (size_t i = 0; i < before; ++i) {
      for (const StepChange& change : changes) {
        std::string ignored;  // `FixedChanges` says why a change is not made
        std::optional<Trace> made = change.make(all[i].changed, ignored);
        if (!made) continue;
        Made next{all[i].changed.About(*std::move(made)), all[i].parts};
        next.parts.push_back(change);
        all.push_back(std::move(next));
      }
    }
    if (with_numbers == 0) with_numbers = all.size();
  }
  std::optional<FitRow> cheapest, exact;
  const auto better = [](const std::optional<FitRow>& best, const FitRow& row) {
    return !best || row.metrics.iteration < best->metrics.iteration;
  };
  for (size_t i = 1; i < all.size(); ++i) {
    const auto& [changed, parts] = all[i];
    const auto add = [&](FitRow row) {
      if (row.status != FitStatus::kFits) return;
      std::vector<PyTorchRemedy> remedies;
      for (const StepChange& part : parts) remedies.push_back(part.remedy);
      if (!row.remedy.empty()) remedies.push_back({"", row.remedy, "", row.python});
      row.change = "combination";
      row.remedy = row.python = "";
      for (const PyTorchRemedy& part : remedies) {
        row.remedy += fmt::format("{}{}", row.remedy.empty() ? "" : " + ", part.text);
        row.python +=
            fmt::format("{}# {}\n{}", row.python.empty() ? "" : "\n", part.text, part.python);
      }
      if (better(cheapest, row)) cheapest = row;
      if (std::ranges::all_of(parts, &StepChange::exact) && better(exact, row)) exact = row;
    };
    if (i < with_numbers) {
      for (FitRow& row : BySpillway(changed, as_it_is)) {
        if (row.runs_in_pytorch()) add(std::move(row));
      }
    }
    if (parts.size() > 1) add(changed.Remedied({"combination", "", "", ""}));
    if (blocks.empty() || !one.trace().training) continue;
    for (FitRow& row : Checkpointed(changed, blocks)) add(std::move(row));
  }
  std::vector<FitRow> rows;
  if (cheapest) rows.push_back(*cheapest);
  if (exact && exact->remedy != cheapest->remedy) rows.push_back(*exact);
  return rows;
}

// `others` are the traces that were given, from which those of other batches are made.
void FindChanges(const Question& given, std::span<const std::shared_ptr<const Trace>> others,
                 const FitOptions& options, Fit& fit) {
  // If the construction does not fit, all changes go with another one.
  std::optional<Trace> built;
  if (fit.as_it_is.construction > Bytes()) built = BuiltElsewhere(given.trace());
  const bool builds = built.has_value();
  if (builds) {
    fit.as_it_is.reason += ": build it in bf16, or on the CPU";
  } else {
    fit.as_it_is.construction = Bytes();  // it makes nothing that is not kept
  }
  const bool shares = WorldOf(given.trace()) > 1;  // `About` takes earlier steps away
  const Question one = builds   ? given.About(*std::move(built))
                       : shares ? given.About(given.trace())
                                : given;
  const Trace& trace = one.trace();
  std::vector<FixedChange> fixed = FixedChanges(one);
  if (builds) {
    fixed.insert(fixed.begin(), [](const Question& asked, std::string&) {
      return std::optional(asked.Remedied(BuildElsewhere()));
    });
  }
  fixed.emplace_back([&](const Question& asked, std::string& why_not) {
    return WithMoreGpus(asked, fit.as_it_is, why_not);
  });
  fixed.emplace_back([&](const Question& asked, std::string& why_not) {
    return WithMoreShards(asked, fit.as_it_is, why_not);
  });
  std::vector<std::string> why_not(fixed.size());
  std::vector<std::function<std::vector<FitRow>()>> tries;
  for (size_t i = 0; i < fixed.size(); ++i) {
    tries.emplace_back([&, i] {
      const std::optional<FitRow> row = fixed[i](one, why_not[i]);
      return row ? std::vector{*row} : std::vector<FitRow>();
    });
  }
  tries.emplace_back([&] { return WithSmallerBatch(one, others); });
  const std::vector<std::string> blocks = BlocksInOrder(trace);
  if (trace.recording) tries.emplace_back([&] { return Combined(one, fit.as_it_is, blocks); });
  tries.emplace_back([&] { return BySpillway(one, fit.as_it_is); });
  tries.emplace_back([&] { return ByCompiling(one, fit.as_it_is); });
  if (trace.recording && trace.training) {
    if (!blocks.empty()) tries.emplace_back([&] { return Checkpointed(one, blocks); });
    tries.emplace_back([&] { return WithMicroBatches(one, others); });
  }
  for (const PolicyChoice& policy : options.policies) {
    if (policy.name() == fit.as_it_is.policy) continue;
    tries.emplace_back([&] { return WithPolicy(one, policy); });
  }
  std::vector<std::vector<FitRow>> found(tries.size());
  std::vector<std::string> failures(tries.size());
  tbb::parallel_for(size_t{0}, tries.size(), [&](size_t i) {
    try {
      found[i] = tries[i]();
    } catch (const Error& error) {
      failures[i] = fmt::format("A change could not be predicted: {}.", error.what());
    }
  });
  for (auto* sentences : {&why_not, &failures}) {
    for (std::string& sentence : *sentences) {
      if (!sentence.empty()) fit.not_tried.push_back(std::move(sentence));
    }
  }
  // A combination is told if it is faster than each change alone with which it fits.
  double fastest = std::numeric_limits<double>::infinity();
  for (const std::vector<FitRow>& rows : found) {
    for (const FitRow& row : rows) {
      const bool alone = row.runs_in_pytorch() && row.change != "combination";
      if (alone && row.status == FitStatus::kFits) fastest = std::min(fastest, TimePerSample(row));
    }
  }
  for (std::vector<FitRow>& rows : found) {
    for (FitRow& row : rows) {
      if (row.change == "combination" && TimePerSample(row) >= fastest) continue;
      const PyTorchRemedy build = BuildElsewhere();
      if (builds && row.runs_in_pytorch() && row.change != build.change) {
        row.remedy += ", " + build.text;
        row.python = fmt::format("{}\n{}", build.python, row.python);
      }
      const bool helps = row.metrics.peak_reserved < fit.as_it_is.metrics.peak_reserved;
      if (row.status == FitStatus::kFailed) {
        fit.failures.push_back(std::move(row));
      } else if (row.status != FitStatus::kNot) {
        fit.changes.push_back(std::move(row));
      } else if (helps) {
        fit.misses.push_back(std::move(row));
      }
    }
  }
}

}  // namespace

std::vector<Fit> FindFits(const std::vector<Question>& questions, const FitOptions& options,
                          const std::function<void(const Question&)>& progress) {
  std::vector<Fit> fits(questions.size());
  std::vector<std::shared_ptr<const Trace>> given;
  for (const Question& one : questions) given.push_back(one.workload().given);
  tbb::task_arena arena(options.jobs > 0 ? options.jobs : tbb::task_arena::automatic);
  arena.execute([&] {
    for (size_t i = 0; i < questions.size(); ++i) {
      progress(questions[i]);
      fits[i].as_it_is = questions[i].AsItIs();
      if (fits[i].as_it_is.status != FitStatus::kNot) continue;
      FindChanges(questions[i], given, options, fits[i]);
    }
  });
  for (Fit& fit : fits) {
    if (fit.as_it_is.status != FitStatus::kNot) continue;
    for (const Fit& other : fits) {
      const FitRow& row = other.as_it_is;
      if (row.network != fit.as_it_is.network || row.batch >= fit.as_it_is.batch ||
          row.status == FitStatus::kNot) {
        continue;
      }
      const PyTorchRemedy remedy = SmallerBatch(row.batch, row.batch_source);
      fit.changes.push_back(row);
      fit.changes.back().change = remedy.change;
      fit.changes.back().remedy = remedy.text;
      fit.changes.back().python = remedy.python;
    }
    for (auto* rows : {&fit.changes, &fit.misses}) {
      for (FitRow& row : *rows) row.slowdown = TimePerSample(row) / TimePerSample(fit.as_it_is);
    }
    std::ranges::stable_sort(fit.changes, {}, [](const FitRow& row) {
      return std::pair(row.change != BuildElsewhere().change, row.slowdown);
    });
  }
  return fits;
}

std::vector<FitRow> RowsOf(const std::vector<Fit>& fits) {
  std::vector<FitRow> rows;
  for (const Fit& fit : fits) {
    rows.push_back(fit.as_it_is);
    rows.insert(rows.end(), fit.changes.begin(), fit.changes.end());
    rows.insert(rows.end(), fit.misses.begin(), fit.misses.end());
    rows.insert(rows.end(), fit.failures.begin(), fit.failures.end());
  }
  return rows;
}

}  // namespace spillway::lab
