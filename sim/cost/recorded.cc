#include "sim/cost/recorded.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "sim/cost/collective.h"
#include "traces/base/error.h"

namespace spillway::sim {
namespace {

bool IsOne(const Device& device, const std::string& gpu) {
  return std::ranges::count(device.gpus, gpu) != 0;
}

// Returns the instructions that the multiprocessors issue per second, in a unit that all GPUs
// share. A multiprocessor issues instructions for 128 lanes in each cycle, and computes as many in
// fp32; on Volta, Turing and Ampere's A100, it computes half as many (CUDA C++ Programming Guide).
double IssueRate(const Device& device) {
  const std::string& capability = device.compute_capability;
  const bool half = capability == "8.0" || capability.starts_with("7.");
  return static_cast<double>(device.flops_per_second) * (half ? 2 : 1);
}

// Returns the time on a GPU whose roofline is `here` and which issues instructions `slower` times
// as slowly, of an op that took `time` where the roofline is `there`. What exceeds the roofline is
// neither memory's time nor the peak's.
Duration Scaled(Duration time, Duration here, Duration there, double slower) {
  const auto ps = [](Duration duration) { return static_cast<double>(duration.picoseconds()); };
  const double scaled = time > there ? ps(here) + ps(time - there) * slower
                                     : ps(time) * ps(here) / std::max(ps(there), 1.0);
  return Duration::Picoseconds(static_cast<int64_t>(std::min(scaled, ps(kLongestIteration))));
}

}  // namespace

RecordedCostModel::RecordedCostModel(const Recording& recording, const Device& device,
                                     const std::optional<Device>& recorded_on, std::string source)
    : here_(device), cluster_(device.cluster), timed_(!recording.device.empty()) {
  const std::string& gpu = recording.device;
  if (source.empty()) source = fmt::format("recorded on {}", gpu);
  if (!timed_) {
    provenance_ = here_.Provenance() + ", for the trace was recorded without a GPU";
  } else if (IsOne(device, gpu)) {
    provenance_ = fmt::format("{}, {}", source, recording.framework);
  } else if (recorded_on) {
    there_.emplace(*recorded_on);
    slower_ = IssueRate(*recorded_on) / IssueRate(device);
    provenance_ = fmt::format("{}, scaled by the rooflines of the two", source);
  } else {
    provenance_ = fmt::format("{}, for which there is no device file: as they were", source);
  }
}

std::vector<int64_t> RecordedCostModel::Batches(const Op& op, size_t) const { return {op.batch}; }

std::span<const Kernel> RecordedCostModel::Kernels(const Op& op, size_t slot, int64_t batch) const {
  SPILLWAY_CHECK(slot < op.slots.size());
  if (!op.recorded || op.slots.size() != 1 || batch != op.batch) {
    throw InputError(fmt::format("no recorded cost of op '{}' at batch {}", op.name, batch));
  }
  const RecordedCost& recorded = *op.recorded;
  Kernel kernel{"default", recorded.time, recorded.workspace};
  // An op without operations and traffic, such as a copy that a policy inserts, has the time of the
  // device that it runs on.
  const bool works = op.slots[0].flops != 0 || op.slots[0].traffic != Bytes(0);
  if (op.IsCollective()) {
    kernel.time = cluster_ ? CollectiveTime(*cluster_, op) : Duration();
  } else if (!timed_ || (there_ && works)) {
    const Duration here = here_.Kernels(op, 0, batch)[0].time;
    // In a recording without a GPU, only ops that a policy has inserted have a time.
    kernel.time = timed_
                      ? Scaled(recorded.time, here, there_->Kernels(op, 0, batch)[0].time, slower_)
                      : std::max(recorded.time, here);
  }
  const std::lock_guard lock(mutex_);
  const std::pair key(kernel.time, kernel.workspace);
  return {&known_.try_emplace(key, std::move(kernel)).first->second, 1};
}

Duration RecordedCostModel::CopyTime(Direction direction, Bytes size) const {
  return here_.CopyTime(direction, size);
}

}  // namespace spillway::sim
