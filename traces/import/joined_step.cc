#include "traces/import/joined_step.h"

#include <fmt/format.h>

#include <map>
#include <set>
#include <utility>

#include "traces/base/error.h"
#include "traces/import/how_to_record.h"

namespace spillway::traces {
namespace {

constexpr uint32_t kNone = StorageTable::kNone;
constexpr std::string_view kBlock = "block: ";  // prefix of ranges that name a block of the model
// If fewer of the operators are in both traces, the files are of different runs.
constexpr double kLeastJoined = 0.5;
// If the launch of a kernel ended this many nanoseconds before the previous kernel, the kernel
// waited for the GPU, not for the host.
constexpr int64_t kAhead = 5000;

bool IsEngine(const JoinedStep::Call& call) {
  return call.node->name.starts_with("autograd::engine::evaluate_function");
}
// Returns true iff the node is an operator. Ranges of the program and functions of the autograd
// engine are not.
bool IsOperator(const JoinedStep::Call& call) {
  return call.profiled != nullptr && !IsEngine(call) &&
         !call.node->name.starts_with("Optimizer.") && !call.node->name.starts_with(kBlock);
}

}  // namespace

JoinedStep::JoinedStep(const KinetoTrace& kineto, const ExecutionTrace& execution,
                       const std::string& kineto_file, const std::string& execution_file)
    : kineto_(kineto),
      execution_(execution),
      kineto_file_(kineto_file),
      execution_file_(execution_file),
      gpu_(FindGpu()),
      storages_(kineto.memory, gpu_) {
  JoinNodes();
  JoinStorages();
  MakeUnits();
  SetPhases();
  PlaceStorages();
}

// Returns true iff there is a GPU. Throws `InputError` if there are several, if the GPU has memory
// events and no kernels, or if there are no memory events.
bool JoinedStep::FindGpu() const {
  std::set<int64_t> devices;
  for (const auto& activity : kineto_.activities) devices.insert(activity.device);
  for (const auto& memory : kineto_.memory) {
    if (memory.device >= 0) devices.insert(memory.device);
  }
  if (devices.size() > 1) {
    throw InputError(
        fmt::format("{}: activities of {} GPUs, expected one: record one process for each GPU",
                    kineto_file_, devices.size()));
  }
  if (!devices.empty() && kineto_.activities.empty()) {
    throw InputError(
        fmt::format("{}: memory events of a GPU but no kernels; record with the activity CUDA{}",
                    kineto_file_, kHowToRecord));
  }
  const bool none = std::ranges::none_of(
      kineto_.memory, [&](const auto& memory) { return (memory.device >= 0) == !devices.empty(); });
  if (!kineto_.unknown_devices.empty() && (none || devices.empty())) {
    throw InputError(
        fmt::format("{}: memory events of devices of type {}, and none of CUDA (1) or HIP (6)",
                    kineto_file_, fmt::join(kineto_.unknown_devices, ", ")));
  }
  if (none) {
    throw InputError(fmt::format("{}: no memory events; record with profile_memory=True{}",
                                 kineto_file_, kHowToRecord));
  }
  return !devices.empty();
}

void JoinedStep::JoinNodes() {
  std::unordered_map<int64_t, const KinetoTrace::Operator*> by_record;
  for (const auto& op : kineto_.operators) {
    if (op.record > 0) by_record.emplace(op.record, &op);
  }
  if (by_record.empty()) {
    const bool written =
        std::ranges::any_of(kineto_.operators, [](const auto& op) { return op.record == 0; });
    throw InputError(fmt::format(
        "{}: {}, so that no operator can be found in {}{}", kineto_file_,
        written ? "it was recorded without an execution trace ('Record function id' is 0)"
                : "its operators have no 'Record function id', which PyTorch 2.4 introduced",
        execution_file_, kHowToRecord));
  }
  std::unordered_map<int64_t, size_t> by_id;
  calls_.reserve(execution_.nodes.size());
  for (const ExecutionTrace::Node& node : execution_.nodes) {
    Call& call = calls_.emplace_back();
    call.node = &node;
    call.sequence = node.sequence;
    by_id.emplace(node.id, calls_.size() - 1);
    // An operator in the profiler's trace belongs to the first node with its number and name.
    const auto found = by_record.find(node.record);
    if (found == by_record.end() || found->second->name != node.name) continue;
    call.profiled = found->second;
    by_record.erase(found);
    by_external_.emplace(call.profiled->external_id, &call);
    ++joined_;
  }
  const auto known = static_cast<double>(kineto_.operators.size());
  if (static_cast<double>(joined_) < kLeastJoined * known) {
    throw InputError(fmt::format(
        "{} and {} are of different runs or steps: {} of {} operators are in both{}", kineto_file_,
        execution_file_, joined_, kineto_.operators.size(), kHowToRecord));
  }
  // A parent has a lower number than its children, so it is complete before them.
  for (Call& call : calls_) {
    const auto found = by_id.find(call.node->parent);
    if (found != by_id.end() && calls_[found->second].node->id < call.node->id) {
      Call& parent = calls_[found->second];
      call.parent = &parent;
      call.where = parent.where;
      call.block = parent.block;
      if (call.sequence < 0) call.sequence = parent.sequence;
      if (call.profiled != nullptr) parent.leaf = false;
      // A function of the engine gets its sequence number from the node that it evaluates.
      if (parent.sequence < 0 && IsEngine(parent)) parent.sequence = call.node->sequence;
    }
    if (IsEngine(call)) call.where = Where::kBackward;
    if (call.node->name.starts_with("Optimizer.step")) call.where = Where::kUpdate;
    if (call.node->name.starts_with(kBlock)) {
      call.block = std::string_view(call.node->name).substr(kBlock.size());
    }
  }
}

void JoinedStep::JoinStorages() {
  std::vector<Call*> order;
  for (Call& call : calls_) {
    if (call.profiled != nullptr) order.push_back(&call);
  }
  std::ranges::stable_sort(order, {}, [](const Call* call) {
    return std::pair(call->profiled->end, -call->profiled->begin);  // inner before outer operators
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

// Returns true iff an operator has an effect. Used for operators without kernels, whose effect no
// kernel shows.
bool JoinedStep::Computes(const Call& call) const {
  if (!call.leaf || !IsOperator(call) || OnlyAllocates(*call.node)) return false;
  const auto& inputs = call.operands.inputs;
  for (size_t i = 0; i < inputs.size(); ++i) {
    if (inputs[i] != kNone && Writes(*call.node, call.node->inputs[i].argument)) return true;
  }
  // The result of a view is one of its inputs.
  return std::ranges::any_of(call.operands.outputs, [&](uint32_t output) {
    return output != kNone && std::ranges::count(inputs, output) == 0;
  });
}

void JoinedStep::MakeUnits() {
  for (const auto& activity : kineto_.activities) {
    if (const auto found = by_external_.find(activity.external_id); found != by_external_.end()) {
      found->second->launches = true;
    }
  }
  std::unordered_map<const Call*, size_t> of_call;
  for (const auto& activity : kineto_.activities) {
    const auto found = by_external_.find(activity.external_id);
    const Call* call = found == by_external_.end() ? nullptr : found->second;
    // A kernel belongs to the outermost operator above it that also launches kernels itself.
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
    throw InputError(fmt::format("{}: no operator does anything", execution_file_));
  }
  std::ranges::stable_sort(units_, {}, &Unit::launched);
}

// Returns the time at which the host had launched an activity.
int64_t JoinedStep::LaunchedAt(const KinetoTrace::Activity& activity, const Call* call) const {
  const auto found = std::ranges::lower_bound(kineto_.launches, activity.correlation, {},
                                              &KinetoTrace::Launch::correlation);
  if (found != kineto_.launches.end() && found->correlation == activity.correlation) {
    return found->end;
  }
  return call != nullptr ? call->profiled->begin : activity.begin;
}

// Sets the phases. Units of the engine are backward and units of the optimizer are update. Other
// units are forward before the engine's last unit and update after it.
void JoinedStep::SetPhases() {
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

size_t JoinedStep::LaunchedBy(int64_t time) const {
  return static_cast<size_t>(std::ranges::upper_bound(units_, time, {}, &Unit::launched) -
                             units_.begin());
}

// Assigns each storage that no unit names to the unit that runs when it is allocated: as an `extra`
// storage if it outlives the unit, otherwise as a part of the unit's workspace.
void JoinedStep::PlaceStorages() {
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
    const StorageTable::Storage& storage = storages[i];
    if (used_[i] || storage.begin == StorageTable::kBefore || storage.block == 0) continue;
    // The unit that runs at that time, or the next one.
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
    std::ranges::sort(workspaces[i]);  // at equal times, frees come before allocations
    int64_t held = 0;
    for (const auto& [time, bytes] : workspaces[i]) {
      held += bytes;
      units_[i].workspace = std::max(units_[i].workspace, held);
    }
  }
}

// Returns the first unit that ends at or after `time` on the host.
size_t JoinedStep::UnitAt(int64_t time) const {
  size_t unit = LaunchedBy(time);
  while (unit > 0 && EndOf(unit - 1) >= time) --unit;
  return unit;
}
int64_t JoinedStep::EndOf(size_t unit) const {
  const Call* const call = units_[unit].call;
  return call == nullptr ? units_[unit].launched
                         : std::max(call->profiled->end, units_[unit].launched);
}

int64_t JoinedStep::BegunIn(int64_t from, int64_t to) const {
  const auto behind = [&](int64_t time) {
    return std::ranges::upper_bound(kineto_.operators, time, {}, &KinetoTrace::Operator::begin);
  };
  return std::max<int64_t>(behind(to) - behind(from), 0);
}

int64_t JoinedStep::KernelGap() const {
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
  // The sum of all gaps must not exceed the step.
  return std::min(*middle, kineto_.end / std::ssize(kineto_.activities));
}

}  // namespace spillway::traces
