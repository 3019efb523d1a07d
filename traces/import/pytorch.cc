#include "traces/import/pytorch.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <set>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "traces/base/error.h"
#include "traces/import/operators.h"
#include "traces/import/storages.h"
#include "traces/logs/open_log.h"

namespace spillway {
namespace {

using Node = ExecutionTrace::Node;
using TensorRef = ExecutionTrace::TensorRef;
using Storage = StorageTable::Storage;

constexpr uint32_t kNone = StorageTable::kNone;
constexpr std::string_view kBlock = "block: ";  // of a range that names a block of the model
// With less in common the files are of different runs.
constexpr double kLeastJoined = 0.5;
// Behind the end of a launch by so much, a kernel has waited for the GPU and not for the host.
constexpr int64_t kAhead = 5000;

// Where in the program a node runs.
enum class Where : uint8_t { kProgram, kBackward, kUpdate };

// A node with what is known of it from all sides.
struct Call {
  const Node* node = nullptr;
  const KinetoTrace::Operator* profiled = nullptr;
  const Call* parent = nullptr;
  Where where = Where::kProgram;
  int64_t sequence = -1;  // of the autograd node that it makes, or runs for
  std::string_view block;
  bool leaf = true;
  bool launches = false;
  StorageTable::Operands operands;
};

// What becomes an op.
struct Unit {
  const Call* call = nullptr;  // nullptr: kernels that no operator launched
  int64_t launched = 0;        // when the host had launched its first kernel
  int64_t time = 0, kernels = 0;
  Phase phase = Phase::kForward;
  std::vector<uint32_t> extra;  // storages given out while it ran that it leaves behind
  int64_t workspace = 0;
};

class Importer {
 public:
  Importer(const KinetoTrace& kineto, const ExecutionTrace& execution, const ImportOptions& options)
      : kineto_(kineto),
        execution_(execution),
        options_(options),
        gpu_(FindGpu()),
        storages_(kineto.memory, gpu_) {}

  ImportedStep Run() {
    JoinNodes();
    JoinStorages();
    MakeUnits();
    SetPhases();
    PlaceStorages();
    MakeTrace();
    FillReport();
    return std::move(result_);
  }

 private:
  [[noreturn]] void Fail(const std::string& what) const { throw InputError(what); }

  // Whether there is a GPU. Throws if there are several.
  bool FindGpu() const {
    std::set<int64_t> devices;
    for (const auto& activity : kineto_.activities) devices.insert(activity.device);
    for (const auto& memory : kineto_.memory) {
      if (memory.device >= 0) devices.insert(memory.device);
    }
    if (devices.size() > 1) {
      Fail(fmt::format("{}: activities of {} GPUs, expected one: record one process for each GPU",
                       options_.kineto_file, devices.size()));
    }
    if (std::ranges::none_of(kineto_.memory, [&](const auto& memory) {
          return (memory.device >= 0) == !devices.empty();
        })) {
      Fail(fmt::format("{}: no memory events; record with profile_memory=True",
                       options_.kineto_file));
    }
    return !devices.empty();
  }

  // --- Operators

  void JoinNodes() {
    std::unordered_map<int64_t, const KinetoTrace::Operator*> by_record;
    for (const auto& op : kineto_.operators) {
      if (op.record != 0) by_record.emplace(op.record, &op);
    }
    std::unordered_map<int64_t, size_t> by_id;
    calls_.reserve(execution_.nodes.size());
    for (const Node& node : execution_.nodes) {
      Call& call = calls_.emplace_back();
      call.node = &node;
      call.sequence = node.sequence;
      by_id.emplace(node.id, calls_.size() - 1);
      // An operator is one node, the first that has its number and name.
      const auto found = by_record.find(node.record);
      if (found == by_record.end() || found->second->name != node.name) continue;
      call.profiled = found->second;
      by_record.erase(found);
      by_external_.emplace(call.profiled->external_id, &call);
      ++result_.report.joined;
    }
    const auto known = static_cast<double>(kineto_.operators.size());
    if (static_cast<double>(result_.report.joined) < kLeastJoined * known) {
      Fail(fmt::format("{} and {} are of different runs: {} of {} operators are in both",
                       options_.kineto_file, options_.execution_trace_file, result_.report.joined,
                       kineto_.operators.size()));
    }
    // A parent has the lower number, so that it is done first.
    for (Call& call : calls_) {
      const auto found = by_id.find(call.node->parent);
      if (found != by_id.end() && calls_[found->second].node->id < call.node->id) {
        Call& parent = calls_[found->second];
        call.parent = &parent;
        call.where = parent.where;
        call.block = parent.block;
        if (call.sequence < 0) call.sequence = parent.sequence;
        if (call.profiled != nullptr) parent.leaf = false;
        // The engine's function gets its number from the node that it evaluates.
        if (parent.sequence < 0 && IsEngine(parent)) parent.sequence = call.node->sequence;
      }
      if (IsEngine(call)) call.where = Where::kBackward;
      if (call.node->name.starts_with("Optimizer.step")) call.where = Where::kUpdate;
      if (call.node->name.starts_with(kBlock)) {
        call.block = std::string_view(call.node->name).substr(kBlock.size());
      }
    }
  }

  static bool IsEngine(const Call& call) {
    return call.node->name.starts_with("autograd::engine::evaluate_function");
  }
  // Ranges of the program and functions of the engine are no operators.
  static bool IsOperator(const Call& call) {
    return call.profiled != nullptr && !IsEngine(call) &&
           !call.node->name.starts_with("Optimizer.") && !call.node->name.starts_with(kBlock);
  }

  void JoinStorages() {
    std::vector<Call*> order;
    for (Call& call : calls_) {
      if (call.profiled != nullptr) order.push_back(&call);
    }
    std::ranges::stable_sort(order, {}, [](const Call* call) {
      return std::pair(call->profiled->end, -call->profiled->begin);  // the inner before the outer
    });
    for (Call* const call : order) {
      const auto& op = *call->profiled;
      call->operands = storages_.Join(*call->node, op.begin, op.end, op.thread);
    }
    std::vector<int64_t> last_use(storages_.storages().size(), StorageTable::kBefore);
    for (const Call* const call : order) {
      for (const auto* list : {&call->operands.inputs, &call->operands.outputs}) {
        for (const uint32_t storage : *list) {
          if (storage == kNone || OnlyAllocates(*call->node)) continue;
          last_use[storage] = std::max(last_use[storage], call->profiled->end);
        }
      }
    }
    storages_.EndFormer(last_use);
  }

  // --- Ops

  // Whether an operator without a kernel of its own does something, where nothing tells.
  bool Computes(const Call& call) const {
    if (!call.leaf || !IsOperator(call) || OnlyAllocates(*call.node)) return false;
    const auto& inputs = call.operands.inputs;
    for (size_t i = 0; i < inputs.size(); ++i) {
      if (inputs[i] != kNone && Writes(*call.node, call.node->inputs[i].argument)) return true;
    }
    // A view's result is what it was given.
    return std::ranges::any_of(call.operands.outputs, [&](uint32_t output) {
      return output != kNone && std::ranges::count(inputs, output) == 0;
    });
  }

  void MakeUnits() {
    for (const auto& activity : kineto_.activities) {
      if (const auto found = by_external_.find(activity.external_id); found != by_external_.end()) {
        found->second->launches = true;
      }
    }
    std::unordered_map<const Call*, size_t> of_call;
    for (const auto& activity : kineto_.activities) {
      const auto found = by_external_.find(activity.external_id);
      const Call* call = found == by_external_.end() ? nullptr : found->second;
      // What an operator has others launch for it belongs to it, if it launches something itself.
      const Call* outermost = call != nullptr && IsOperator(*call) ? call : nullptr;
      for (const Call* at = call; at != nullptr; at = at->parent) {
        if (at->launches && IsOperator(*at)) outermost = at;
      }
      size_t unit = units_.size();
      if (outermost != nullptr) unit = of_call.emplace(outermost, unit).first->second;
      if (unit == units_.size()) {
        Unit& made = units_.emplace_back();
        made.call = outermost;
        made.launched = LaunchedAt(activity, call);
      }
      Unit& of = units_[unit];
      of.launched = std::min(of.launched, LaunchedAt(activity, call));
      of.time += activity.end - activity.begin;
      ++of.kernels;
      if (outermost == nullptr) unjoined_ += activity.end - activity.begin;
    }
    if (!gpu_) {
      for (const Call& call : calls_) {
        if (!Computes(call)) continue;
        Unit& made = units_.emplace_back();
        made.call = &call;
        made.launched = call.profiled->end;
      }
    }
    if (units_.empty()) {
      Fail(fmt::format("{}: no operator does anything", options_.execution_trace_file));
    }
    std::ranges::stable_sort(units_, {}, &Unit::launched);
  }

  // When the host had launched an activity.
  int64_t LaunchedAt(const KinetoTrace::Activity& activity, const Call* call) const {
    const auto found = std::ranges::lower_bound(kineto_.launches, activity.correlation, {},
                                                &KinetoTrace::Launch::correlation);
    if (found != kineto_.launches.end() && found->correlation == activity.correlation) {
      return found->end;
    }
    return call != nullptr ? call->profiled->begin : activity.begin;
  }

  // What is neither the engine's nor the optimizer's is forward, and behind the last of the
  // engine's part of the update.
  void SetPhases() {
    size_t end_backward = 0;
    for (size_t i = 0; i < units_.size(); ++i) {
      if (units_[i].call != nullptr && units_[i].call->where == Where::kBackward) {
        end_backward = i + 1;
      }
    }
    Phase last = Phase::kForward;
    for (size_t i = 0; i < units_.size(); ++i) {
      Unit& unit = units_[i];
      if (unit.call != nullptr) {
        last = unit.call->where == Where::kBackward ? Phase::kBackward
               : unit.call->where == Where::kUpdate || (end_backward > 0 && i >= end_backward)
                   ? Phase::kUpdate
                   : Phase::kForward;
      }
      unit.phase = last;
    }
  }

  // The number of units that the host had launched at a time.
  size_t LaunchedBy(int64_t time) const {
    return static_cast<size_t>(std::ranges::upper_bound(units_, time, {}, &Unit::launched) -
                               units_.begin());
  }

  // Gives what no unit names a place: as something that a unit leaves behind, or its workspace.
  void PlaceStorages() {
    const auto& storages = storages_.storages();
    used_.assign(storages.size(), false);
    for (const Unit& unit : units_) {
      if (unit.call == nullptr) continue;
      for (const auto* list : {&unit.call->operands.inputs, &unit.call->operands.outputs}) {
        for (const uint32_t storage : *list) {
          if (storage != kNone) used_[storage] = true;
        }
      }
    }
    std::vector<std::vector<std::pair<int64_t, int64_t>>> workspaces(units_.size());
    for (uint32_t i = 0; i < storages.size(); ++i) {
      const Storage& storage = storages[i];
      if (used_[i] || storage.begin == StorageTable::kBefore || storage.block == 0) continue;
      // The unit that runs then, or the next.
      const size_t unit = std::min(UnitAt(storage.begin), units_.size() - 1);
      const bool ends_with_it = storage.end <= EndOf(unit) || storage.end <= storage.begin;
      if (ends_with_it) {
        workspaces[unit].push_back({storage.begin, storage.block});
        workspaces[unit].push_back({storage.end, -storage.block});
        continue;
      }
      units_[unit].extra.push_back(i);
      used_[i] = true;
      unnamed_ += storage.block;
    }
    for (size_t i = 0; i < units_.size(); ++i) {
      std::ranges::sort(workspaces[i]);  // what ends is given back before the next is given out
      int64_t held = 0;
      for (const auto& [time, bytes] : workspaces[i]) {
        held += bytes;
        units_[i].workspace = std::max(units_[i].workspace, held);
      }
    }
  }

  // The first unit that ends after a time on the host.
  size_t UnitAt(int64_t time) const {
    size_t unit = LaunchedBy(time);
    while (unit > 0 && EndOf(unit - 1) >= time) --unit;
    return unit;
  }
  int64_t EndOf(size_t unit) const {
    const Call* const call = units_[unit].call;
    return call == nullptr ? units_[unit].launched
                           : std::max(call->profiled->end, units_[unit].launched);
  }

  // --- The trace

  void MakeTrace() {
    Trace& trace = result_.trace;
    trace.name = fmt::format("{}:{}", options_.network, options_.batch);
    trace.network = options_.network;
    trace.batch = options_.batch;
    trace.preset = "recorded";
    trace.training =
        std::ranges::any_of(units_, [](const Unit& unit) { return unit.phase != Phase::kForward; });
    trace.recording = {options_.framework,
                       !gpu_                    ? ""
                       : kineto_.device.empty() ? "unknown GPU"
                                                : kineto_.device,
                       Duration::Nanoseconds(gpu_ ? kineto_.end : 0),
                       options_.plain_step,
                       Bytes(storages_.peak_allocated()),
                       Bytes(storages_.peak_reserved())};
    FindRoles();
    MakeTensors();
    MakeOps();
    EndTensors();
    AddRest();
  }

  // Who writes and reads each storage, by phase.
  struct StorageRole {
    std::string name;   // after the op that has it first
    bool data = false;  // comes from outside: made from nothing before a parameter is read
    std::optional<Phase> first_write;
    bool forward = false, backward = false, update = false;  // is used there
    bool updated = false;                                    // is written in an update
  };

  void FindRoles() {
    roles_.resize(storages_.storages().size());
    bool begun = false;
    for (size_t i = 0; i < units_.size(); ++i) {
      const Unit& unit = units_[i];
      NameNew(unit, NameOf(i));
      bool reads = false;
      ForOperands(unit, [&](const TensorRef*, uint32_t storage, bool writes) {
        reads |= !writes && roles_[storage].first_write.has_value();
        begun |= !writes && storages_.storages()[storage].begin == StorageTable::kBefore;
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

  // Calls `visit(ref, storage, writes)` for each operand that lies in a storage; inputs that are
  // written too come as both. `ref` is nullptr for what a unit leaves behind.
  template <typename Visit>
  static void ForOperands(const Unit& unit, const Visit& visit) {
    if (unit.call != nullptr) {
      const Node& node = *unit.call->node;
      const StorageTable::Operands& operands = unit.call->operands;
      for (size_t i = 0; i < operands.inputs.size(); ++i) {
        if (operands.inputs[i] == kNone) continue;
        visit(&node.inputs[i], operands.inputs[i], false);
        if (Writes(node, node.inputs[i].argument)) {
          visit(&node.inputs[i], operands.inputs[i], true);
        }
      }
      for (size_t i = 0; i < operands.outputs.size(); ++i) {
        const uint32_t storage = operands.outputs[i];
        // What is put out of what came in is a view, or was written as an input.
        if (storage == kNone || std::ranges::count(operands.inputs, storage) != 0) continue;
        visit(&node.outputs[i], storage, true);
      }
    }
    for (const uint32_t storage : unit.extra) visit(nullptr, storage, true);
  }

  // "block/addmm.12"
  std::string NameOf(size_t number) const {
    const Unit& unit = units_[number];
    const std::string_view block = unit.call == nullptr ? "" : unit.call->block;
    return fmt::format("{}{}{}.{}", block, block.empty() ? "" : "/", ShortName(unit), number);
  }

  // What an op is the first to write is called like it, what it is the first to read "addmm.12.in0"
  // by its place.
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
    const Storage& storage = storages_.storages()[number];
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
    const auto& storages = storages_.storages();
    roots_.assign(storages.size(), TensorId{});
    for (uint32_t i = 0; i < storages.size(); ++i) {
      if (!used_[i]) continue;
      roots_[i] = static_cast<TensorId>(result_.trace.tensors.size());
      Tensor& tensor = result_.trace.tensors.emplace_back();
      tensor.name = roles_[i].name;
      tensor.kind = KindOf(i);
      tensor.size = Bytes(storages[i].size);
      tensor.shape = {storages[i].size};  // in bytes, where no operand is all of it
    }
  }

  // The tensor of an operand: its storage, or a part of it. `first`: nothing has written it yet.
  TensorId TensorOf(const TensorRef* ref, uint32_t storage, bool first) {
    const TensorId root = roots_[storage];
    const int64_t size = storages_.storages()[storage].size;
    if (ref == nullptr) return root;
    Tensor& whole = result_.trace.tensors[Index(root)];
    const int64_t length = ref->elements * ref->element_size;
    if (ref->begin() == 0 && length == size) whole.shape = ref->shape;
    // Of what has not been written the first to write defines all: its part need not lie in one
    // piece.
    if (first || (ref->begin() == 0 && length == size)) return root;
    // Parts that do not lie in one piece, as the columns of a matrix, reach as far as they have
    // bytes; those that repeat what there is have no more than that.
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
    const Duration gap = Duration::Nanoseconds(KernelGap());
    std::map<int64_t, LayerId> made_by;  // the layer that made an autograd node
    std::vector<bool> written(storages_.storages().size());
    for (uint32_t i = 0; i < written.size(); ++i) {
      written[i] = storages_.storages()[i].begin == StorageTable::kBefore;
    }
    int64_t before = -1;
    for (size_t i = 0; i < units_.size(); ++i) {
      const Unit& unit = units_[i];
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
        // What is read first has been written by something that nobody saw.
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
      slot.signature = SignatureOf(unit);
      slot.flops = unit.call == nullptr ? 0 : FlopsOf(*unit.call->node);
      slot.traffic = traffic;
      op.slots.push_back(std::move(slot));
      if (gpu_)
        op.attributes = {{"operators", static_cast<double>(BegunIn(before, unit.launched))}};
      op.recorded = {
          Duration::Nanoseconds(unit.time), gap * unit.kernels,
          Duration::Nanoseconds(
              gpu_ ? std::max<int64_t>(unit.launched - std::max<int64_t>(before, 0), 0) : 0),
          Bytes(unit.workspace)};
      before = std::max(before, unit.launched);
      result_.report.kernels += op.recorded->time;
      result_.trace.ops.push_back(std::move(op));
    }
  }

  // The operators that began in (from, to].
  int64_t BegunIn(int64_t from, int64_t to) const {
    const auto behind = [&](int64_t time) {
      return std::ranges::upper_bound(kineto_.operators, time, {}, &KinetoTrace::Operator::begin);
    };
    return std::max<int64_t>(behind(to) - behind(from), 0);
  }

  // A backward op is of the layer whose forward op made its autograd node.
  LayerId LayerOf(const Unit& unit, const Op& op, std::map<int64_t, LayerId>& made_by) {
    const int64_t sequence = unit.call == nullptr ? -1 : unit.call->sequence;
    if (unit.phase == Phase::kBackward && sequence >= 0) {
      if (const auto found = made_by.find(sequence); found != made_by.end()) return found->second;
    }
    const auto layer = static_cast<LayerId>(result_.trace.layers.size());
    result_.trace.layers.push_back({op.name, op.type});
    // The last operator with a number is the one that made the node.
    if (unit.phase == Phase::kForward && sequence >= 0) made_by[sequence] = layer;
    return layer;
  }

  static std::string SignatureOf(const Unit& unit) {
    if (unit.call == nullptr) return "kernel";
    std::string signature = unit.call->node->name;
    size_t shown = 0;
    for (const TensorRef& input : unit.call->node->inputs) {
      if (++shown > 8) break;  // of a list of all parameters
      signature += fmt::format(" {}", fmt::join(input.shape, "x"));
    }
    return signature;
  }

  // What the GPU takes between two kernels of a stream, where the host was ahead: the median.
  int64_t KernelGap() const {
    std::map<int64_t, int64_t> end_of_stream;
    std::vector<int64_t> gaps;
    for (const auto& activity : kineto_.activities) {
      const auto found = end_of_stream.find(activity.stream);
      if (found != end_of_stream.end() && found->second - LaunchedAt(activity, nullptr) >= kAhead) {
        gaps.push_back(std::max<int64_t>(activity.begin - found->second, 0));
      }
      end_of_stream[activity.stream] = activity.end;
    }
    if (gaps.empty()) return 0;
    const auto middle = gaps.begin() + std::ssize(gaps) / 2;
    std::ranges::nth_element(gaps, middle);
    // All gaps together are not longer than the step.
    return std::min(*middle, kineto_.end / std::ssize(kineto_.activities));
  }

  // Where PyTorch held a storage for longer than it was used.
  void EndTensors() {
    Trace& trace = result_.trace;
    std::vector<size_t> last_use(trace.tensors.size(), 0);
    for (size_t i = 0; i < trace.ops.size(); ++i) {
      for (const auto* list : {&trace.ops[i].inputs, &trace.ops[i].outputs}) {
        for (const TensorId id : *list) last_use[Index(trace.Root(id))] = i;
      }
    }
    const auto& storages = storages_.storages();
    for (uint32_t i = 0; i < storages.size(); ++i) {
      if (!used_[i]) continue;
      Tensor& tensor = trace.tensors[Index(roots_[i])];
      if (tensor.kind == TensorKind::kParameter || tensor.kind == TensorKind::kOptimizerState) {
        continue;
      }
      // Of what was given back while the host prepared the next op, that op has nothing any more.
      const size_t launched =
          storages[i].end == StorageTable::kAlways ? trace.ops.size() : LaunchedBy(storages[i].end);
      if (launched == 0 || launched - 1 <= last_use[Index(roots_[i])]) continue;
      tensor.held_until = static_cast<OpId>(launched - 1);
    }
  }

  // What was held all the time and that no operator uses: workspaces of libraries, buffers.
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
    int64_t rest = storages_.UnnamedBefore();
    if (options_.requested_before) {
      rest -= std::max<int64_t>(storages_.held_before() - options_.requested_before->count(), 0);
    }
    return std::max<int64_t>(rest, 0);
  }

  void FillReport() {
    ImportReport& report = result_.report;
    report.nodes = std::ssize(execution_.nodes);
    report.broken_nodes = execution_.broken;
    report.broken_events = kineto_.broken;
    report.operators = std::ssize(kineto_.operators);
    report.unjoined = Duration::Nanoseconds(unjoined_);
    report.peak_allocated = Bytes(storages_.peak_allocated());
    report.unnamed_before = Bytes(Unused());
    report.unnamed = Bytes(unnamed_);
    report.unplaced = Bytes(storages_.unplaced());
    for (uint32_t i = 0; i < roles_.size(); ++i) {
      const bool activation = used_[i] && roles_[i].first_write == Phase::kForward &&
                              storages_.storages()[i].begin != StorageTable::kBefore;
      if (activation && roles_[i].backward) ++report.saved;
    }
  }

  const KinetoTrace& kineto_;
  const ExecutionTrace& execution_;
  const ImportOptions& options_;
  const bool gpu_;
  StorageTable storages_;
  std::vector<Call> calls_;  // by the node's number
  std::unordered_map<int64_t, Call*> by_external_;
  std::vector<Unit> units_;
  std::vector<bool> used_;          // storages that are tensors of the trace
  std::vector<StorageRole> roles_;  // by storage
  std::vector<TensorId> roots_;     // by storage
  std::map<std::tuple<uint32_t, int64_t, int64_t>, TensorId> parts_;  // by storage, offset, size
  int64_t unjoined_ = 0, unnamed_ = 0;
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

SnapshotPeaks PeaksOf(const std::filesystem::path& snapshot, int64_t requests) {
  const auto log = OpenMemoryLog(snapshot);
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
  peaks.requested = held;
  peaks.reserved = reserved;
  int64_t seen = 0;
  log->Walk([&](const MemoryEvent& event) {
    switch (event.kind) {
      case MemoryEvent::Kind::kAllocate:
        sizes[event.block] = event.size;
        if (seen == total - requests) peaks.held_before_last = held;
        held += event.size;
        peaks.requested = std::max(peaks.requested, held);
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

}  // namespace spillway
