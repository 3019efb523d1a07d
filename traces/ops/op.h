// An op of a trace: one layer's forward or backward step, or one parameter update.

#ifndef SPILLWAY_TRACES_OPS_OP_H_
#define SPILLWAY_TRACES_OPS_OP_H_

#include <cstddef>
#include <cstdint>
#include <limits>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "traces/base/units.h"
#include "traces/ops/data_type.h"
#include "traces/ops/op_type.h"

namespace spillway::traces {

// Indices into `Trace::tensors`, `Trace::ops` and `Trace::layers`.
enum class TensorId : uint32_t {};
enum class OpId : uint32_t {};
enum class LayerId : uint32_t {};

constexpr size_t Index(TensorId id) { return static_cast<size_t>(id); }
constexpr size_t Index(OpId id) { return static_cast<size_t>(id); }
constexpr size_t Index(LayerId id) { return static_cast<size_t>(id); }

// The number of streams on which a program runs its ops. Lane 0 is the one that computes.
inline constexpr size_t kMaxLanes = 5;

// A numeric property of an op, for example {"stride_h", 2}. Integers are exact up to 2^53.
struct Attribute {
  std::string name;
  double value = 0;

  bool operator==(const Attribute&) const = default;
};

// One library call inside an op, with algorithm candidates. The slots of an op run one after the
// other, so an op's workspace is the largest workspace of its slots.
struct Slot {
  std::string name;       // "fwd", "bwd_data", "bwd_filter"
  std::string signature;  // key of the cost table: operation and geometry, without the batch size
  int64_t flops = 0;      // a direct computation's; a multiply-add is two
  Bytes traffic;          // least device-memory traffic, with each operand read or written once
  Arithmetic arithmetic = Arithmetic::kFp32;  // its matrix products', if it has any

  bool operator==(const Slot&) const = default;
};

// The costs that were measured where an op of a framework's program ran.
struct RecordedCost {
  Duration time;  // the time of the op's kernels on the GPU
  // GPU time between the kernels and before the first, even if the host is ahead.
  Duration gap;
  Duration host;    // host time from the launch of the previous op to the launch of this op
  Bytes workspace;  // peak memory of the op in addition to its operands
  // Set if the program does other work when it runs the op again, such as several operators that
  // the op stands for.
  struct Again {
    Duration time;
    Duration host;  // time that the host takes to start it
    Bytes workspace;

    bool operator==(const Again&) const = default;
  };
  std::optional<Again> again{};

  bool operator==(const RecordedCost&) const = default;
};

struct Op {
  std::string name;  // unique in the trace, for example "conv1_1.fwd"
  LayerId layer{};
  OpType type = OpType::kOther;
  Phase phase = Phase::kForward;
  int64_t batch = 1;  // number of samples per execution; micro-batching splits it
  // A tensor that is updated in place (an accumulated gradient, a parameter in its update) is in
  // both lists. The order of operands is part of the contract of each op type; ops/op_table.h finds
  // an operand by its role.
  std::vector<TensorId> inputs;
  std::vector<TensorId> outputs;
  std::vector<TensorId> scratch;
  std::vector<Slot> slots;  // at least one
  std::vector<Attribute> attributes;
  bool recomputable = false;  // running it again with the same inputs gives the same outputs
  std::optional<RecordedCost> recorded{};  // set iff the trace is recorded
  uint8_t lane = 0;  // the stream of the program that runs the op, below `kMaxLanes`
  // The ops of other lanes that the program's stream waits for before it runs the op, ascending and
  // all before it. The op also waits for ops whose operands it shares.
  std::vector<OpId> after{};

  int64_t flops() const;
  Bytes traffic() const;

  std::optional<double> FindAttribute(std::string_view attribute) const;
  // These readers throw an `InputError` that names op and attribute if the attribute is missing.
  // `IntAttribute` also throws if the value has a fraction, is beyond 2^53 in magnitude, or is not
  // in [least, most].
  double NumberAttribute(std::string_view attribute) const;
  int64_t IntAttribute(std::string_view attribute) const;
  int64_t IntAttribute(std::string_view attribute, int64_t least,
                       int64_t most = std::numeric_limits<int32_t>::max()) const;
  // Returns true iff the op has the attribute and its value is not 0.
  bool Flag(std::string_view attribute) const;
  // Returns true iff the op communicates with other processes: it says how many `ranks` take part.
  bool IsCollective() const { return FindAttribute("ranks").has_value(); }
  // Returns true iff the op adds to outputs[output] instead of overwriting it. Such an output is a
  // gradient, or the output of a convolution.
  bool Accumulates(size_t output) const;

  bool operator==(const Op&) const = default;
};

}  // namespace spillway::traces

#endif  // SPILLWAY_TRACES_OPS_OP_H_
