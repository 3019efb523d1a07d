// Loads the trace, the device and the kernel times that a case names.
//
// Cases that differ in other keys, such as memory, allocator, policy and backend, share their
// inputs.

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
#include "experiments/run/data_files.h"
#include "experiments/run/prepared.h"
#include "sim/core/cost_model.h"
#include "sim/core/device.h"
#include "sim/core/report.h"
#include "traces/trace.h"

namespace spillway::lab {

// Returns the trace with the host's time of each recorded op replaced according to `host`; each op
// of a recording without a GPU counts as one operator. Ops without a recording do not change.
// REQUIRES: the host's times are still the recorded ones.
Trace WithHostTimes(Trace trace, const HostTimes& host);

// Returns the trace that the case names, with the changes that it asks for. Throws `InputError` for
// a bad trace file. Throws `UsageError` for an unknown network, or if the case asks for a preset or
// mode that the trace file does not have, or for a change that cannot be made.
Trace LoadTrace(const Case& asked);

// Returns the device that the case names, with the pools that it adds. Throws `UsageError` or
// `InputError` if their specifications, that of the allocator, the device file or the file of
// densities are invalid.
Device LoadMachine(const Case& asked);

// Returns the file of the device that the specification names.
InputFile DeviceFileOf(const std::string& specification);

// The trace, device and kernel times of a case.
//
// Results that several cases need are kept for later calls.
class Inputs {
 public:
  // Loads the device, the trace unless `trace` is given, and the kernel times unless `cost` is
  // given. Throws `UsageError` or `InputError`.
  explicit Inputs(const Case& asked, std::shared_ptr<const Trace> trace = nullptr,
                  std::unique_ptr<const CostModel> cost = nullptr);

  const std::shared_ptr<const Trace>& trace() const { return trace_; }
  const Device& device() const { return device_; }
  const std::shared_ptr<const CostModel>& cost() const { return cost_; }
  // The files that the inputs depend on.
  const std::vector<InputFile>& read() const { return read_; }

  // The cases of the next three functions have these inputs.

  // Returns the run of the case before trials decide anything. It has the memory, policy and
  // backend of the case, the arena of `AllocatorChoice::Undecided`, and compresses nothing.
  Draft DraftOf(const Case& asked) const;
  // Returns the report of the ideal run (`Ideal`) with the allocator of the case.
  const Report& IdealOf(const Case& asked) const;
  // Returns the device memory that the case gets. Throws `UsageError` if its budget names a policy
  // that cannot be made.
  Bytes MemoryOf(const Case& asked) const;

  // Returns `JointBound` for `memory` bytes. Computing it takes about a tenth of a second, longer
  // than a run.
  Duration JointBoundIn(Bytes memory) const;

 private:
  // Returns the draft of the case in all memory of the device.
  Draft DraftInAllMemory(const Case& asked) const;

  std::shared_ptr<const Trace> trace_;
  Device device_;
  std::shared_ptr<const CostModel> cost_;
  std::vector<InputFile> read_;
  mutable std::mutex ideal_mutex_, mutex_;
  mutable std::map<std::string, Report> ideals_;   // by the keys that `Ideal` depends on
  mutable std::map<std::string, Bytes> memories_;  // by these keys and the text of the budget
  mutable std::map<Bytes, Duration> bounds_;       // by the memory
};

// A case with its inputs.
struct LoadedCase {
  Case asked;
  std::shared_ptr<const Inputs> inputs;
};

// Returns the case with the values that its words stand for: the memory in bytes, and the source of
// the kernel times.
Case Resolved(const LoadedCase& loaded);
// Returns the files of the inputs, of densities and of the plugin that the case depends on.
std::vector<InputFile> FilesOf(const LoadedCase& loaded);

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

}  // namespace spillway::lab

#endif  // SPILLWAY_EXPERIMENTS_RUN_INPUTS_H_
