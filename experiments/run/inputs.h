// Loads the trace, the device and the kernel times that a case names.
//
// Cases that differ in memory, policy and backend share their inputs.

#ifndef SPILLWAY_EXPERIMENTS_RUN_INPUTS_H_
#define SPILLWAY_EXPERIMENTS_RUN_INPUTS_H_

#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "experiments/run/case.h"
#include "experiments/run/catalogue.h"
#include "experiments/run/prepared.h"
#include "sim/core/cost_model.h"
#include "sim/core/device.h"
#include "sim/core/report.h"
#include "traces/trace.h"

namespace spillway {

// Returns the trace with the host's time of each recorded op replaced according to `host`; each op
// of a recording without a GPU counts as one operator. Ops without a recording do not change.
// REQUIRES: the host's times are still the recorded ones.
Trace WithHostTimes(Trace trace, const HostTimes& host);

// Returns the trace that the case names. Throws `InputError` for a bad trace file. Throws
// `UsageError` for an unknown network, or if the case asks for a preset or mode that the trace file
// does not have.
Trace LoadTrace(const Case& asked);

// Returns the device that the case names, with the pools that it adds. Throws `UsageError` or
// `InputError` if their specifications, that of the allocator or the device file are invalid.
Device LoadMachine(const Case& asked);

// The trace, device and kernel times of a case.
class Inputs {
 public:
  // Loads the device, the trace unless `trace` is given, and the kernel times unless `cost` is
  // given. Throws `UsageError` or `InputError`.
  explicit Inputs(const Case& asked, std::shared_ptr<const Trace> trace = nullptr,
                  std::unique_ptr<const CostModel> cost = nullptr);

  const std::shared_ptr<const Trace>& trace() const { return plain_.trace; }
  const Device& device() const { return plain_.device; }
  const std::shared_ptr<const CostModel>& cost() const { return plain_.cost; }
  // The files that the inputs depend on.
  const std::vector<InputFile>& read() const { return read_; }

  // Returns the report of the ideal run (`Ideal`), which is simulated at the first call.
  const Report& ideal() const;
  // Returns the device memory that a case with these inputs gets. Throws `UsageError` if its budget
  // names a policy that cannot be made.
  Bytes MemoryOf(const Case& asked) const;
  // Returns `JointBound` for `memory` bytes. The bound is kept for later calls, because computing
  // it takes about a tenth of a second, longer than a run.
  Duration JointBoundIn(Bytes memory) const;

  // Returns the run of the case before trials decide anything. It has the memory, policy and
  // backend of the case, the arena of `AllocatorChoice::Undecided`, and compresses nothing.
  Prepared Undecided(const Case& asked) const;

 private:
  Prepared plain_;  // a run in all memory of the device
  std::vector<InputFile> read_;
  mutable std::once_flag ideal_once_;
  mutable Report ideal_;
  mutable std::mutex mutex_;
  mutable std::map<std::string, Bytes> memories_;  // by the text of the budget
  mutable std::map<Bytes, Duration> bounds_;       // by the memory
};

// A value that one thread makes when a thread first asks for it. If `make` throws, the exception
// reaches the thread that called it, and the next thread that asks calls `make` again.
template <typename T>
class Lazy {
 public:
  explicit Lazy(std::function<std::shared_ptr<const T>()> make) : make_(std::move(make)) {}

  const std::shared_ptr<const T>& Get() {
    std::call_once(once_, [&] { value_ = make_(); });
    return value_;
  }

 private:
  std::function<std::shared_ptr<const T>()> make_;
  std::once_flag once_;
  std::shared_ptr<const T> value_;
};

// A cache of the inputs of the latest case, so that consecutive cases with equal inputs share them.
// The cache is not thread-safe; the returned values are.
class InputCache {
 public:
  // Returns the inputs of the case, which are loaded when they are first used.
  std::shared_ptr<Lazy<Inputs>> Of(const Case& asked);

 private:
  std::string trace_key_, inputs_key_;
  std::shared_ptr<Lazy<Trace>> trace_;
  std::shared_ptr<Lazy<Inputs>> inputs_;
};

}  // namespace spillway

#endif  // SPILLWAY_EXPERIMENTS_RUN_INPUTS_H_
