// A plugin with two policies that fail at a place of the caller's choice: `throws` with exceptions
// and by ending or holding up its process, `lies` by breaking the rules of the interface.

#include <csignal>
#include <cstdlib>
#include <stdexcept>
#include <string>
#include <utility>

#include "policies/plugin/plugin.h"
#include "policies/registry.h"
#include "sim/core/policy.h"
#include "sim/core/report.h"
#include "traces/base/error.h"
#include "traces/base/params.h"

namespace {

using spillway::sim::PolicyContext;
using spillway::traces::OpId;
using spillway::traces::TensorId;

// Only this plugin knows this type, whose code is gone when the plugin is unloaded.
class PrivateError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

class Throws final : public spillway::sim::Policy {
 public:
  Throws(std::string hook, std::string what) : hook_(std::move(hook)), what_(std::move(what)) {}

  spillway::sim::Preparation Prepare(const spillway::traces::Trace&,
                                     const spillway::sim::Device& device,
                                     const spillway::sim::CostModel&,
                                     const spillway::sim::TrialRun&, const std::string&) override {
    At("Prepare");
    return {device.memory};
  }
  bool LivesOutside(const spillway::traces::Trace&, spillway::traces::TensorId) override {
    At("LivesOutside");
    return false;
  }
  void Plan(PolicyContext&) override { At("Plan"); }
  void BeforeOp(PolicyContext&, OpId) override { At("BeforeOp"); }
  spillway::sim::KernelPlan ChooseKernels(PolicyContext&, OpId) override {
    At("ChooseKernels");
    return {};
  }
  void BeforeLaunch(PolicyContext&, OpId) override { At("BeforeLaunch"); }
  void AfterOp(PolicyContext&, OpId) override { At("AfterOp"); }
  spillway::sim::Hint PlacementHint(const PolicyContext&, TensorId) override {
    At("PlacementHint");
    return spillway::sim::Hint::kLow;
  }
  bool OnAllocFailure(PolicyContext&, spillway::traces::Bytes) override {
    At("OnAllocFailure");
    return false;
  }
  std::string ExportPlan() const override {
    At("ExportPlan");
    return {};
  }

 private:
  void At(const char* hook) const {
    if (hook_ != hook) return;
    if (what_ == "number") throw 42;
    if (what_ == "policy-error") throw spillway::sim::PolicyError("my own words");
    if (what_ == "crash") std::raise(SIGSEGV);
    if (what_ == "abort") std::abort();
    if (what_ == "stack") Deeper(1);
    if (what_ == "kill") std::raise(SIGKILL);
    if (what_ == "exit") std::exit(0);
    for (volatile bool on = what_ == "loop"; on;) {
    }
    throw PrivateError(what_ == "colour" ? "\x1b[31mred\x1b[0m" : "boom");
  }
  // Exhausts the stack.
  static int Deeper(int depth) {
    volatile char room[4096] = {};
    room[depth % 4096] = 1;
    return depth == 0 ? 0 : Deeper(depth + 1) + room[0];
  }

  const std::string hook_;
  const std::string what_;
};

class Lies final : public spillway::sim::Policy {
 public:
  explicit Lies(std::string how) : how_(std::move(how)) {}

  spillway::sim::Preparation Prepare(const spillway::traces::Trace& trace,
                                     const spillway::sim::Device& device,
                                     const spillway::sim::CostModel&,
                                     const spillway::sim::TrialRun& trial,
                                     const std::string&) override {
    if (how_ == "itself") trial(*this, device.memory);
    if (how_ == "memory") return {device.memory + spillway::traces::Bytes(1)};
    if (how_ != "trace") return {device.memory};
    spillway::traces::Trace broken = trace;
    broken.ops.front().slots.clear();
    return {device.memory, broken};
  }
  // "reserve" asks for far more memory than any device has. A run that does not fit is no error.
  void Plan(PolicyContext& context) override {
    if (how_ == "op") {
      const auto beyond = static_cast<OpId>(context.trace().ops.size());
      context.ReserveWorkspaceFor(beyond, spillway::traces::Bytes(1));
    }
    if (how_ == "reserve") context.ReserveWorkspace(spillway::traces::Bytes::GiB(1 << 20));
  }
  void AfterOp(PolicyContext& context, OpId) override {
    if (how_ == "late") context.Reserve({}, spillway::traces::Bytes(0));
    if (how_ == "tensor") context.Offload(static_cast<TensorId>(context.trace().tensors.size()));
  }
  bool OnAllocFailure(PolicyContext&, spillway::traces::Bytes) override { return how_ == "room"; }

 private:
  const std::string how_;
};

std::unique_ptr<spillway::sim::Policy> MakeThrows(spillway::traces::Params& params) {
  std::string hook = params.Choice(
      "hook", "Plan",
      {"Prepare", "LivesOutside", "Plan", "BeforeOp", "ChooseKernels", "BeforeLaunch", "AfterOp",
       "PlacementHint", "OnAllocFailure", "ExportPlan", "factory", "no-policy"},
      "where it throws");
  std::string what = params.Choice("what", "exception",
                                   {"exception", "number", "policy-error", "colour", "crash",
                                    "abort", "stack", "kill", "exit", "loop"},
                                   "what it throws, or how it ends");
  if (hook == "factory" && what == "crash") std::abort();
  if (hook == "factory") throw PrivateError("boom");
  if (hook == "no-policy") return nullptr;
  return std::make_unique<Throws>(std::move(hook), std::move(what));
}

std::unique_ptr<spillway::sim::Policy> MakeLies(spillway::traces::Params& params) {
  return std::make_unique<Lies>(params.Choice(
      "how", "tensor", {"tensor", "room", "reserve", "trace", "late", "itself", "memory", "op"},
      "which rule it breaks"));
}

void Register(spillway::policies::PolicyRegistry& registry) {
  registry.Add("throws", "throws in the hook of your choice", MakeThrows);
  registry.Add("lies", "breaks the rule of your choice", MakeLies);
}

constexpr spillway::policies::PolicyPlugin kPlugin{.register_policies = Register};

}  // namespace

const spillway::policies::PolicyPlugin* SpillwayPolicyPlugin() { return &kPlugin; }
