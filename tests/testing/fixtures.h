// Small fixtures that many tests share: a device with round numbers, a cost model with given
// kernels, a builder of traces, and one call that runs a policy and verifies the report.

#ifndef SPILLWAY_TESTS_TESTING_FIXTURES_H_
#define SPILLWAY_TESTS_TESTING_FIXTURES_H_

#include <initializer_list>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "sim/core/cost_model.h"
#include "sim/core/device.h"
#include "sim/core/policy.h"
#include "sim/core/report.h"
#include "sim/runtime/runtime.h"
#include "traces/trace.h"

namespace spillway::testing {

// Returns a device that copies 1 byte per nanosecond in each direction, without latency or launch
// overhead, and has blocks of 1 byte. Times and offsets can be read off a drawing.
Device RoundDevice();
// Returns `RoundDevice()` with a peer GPU that has `size` bytes to use, over a link twice as fast.
Device DeviceWithPeer(Bytes size);

// A cost model that gives every slot the same time unless told otherwise. A copy takes 1 ns per
// byte.
class FixedCost final : public CostModel {
 public:
  explicit FixedCost(Duration time = Duration::Nanoseconds(10));

  // Sets the kernels of the slots with this signature. REQUIRES: `kernels` are sorted, fastest
  // first.
  void Set(const std::string& signature, std::vector<Kernel> kernels);

  std::vector<int64_t> Batches(const Op& op, size_t) const override { return {op.batch}; }
  std::span<const Kernel> Kernels(const Op& op, size_t slot, int64_t batch) const override;
  Duration CopyTime(Direction direction, Bytes size) const override;
  std::string Provenance() const override { return "fixed"; }

 private:
  std::vector<Kernel> default_;
  std::map<std::string, std::vector<Kernel>> kernels_;
};

// Builds traces op by op. `Tensor` adds a tensor; `Op` names tensors that were added before.
class TraceBuilder {
 public:
  TraceBuilder();

  TraceBuilder& Tensor(const std::string& name, TensorKind kind, int64_t bytes,
                       const std::string& alias_of = "");
  // Adds an op. It is recomputable iff `phase` is forward. It is a layer for itself unless `layer`
  // names another layer.
  TraceBuilder& Op(const std::string& name, Phase phase, std::initializer_list<std::string> inputs,
                   std::initializer_list<std::string> outputs, OpType type = OpType::kOther,
                   const std::string& layer = "");
  // Returns the trace. Throws `InputError` if it is invalid.
  Trace Build() const;

  TensorId Id(const std::string& name) const;

 private:
  Trace trace_;
};

struct RunResult {
  Report report;
  std::vector<std::string> violations;  // found by the independent checker
};

struct RunSettings {
  Bytes memory = Bytes::Unlimited();
  RuntimeOptions options = {};
  Device device = RoundDevice();
};

// Runs a policy on the simulator with a best-fit arena and checks the report.
RunResult RunSim(const Trace& trace, const CostModel& cost, Policy& policy,
                 const RunSettings& settings = {});

// Returns the timeline as text for golden tests, one command per line:
//   "    0     10 compute conv1.fwd" is start (ns), end (ns), stream, op or tensor
std::string TimelineText(const Trace& trace, const Report& report);

// Returns the decisions as text, one per line: "conv1.fwd offload x".
std::string DecisionText(const Trace& trace, const Report& report);

// Returns a chain x -> y1 -> y2 -> y3 of forward ops f1..f3, followed by backward ops b3..b1 that
// read the saved activations. All activations and gradients have 10 bytes; each op takes 10 ns.
Trace ChainTrace();

// Returns `ChainTrace` as a recorded step whose program carries decisions out. Autograd saves y1
// before f2, y2 before f3 and y3 before b3; backward takes y2 and y3 before b3, and y1 before b2.
// Hooks and moves take the host no time.
Trace HookedChain();

}  // namespace spillway::testing

#endif  // SPILLWAY_TESTS_TESTING_FIXTURES_H_
