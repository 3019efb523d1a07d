#include "traces/import/pytorch_step.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "traces/base/error.h"
#include "traces/import/joined_step.h"
#include "traces/import/operators.h"
#include "traces/logs/open_log.h"

namespace spillway::traces {
namespace {

using TensorRef = ExecutionTrace::TensorRef;
using Storage = StorageTable::Storage;
using Unit = JoinedStep::Unit;

class Importer {
 public:
  // Throws `InputError` if the two traces cannot be joined.
  Importer(const KinetoTrace& kineto, const ExecutionTrace& execution, const ImportOptions& options)
      : kineto_(kineto),
        execution_(execution),
        options_(options),
        step_(kineto, execution, options.kineto_file, options.execution_trace_file) {}

  ImportedStep Run() {
    MakeTrace();
    FillReport();
    return std::move(result_);
  }

 private:
  void MakeTrace() {
    Trace& trace = result_.trace;
    trace.name = fmt::format("{}:{}", options_.network, options_.batch);
    trace.network = options_.network;
    trace.batch = options_.batch;
    trace.preset = "recorded";
    trace.training = std::ranges::any_of(
        step_.units(), [](const Unit& unit) { return unit.phase != Phase::kForward; });
    trace.recording = {options_.framework,
                       !step_.has_gpu()         ? ""
                       : kineto_.device.empty() ? "unknown GPU"
                                                : kineto_.device,
                       Duration::Nanoseconds(step_.has_gpu() ? kineto_.end : 0),
                       options_.plain_step,
                       Bytes(step_.table().peak_allocated()),
                       Bytes(step_.table().peak_reserved())};
    FindRoles();
    MakeTensors();
    MakeOps();
    EndTensors();
    AddRest();
  }

  // How the units use a storage, by phase.
  struct StorageRole {
    std::string name;   // after the op that uses it first
    bool data = false;  // input data: written from no storage before a parameter is read
    std::optional<Phase> first_write;
    bool forward = false, backward = false, update = false;  // used in the phase
    bool updated = false;                                    // written in the update phase
  };

  void FindRoles() {
    roles_.resize(step_.storages().size());
    bool begun = false;
    for (size_t i = 0; i < step_.units().size(); ++i) {
      const Unit& unit = step_.units()[i];
      NameNew(unit, NameOf(i));
      bool reads = false;
      ForOperands(unit, [&](const TensorRef*, uint32_t storage, bool writes) {
        reads |= !writes && roles_[storage].first_write.has_value();
        begun |= !writes && step_.storages()[storage].begin == StorageTable::kBefore;
      });
      ForOperands(unit, [&](const TensorRef*, uint32_t storage, bool writes) {
        StorageRole& role = roles_[storage];
        if (!role.first_write && !begun && !reads) role.data = true;
        role.forward |= unit.phase == Phase::kForward;
        role.backward |= unit.phase == Phase::kBackward;
        role.update |= unit.phase == Phase::kUpdate;
        role.updated |= writes && unit.phase == Phase::kUpdate;
        if (!role.first_write) role.first_write = unit.phase;
      });
    }
  }
  // Returns a name such as "block/addmm.12".
  std::string NameOf(size_t number) const {
    const Unit& unit = step_.units()[number];
    const std::string_view block = unit.call == nullptr ? "" : unit.call->block;
    return fmt::format("{}{}{}.{}", block, block.empty() ? "" : "/", ShortName(unit), number);
  }

  // Names the storages that an op uses first. The first storage that it writes gets the op's name;
  // the others get the op's name with their index, such as "addmm.12.in0".
  void NameNew(const Unit& unit, const std::string& op) {
    size_t inputs = 0, outputs = 0;
    ForOperands(unit, [&](const TensorRef*, uint32_t storage, bool writes) {
      const size_t place = writes ? outputs++ : inputs++;
      std::string& name = roles_[storage].name;
      if (!name.empty()) return;
      name = writes && place == 0 ? op : fmt::format("{}.{}{}", op, writes ? "out" : "in", place);
    });
  }

  TensorKind KindOf(uint32_t number) const {
    const Storage& storage = step_.storages()[number];
    const StorageRole& role = roles_[number];
    if (storage.begin == StorageTable::kBefore) {
      if (storage.end != StorageTable::kAlways) return TensorKind::kInput;
      return role.forward || role.backward || !role.updated ? TensorKind::kParameter
                                                            : TensorKind::kOptimizerState;
    }
    if (role.data) return TensorKind::kInput;
    if (role.first_write == Phase::kForward) return TensorKind::kActivation;
    if (role.first_write == Phase::kBackward) {
      const bool stays = role.update || storage.end == StorageTable::kAlways;
      return stays ? TensorKind::kParameterGradient : TensorKind::kGradient;
    }
    return storage.end == StorageTable::kAlways ? TensorKind::kOptimizerState
                                                : TensorKind::kGradient;
  }

  void MakeTensors() {
    const auto& storages = step_.storages();
    roots_.assign(storages.size(), TensorId{});
    for (uint32_t i = 0; i < storages.size(); ++i) {
      if (!step_.used(i)) continue;
      roots_[i] = static_cast<TensorId>(result_.trace.tensors.size());
      Tensor& tensor = result_.trace.tensors.emplace_back();
      tensor.name = roles_[i].name;
      tensor.kind = KindOf(i);
      tensor.size = Bytes(storages[i].size);
      tensor.shape = {storages[i].size};  // in bytes, unless an operand covers the whole storage
    }
  }

  // Returns the tensor of an operand: its whole storage or a piece. `first` is true if nothing has
  // written the storage yet.
  TensorId TensorOf(const TensorRef* ref, uint32_t storage, bool first) {
    const TensorId root = roots_[storage];
    const int64_t size = step_.storages()[storage].size;
    if (ref == nullptr) return root;
    Tensor& whole = result_.trace.tensors[Index(root)];
    const int64_t length = ref->elements * ref->element_size;
    if (ref->begin() == 0 && length == size) {
      whole.shape = ref->shape;
      whole.dtype = ref->dtype;
    }
    // The first op to write a storage defines the whole, because its part need not be contiguous.
    if (first || (ref->begin() == 0 && length == size)) return root;
    // A part that is not contiguous, such as the columns of a matrix, covers as many bytes as it
    // has. A part that repeats elements ends with the storage.
    const int64_t offset = std::min(ref->begin(), size);
    const int64_t part = std::min(length, size - offset);
    if (part == size) return root;
    const auto [found, added] = parts_.try_emplace({storage, offset, part});
    if (added) {
      found->second = static_cast<TensorId>(result_.trace.tensors.size());
      Tensor tensor;
      tensor.name = fmt::format("{}[{}:{}]", whole.name, offset, offset + part);
      tensor.kind = whole.kind;
      tensor.shape = part == length ? ref->shape : std::vector<int64_t>{part};
      if (part == length) tensor.dtype = ref->dtype;
      tensor.size = Bytes(part);
      tensor.alias_of = root;
      tensor.offset = Bytes(offset);
      result_.trace.tensors.push_back(std::move(tensor));
    }
    return found->second;
  }

  static std::string_view ShortName(const Unit& unit) {
    if (unit.call == nullptr) return "kernel";
    std::string_view name = unit.call->node->name;
    if (const size_t colons = name.rfind("::"); colons != name.npos) name.remove_prefix(colons + 2);
    return name;
  }

  void MakeOps() {
    const Duration gap = Duration::Nanoseconds(step_.KernelGap());
    std::map<int64_t, LayerId> made_by;  // by sequence number of the autograd node made
    std::vector<bool> written(step_.storages().size());
    for (uint32_t i = 0; i < written.size(); ++i) {
      written[i] = step_.storages()[i].begin == StorageTable::kBefore;
    }
    int64_t before = -1;
    for (size_t i = 0; i < step_.units().size(); ++i) {
      const Unit& unit = step_.units()[i];
      Op op;
      op.type = unit.call == nullptr ? OpType::kOther : TypeOf(*unit.call->node);
      op.phase = unit.phase;
      op.batch = unit.phase == Phase::kUpdate ? 1 : options_.batch;
      op.name = NameOf(i);
      op.layer = LayerOf(unit, op, made_by);
      bool repeatable = unit.phase == Phase::kForward && unit.call != nullptr;
      Bytes traffic;
      std::vector<uint32_t> fresh;
      ForOperands(unit, [&](const TensorRef* ref, uint32_t storage, bool writes) {
        // If the first use of a storage is a read, an operator that was not recorded has written
        // it.
        writes |= !written[storage];
        const TensorId id = TensorOf(ref, storage, !written[storage]);
        traffic += result_.trace.tensor(id).size;
        auto& list = writes ? op.outputs : op.inputs;
        if (std::ranges::count(list, id) == 0) list.push_back(id);
        if (writes && written[storage]) repeatable = false;
        if (writes) fresh.push_back(storage);
      });
      for (const uint32_t storage : fresh) written[storage] = true;
      const bool makes_data = std::ranges::any_of(op.outputs, [&](TensorId id) {
        return result_.trace.tensor(id).kind == TensorKind::kInput;
      });
      op.recomputable = repeatable && !makes_data;
      Slot slot;
      slot.name = "op";
      slot.signature = SignatureOf(unit, traffic);
      slot.flops = unit.call == nullptr ? 0 : FlopsOf(*unit.call->node);
      slot.traffic = traffic;
      if (unit.call != nullptr) slot.arithmetic = ArithmeticOf(*unit.call->node, op.type);
      op.slots.push_back(std::move(slot));
      if (step_.has_gpu())
        op.attributes = {{"operators", static_cast<double>(step_.BegunIn(before, unit.launched))}};
      op.recorded = {
          Duration::Nanoseconds(unit.time), gap * unit.kernels,
          Duration::Nanoseconds(
              step_.has_gpu() ? std::max<int64_t>(unit.launched - std::max<int64_t>(before, 0), 0)
                              : 0),
          Bytes(unit.workspace)};
      before = std::max(before, unit.launched);
      result_.report.kernels += op.recorded->time;
      result_.trace.ops.push_back(std::move(op));
    }
  }

  // Returns the arithmetic of the operator's products, by the type of its first operand.
  Arithmetic ArithmeticOf(const ExecutionTrace::Node& node, OpType type) const {
    if (type == OpType::kOther || node.inputs.empty()) return Arithmetic::kFp32;
    switch (node.inputs[0].dtype) {
      case DataType::kBfloat16:
        return Arithmetic::kBf16;
      case DataType::kFloat16:
        return Arithmetic::kFp16;
      case DataType::kFloat8E4m3fn:
      case DataType::kFloat8E5m2:
        return Arithmetic::kFp8;
      case DataType::kFloat32:
        break;
      default:
        return Arithmetic::kFp32;
    }
    const bool tf32 = (type == OpType::kConvolution && options_.tf32_convolutions) ||
                      (type == OpType::kMatmul && options_.tf32_matmuls);
    return tf32 ? Arithmetic::kTf32 : Arithmetic::kFp32;
  }

  // Returns the layer of an op. A backward op belongs to the layer whose forward op made its
  // autograd node.
  LayerId LayerOf(const Unit& unit, const Op& op, std::map<int64_t, LayerId>& made_by) {
    const int64_t sequence = unit.call == nullptr ? -1 : unit.call->sequence;
    if (unit.phase == Phase::kBackward && sequence >= 0) {
      if (const auto found = made_by.find(sequence); found != made_by.end()) return found->second;
    }
    const auto layer = static_cast<LayerId>(result_.trace.layers.size());
    result_.trace.layers.push_back({op.name, op.type});
    // The last operator with a sequence number made the node.
    if (unit.phase == Phase::kForward && sequence >= 0) made_by[sequence] = layer;
    return layer;
  }

  // Returns a key that determines the op's cost by the roofline model.
  static std::string SignatureOf(const Unit& unit, Bytes traffic) {
    if (unit.call == nullptr) return "kernel";
    std::string signature = unit.call->node->name;
    size_t shown = 0;
    for (const TensorRef& input : unit.call->node->inputs) {
      if (++shown > 8) break;  // it may be a list of all parameters
      signature += fmt::format(" {}", fmt::join(input.shape, "x"));
    }
    return signature += fmt::format(" traffic={}", traffic.count());
  }

  // Sets `held_until` for each storage that PyTorch held beyond its last use.
  void EndTensors() {
    Trace& trace = result_.trace;
    std::vector<size_t> last_use(trace.tensors.size(), 0);
    for (size_t i = 0; i < trace.ops.size(); ++i) {
      for (const auto* list : {&trace.ops[i].inputs, &trace.ops[i].outputs}) {
        for (const TensorId id : *list) last_use[Index(trace.Root(id))] = i;
      }
    }
    const auto& storages = step_.storages();
    for (uint32_t i = 0; i < storages.size(); ++i) {
      if (!step_.used(i)) continue;
      Tensor& tensor = trace.tensors[Index(roots_[i])];
      if (tensor.kind == TensorKind::kParameter || tensor.kind == TensorKind::kOptimizerState) {
        continue;
      }
      // A storage that was released while the host prepared an op is not held during this op.
      const size_t launched = storages[i].end == StorageTable::kAlways
                                  ? trace.ops.size()
                                  : step_.LaunchedBy(storages[i].end);
      if (launched == 0 || launched - 1 <= last_use[Index(roots_[i])]) continue;
      tensor.held_until = static_cast<OpId>(launched - 1);
    }
  }

  // Adds a tensor for memory that was held throughout and that no operator uses, such as library
  // workspaces and buffers.
  void AddRest() {
    const int64_t rest = Unused();
    if (rest == 0) return;
    Tensor tensor;
    tensor.name = "unused";
    tensor.kind = TensorKind::kOptimizerState;
    tensor.shape = {rest};
    tensor.size = Bytes(rest);
    result_.trace.tensors.push_back(std::move(tensor));
  }

  int64_t Unused() const {
    int64_t rest = step_.table().UnnamedBefore();
    if (options_.requested_before) {
      rest -=
          std::max<int64_t>(step_.table().held_before() - options_.requested_before->count(), 0);
    }
    return std::max<int64_t>(rest, 0);
  }

  void FillReport() {
    ImportReport& report = result_.report;
    report.nodes = std::ssize(execution_.nodes);
    report.broken_nodes = execution_.broken;
    report.broken_events = kineto_.broken;
    report.operators = std::ssize(kineto_.operators);
    report.joined = step_.joined();
    report.unjoined = Duration::Nanoseconds(step_.unjoined());
    report.peak_allocated = Bytes(step_.table().peak_allocated());
    report.unnamed_before = Bytes(Unused());
    report.unnamed = Bytes(step_.unnamed());
    report.unplaced = Bytes(step_.table().unplaced());
    for (uint32_t i = 0; i < roles_.size(); ++i) {
      const bool activation = step_.used(i) && roles_[i].first_write == Phase::kForward &&
                              step_.storages()[i].begin != StorageTable::kBefore;
      if (activation && roles_[i].backward) ++report.saved;
    }
  }

  const KinetoTrace& kineto_;
  const ExecutionTrace& execution_;
  const ImportOptions& options_;
  const JoinedStep step_;
  std::vector<StorageRole> roles_;                                    // by storage
  std::vector<TensorId> roots_;                                       // by storage
  std::map<std::tuple<uint32_t, int64_t, int64_t>, TensorId> parts_;  // by storage, offset, size
  ImportedStep result_;
};

}  // namespace

ImportedStep ImportStep(const KinetoTrace& kineto, const ExecutionTrace& execution,
                        const ImportOptions& options) {
  ImportedStep step = Importer(kineto, execution, options).Run();
  step.trace.Validate();
  return step;
}

int64_t RequestsOf(const KinetoTrace& kineto) {
  return std::ranges::count_if(kineto.memory, [](const KinetoTrace::Memory& memory) {
    return memory.device >= 0 && memory.bytes > 0;
  });
}

SnapshotPeaks PeaksOf(const std::filesystem::path& snapshot, const KinetoTrace& kineto) {
  const int64_t requests = RequestsOf(kineto);
  std::optional<int> device;
  for (const auto& memory : kineto.memory) {
    if (memory.device >= 0) device = static_cast<int>(memory.device);
  }
  const auto log = OpenMemoryLog(snapshot, device);
  int64_t total = 0;
  log->Walk([&](const MemoryEvent& event) {
    total += event.kind == MemoryEvent::Kind::kAllocate ? 1 : 0;
    return true;
  });
  if (total < requests) {
    throw InputError(fmt::format(
        "{}: {} requests, fewer than the {} of one profiled step: another program, or too few "
        "events were kept",
        snapshot.string(), total, requests));
  }
  SnapshotPeaks peaks;
  Bytes held, reserved;
  std::unordered_map<uint32_t, Bytes> sizes;
  for (const StartBlock& block : log->start().blocks) {
    sizes[block.block] = block.size;
    held += block.size;
  }
  for (const StartSegment& segment : log->start().segments) reserved += segment.size;
  peaks.reserved = reserved;
  int64_t seen = 0;
  log->Walk([&](const MemoryEvent& event) {
    switch (event.kind) {
      case MemoryEvent::Kind::kAllocate:
        sizes[event.block] = event.size;
        if (seen == total - requests) peaks.held_before_last = held;
        held += event.size;
        if (++seen > total - requests) {
          peaks.last_requested = std::max(peaks.last_requested, held);
        }
        break;
      case MemoryEvent::Kind::kFree:
        held -= std::exchange(sizes[event.block], Bytes());
        break;
      case MemoryEvent::Kind::kSegmentAllocate:
        reserved += event.size;
        peaks.reserved = std::max(peaks.reserved, reserved);
        break;
      case MemoryEvent::Kind::kSegmentFree:
        reserved -= event.size;
        break;
      case MemoryEvent::Kind::kFailed:
      case MemoryEvent::Kind::kEmptyCache:
        break;
    }
    return true;
  });
  return peaks;
}

}  // namespace spillway::traces