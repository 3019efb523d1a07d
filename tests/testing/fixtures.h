// Small things that many tests share: a device with round numbers, a cost model with given kernels,
// a builder of traces, and one call that runs a policy and verifies the report.

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

// 1 byte per nanosecond on each link, no latency, no launch overhead, blocks of 1 byte: times and
// offsets can be read off a drawing.
Device RoundDevice();
// The same with another GPU beside it that has so many bytes to use, over a link twice as fast.
Device DeviceWithPeer(Bytes size);

// Serves the same time for every slot unless told otherwise; a copy takes 1 ns per byte.
class FixedCost final : public CostModel {
 public:
  explicit FixedCost(Duration time = Duration::Nanoseconds(10));

  // Kernels of the slot with this signature, fastest first.
  void Set(const std::string& signature, std::vector<Kernel> kernels);

  std::vector<int64_t> Batches(const Op& op, size_t) const override { return {op.batch}; }
  std::span<const Kernel> Kernels(const Op& op, size_t slot, int64_t batch) const override;
  Duration CopyTime(Direction direction, Bytes size) const override;
  std::string Provenance() const override { return "fixed"; }

 private:
  std::vector<Kernel> default_;
  std::map<std::string, std::vector<Kernel>> kernels_;
};

// Builds traces op by op, by tensor names. A tensor appears with its first mention in `Tensor`.
class TraceBuilder {
 public:
  TraceBuilder();

  TraceBuilder& Tensor(const std::string& name, TensorKind kind, int64_t bytes,
                       const std::string& alias_of = "");
  // Forward ops are recomputable. Each op is a layer of its own unless `layer` names an earlier
  // one.
  TraceBuilder& Op(const std::string& name, Phase phase, std::initializer_list<std::string> inputs,
                   std::initializer_list<std::string> outputs, OpType type = OpType::kOther,
                   const std::string& layer = "");
  // Validates.
  Trace Build() const;

  TensorId Id(const std::string& name) const;

 private:
  Trace trace_;
};

struct RunResult {
  Report report;
  std::vector<std::string> violations;  // of the independent checker
};

struct RunSettings {
  Bytes memory = Bytes::Unlimited();
  RuntimeOptions options = {};
  Device device = RoundDevice();
};

// Runs a policy on the simulator with a best-fit arena and checks the report.
RunResult RunSim(const Trace& trace, const CostModel& cost, Policy& policy,
                 const RunSettings& settings = {});

// The timeline as text, one command per line, for golden tests:
//   "    0     10 compute conv1.fwd" is start, end (ns), stream, what
std::string TimelineText(const Trace& trace, const Report& report);

// The decisions as text, one per line: "conv1.fwd offload x".
std::string DecisionText(const Trace& trace, const Report& report);

// A chain x -> y1 -> y2 -> y3 of forward ops f1..f3, each layer saved for backward ops b3..b1. All
// activations and gradients have 10 bytes, each op takes 10 ns.
Trace ChainTrace();

}  // namespace spillway::testing

#endif  // SPILLWAY_TESTS_TESTING_FIXTURES_H_
