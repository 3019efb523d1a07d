#include "traces/trace.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <functional>
#include <set>
#include <string_view>
#include <utility>

#include "traces/base/error.h"
#include "traces/name_table.h"
#include "traces/ops/op_table.h"
#include "traces/validate.h"

namespace spillway::traces {
namespace {

constexpr std::array<std::string_view, 7> kTensorKindNames{
    "input",           "parameter", "activation", "gradient", "parameter_gradient",
    "optimizer_state", "scratch"};

constexpr int64_t kMaxTotal = Bytes::Unlimited().count();

template <typename Enum, size_t kSize>
std::optional<Enum> ParseEnum(const std::array<std::string_view, kSize>& names,
                              std::string_view name) {
  const auto found = std::find(names.begin(), names.end(), name);
  if (found == names.end()) return std::nullopt;
  return static_cast<Enum>(found - names.begin());
}

// Returns true for kinds of tensors that an op may read before any op has written them, and for
// scratch.
bool StartsWritten(TensorKind kind) {
  return kind == TensorKind::kInput || kind == TensorKind::kParameter ||
         kind == TensorKind::kOptimizerState || kind == TensorKind::kScratch;
}

// Checks the trace in one pass and throws at the first violation.
class Validator {
 public:
  Validator(const Trace& trace, bool names_differ) : trace_(trace), names_differ_(names_differ) {}

  void Run() {
    if (trace_.batch < 1) Fail(fmt::format("batch is {}, expected at least 1", trace_.batch));
    for (size_t i = 0; i < trace_.layers.size(); ++i) CheckName("layer", i, trace_.layers[i].name);
    names_.Clear();
    for (size_t i = 0; i < trace_.tensors.size(); ++i) CheckTensor(i, trace_.tensors[i]);
    FindRoots();
    written_.resize(trace_.tensors.size());
    for (size_t i = 0; i < trace_.tensors.size(); ++i) {
      CheckAlias(trace_.tensors[i], trace_.tensors[roots_[i]], offsets_[i]);
      CheckPart(trace_.tensors[i]);
      if (StartsWritten(trace_.tensors[i].kind)) written_[roots_[i]] = true;
    }
    wholes_ = trace_.Wholes();
    names_.Clear();
    for (size_t i = 0; i < trace_.ops.size(); ++i) CheckOp(i, trace_.ops[i]);
    CheckHolds();
    CheckSaved();
    CheckHooks();
    CheckCompiled();
    CheckRecording();
  }

 private:
  [[noreturn]] void Fail(const std::string& what) const {
    throw InputError(fmt::format("trace '{}': {}", trace_.name, what));
  }

  void CheckName(std::string_view what, size_t index, const std::string& name) {
    if (name.empty()) Fail(fmt::format("{} {} has no name", what, index));
    if (!names_differ_ && !names_.Insert(name)) Fail(fmt::format("duplicate {} '{}'", what, name));
  }

  // Adds `amount` to `total`. Fails if the sum exceeds 2^60, so that no sum of a reader can
  // overflow.
  void Add(int64_t amount, std::string_view what, int64_t& total) const {
    if (amount > kMaxTotal - total) Fail(fmt::format("{} exceed 2^60", what));
    total += amount;
  }

  void CheckTensor(size_t index, const Tensor& tensor) {
    CheckName("tensor", index, tensor.name);
    if (tensor.size < Bytes(0)) {
      Fail(fmt::format("tensor '{}' has the negative size {}", tensor.name, tensor.size.count()));
    }
    Add(tensor.size.count(), "the sizes of all tensors together", total_size_);
    Int128 elements = 1;
    for (const int64_t extent : tensor.shape) {
      if (extent < 0) Fail(fmt::format("tensor '{}' has a negative extent", tensor.name));
      elements *= extent;
      if (elements > kMaxTotal) Fail(fmt::format("tensor '{}' is too large", tensor.name));
    }
    if (tensor.lane >= kMaxLanes) {
      Fail(fmt::format("tensor '{}' is of lane {}, expected 0 to {}", tensor.name, tensor.lane,
                       kMaxLanes - 1));
    }
    if (tensor.alias_of && Index(*tensor.alias_of) >= trace_.tensors.size()) {
      Fail(fmt::format("tensor '{}' aliases a tensor that does not exist", tensor.name));
    }
    if (tensor.part_of && Index(*tensor.part_of) >= trace_.tensors.size()) {
      Fail(fmt::format("tensor '{}' is a part of a tensor that does not exist", tensor.name));
    }
    if (tensor.offset < Bytes(0) || tensor.offset.count() > kMaxTotal) {
      Fail(fmt::format("tensor '{}' has the offset {}, expected 0 to 2^60", tensor.name,
                       tensor.offset.count()));
    }
    if (tensor.alias_of && tensor.part_of) {
      Fail(fmt::format("tensor '{}' has both alias_of and part_of", tensor.name));
    }
    if (tensor.offset > Bytes(0) && !tensor.alias_of && !tensor.part_of) {
      Fail(fmt::format("tensor '{}' has an offset, but neither alias_of nor part_of", tensor.name));
    }
  }

  // Finds the root and the offset of each tensor. Visits each link of an alias chain once.
  void FindRoots() {
    constexpr size_t kUnknown = static_cast<size_t>(-1);
    constexpr size_t kOnThisChain = kUnknown - 1;
    roots_.assign(trace_.tensors.size(), kUnknown);
    offsets_.resize(trace_.tensors.size());
    std::vector<size_t> chain;
    for (size_t i = 0; i < trace_.tensors.size(); ++i) {
      size_t at = i;
      while (roots_[at] == kUnknown && trace_.tensors[at].alias_of) {
        roots_[at] = kOnThisChain;
        chain.push_back(at);
        at = Index(*trace_.tensors[at].alias_of);
      }
      if (roots_[at] == kOnThisChain) {
        Fail(fmt::format("tensor '{}' is in a cycle of aliases", trace_.tensors[at].name));
      }
      const size_t root = roots_[at] == kUnknown ? at : roots_[at];
      roots_[at] = root;
      for (; !chain.empty(); chain.pop_back()) {  // from the root to the end of the chain
        const Tensor& link = trace_.tensors[chain.back()];
        roots_[chain.back()] = root;
        // The offset is capped so that no sum overflows. A capped offset reaches beyond every root.
        offsets_[chain.back()] =
            std::min(offsets_[Index(*link.alias_of)] + link.offset, Bytes::Unlimited() + Bytes(1));
      }
    }
  }

  void CheckAlias(const Tensor& tensor, const Tensor& root, Bytes offset) const {
    if (tensor.size > root.size) {
      Fail(fmt::format("tensor '{}' is larger than '{}', whose storage it shares", tensor.name,
                       root.name));
    }
    if (offset > root.size - tensor.size) {
      Fail(fmt::format("tensor '{}' reaches beyond '{}', whose storage it shares", tensor.name,
                       root.name));
    }
  }

  void CheckPart(const Tensor& tensor) const {
    if (!tensor.part_of) return;
    const Tensor& whole = trace_.tensor(*tensor.part_of);
    const bool starts_outside_ops = whole.kind == TensorKind::kParameter ||
                                    whole.kind == TensorKind::kOptimizerState ||
                                    whole.kind == TensorKind::kInput;
    if (tensor.kind != whole.kind || !starts_outside_ops || whole.alias_of || whole.part_of) {
      Fail(
          fmt::format("tensor '{}' is a part of '{}'; expected one of the same kind, input, "
                      "parameter or optimizer_state, that is neither an alias nor a part",
                      tensor.name, whole.name));
    }
    if (tensor.size > whole.size || tensor.offset > whole.size - tensor.size) {
      Fail(fmt::format("tensor '{}' reaches beyond '{}', which it is a part of", tensor.name,
                       whole.name));
    }
  }

  void CheckOp(size_t index, const Op& op) {
    CheckName("op", index, op.name);
    if (Index(op.layer) >= trace_.layers.size()) {
      Fail(fmt::format("op '{}' names layer {}, expected less than {}", op.name, Index(op.layer),
                       trace_.layers.size()));
    }
    if (op.batch < 1) Fail(fmt::format("op '{}' has batch {}", op.name, op.batch));
    if (op.slots.empty()) Fail(fmt::format("op '{}' has no slots", op.name));
    if (op.recomputable && op.phase != Phase::kForward) {
      Fail(fmt::format("op '{}' is recomputable but not a forward op", op.name));
    }
    for (const Slot& slot : op.slots) {
      if (slot.flops < 0 || slot.traffic < Bytes(0)) {
        Fail(fmt::format("op '{}', slot '{}': negative flops or traffic", op.name, slot.name));
      }
      Add(slot.flops, "the flops of all ops together", total_flops_);
      Add(slot.traffic.count(), "the traffic of all ops together", total_traffic_);
    }
    CheckAttributes(op);
    CheckLane(index, op);
    for (const auto* list : {&op.inputs, &op.outputs, &op.scratch}) {
      for (const TensorId id : *list) {
        if (Index(id) >= trace_.tensors.size()) {
          Fail(fmt::format("op '{}' names tensor {}, expected less than {}", op.name, Index(id),
                           trace_.tensors.size()));
        }
      }
    }
    for (const auto* list : {&op.inputs, &op.outputs}) {
      for (const TensorId id : *list) {
        if (!wholes_[roots_[Index(id)]]) continue;
        Fail(fmt::format("op '{}' uses tensor '{}', which has parts", op.name,
                         trace_.tensor(id).name));
      }
    }
    for (const TensorId id : op.inputs) {
      if (trace_.tensors[roots_[Index(id)]].kind == TensorKind::kScratch) {
        Fail(fmt::format("op '{}' reads tensor '{}' as an input, but its kind is scratch", op.name,
                         trace_.tensor(id).name));
      }
      if (!written_[roots_[Index(id)]]) {
        Fail(fmt::format("op '{}' reads tensor '{}' before any op has written it", op.name,
                         trace_.tensor(id).name));
      }
    }
    for (const TensorId id : op.scratch) {
      const TensorKind kind = trace_.tensors[roots_[Index(id)]].kind;
      if (kind != TensorKind::kScratch) {
        Fail(fmt::format("op '{}' lists tensor '{}' as scratch, but its kind is {}", op.name,
                         trace_.tensor(id).name, Name(kind)));
      }
    }
    for (const TensorId id : op.outputs) written_[roots_[Index(id)]] = true;
  }

  void CheckLane(size_t index, const Op& op) const {
    if (op.lane >= kMaxLanes) {
      Fail(fmt::format("op '{}' runs on lane {}, expected 0 to {}", op.name, op.lane,
                       kMaxLanes - 1));
    }
    for (const OpId other : op.after) {
      if (Index(other) >= index) {
        Fail(fmt::format("op '{}' waits for op {}, which does not run before it", op.name,
                         Index(other)));
      }
      if (trace_.op(other).lane == op.lane) {
        Fail(fmt::format("op '{}' waits for '{}', which runs on its own lane", op.name,
                         trace_.op(other).name));
      }
    }
    if (std::ranges::adjacent_find(op.after, std::ranges::greater_equal()) != op.after.end()) {
      Fail(fmt::format("op '{}' waits for ops that are not in ascending order", op.name));
    }
  }

  void CheckHolds() const {
    std::vector<size_t> held(trace_.tensors.size(), trace_.ops.size());
    for (size_t i = 0; i < trace_.tensors.size(); ++i) {
      const Tensor& tensor = trace_.tensors[i];
      if (!tensor.held_until) continue;
      held[i] = Index(*tensor.held_until);
      if (held[i] >= trace_.ops.size()) {
        Fail(fmt::format("tensor '{}' is held until an op that does not exist", tensor.name));
      }
      if (tensor.alias_of) {
        Fail(fmt::format("tensor '{}' has held_until, but shares the storage of '{}'", tensor.name,
                         trace_.tensor(*tensor.alias_of).name));
      }
    }
    for (size_t i = 0; i < trace_.ops.size(); ++i) {
      const Op& op = trace_.ops[i];
      for (const auto* list : {&op.inputs, &op.outputs, &op.scratch}) {
        for (const TensorId id : *list) {
          const size_t root = roots_[Index(id)];
          if (held[root] >= i) continue;
          Fail(fmt::format("op '{}' uses tensor '{}', which is held until '{}' only", op.name,
                           trace_.tensor(id).name, trace_.ops[held[root]].name));
        }
      }
    }
  }

  void CheckSaved() const {
    if (!trace_.saved.empty() && !trace_.recording) {
      Fail("saved tensors belong to a recording, and the trace has none");
    }
    std::set<std::pair<uint32_t, TensorId>> known;
    for (size_t i = 0; i < trace_.saved.size(); ++i) {
      const KeptForBackward& saved = trace_.saved[i];
      if (Index(saved.tensor) >= trace_.tensors.size()) {
        Fail(fmt::format("saved[{}] names a tensor that does not exist", i));
      }
      const auto fail = [&](const std::string& what) {
        Fail(fmt::format("saved[{}], tensor '{}': {}", i, trace_.tensor(saved.tensor).name, what));
      };
      if (wholes_[roots_[Index(saved.tensor)]]) fail("a tensor that has parts is not saved");
      if (i > 0 && saved.packed < trace_.saved[i - 1].packed) {
        fail(fmt::format("packed at {}, but the one before it at {}; expected the order of packing",
                         saved.packed, trace_.saved[i - 1].packed));
      }
      if (!known.emplace(saved.packed, saved.tensor).second) {
        fail(fmt::format("packed twice at {}", saved.packed));
      }
      const auto check = [&](std::string_view what, uint32_t position, size_t least) {
        if (position >= least && position <= trace_.ops.size()) return;
        fail(fmt::format("{} at {}, expected {} to {}", what, position, least, trace_.ops.size()));
      };
      check("packed", saved.packed, 0);
      size_t least = saved.packed;
      for (const uint32_t position : saved.unpacked) {
        check("unpacked", position, least);
        least = size_t{position} + 1;
      }
    }
  }

  void CheckHooks() const {
    if (!trace_.hooks) return;
    if (!trace_.recording) Fail("hooks belong to a recording, and the trace has none");
    size_t least = 0;
    for (size_t i = 0; i < trace_.hooks->places.size(); ++i) {
      const HookPlace& place = trace_.hooks->places[i];
      if (place.at < least || place.at > trace_.ops.size()) {
        Fail(fmt::format("hooks.places[{}] is at {}, expected {} to {}", i, place.at, least,
                         trace_.ops.size()));
      }
      if (place.packed == 0 && place.unpacked == 0) {
        Fail(fmt::format("hooks.places[{}] has no hook", i));
      }
      least = place.at;
    }
    const double share = trace_.hooks->beside_copy;
    if (!(share >= 0 && share <= 1)) {
      Fail(fmt::format("hooks.beside_copy is {}, expected 0 to 1", share));
    }
  }

  void CheckCompiled() const {
    if (!trace_.compiled.empty() && !trace_.recording) {
      Fail("a compiled step belongs to a recording, and the trace has none");
    }
    for (size_t i = 0; i < trace_.compiled.size(); ++i) {
      const CompiledCut& cut = trace_.compiled[i];
      if (i > 0 && cut.memory >= trace_.compiled[i - 1].memory) {
        Fail(fmt::format("compiled[{}] takes {} bytes, expected less than the {} of the one before",
                         i, cut.memory.count(), trace_.compiled[i - 1].memory.count()));
      }
      if (cut.kernels < 1) Fail(fmt::format("compiled[{}] has no kernels", i));
    }
  }

  // Checks the recorded costs. The times may add up to 53 days, which are 2^62 picoseconds.
  void CheckRecording() const {
    int64_t total = 0;
    const auto add = [&](Duration time) {
      if (time < Duration() || time.picoseconds() > (int64_t{1} << 62) - total) {
        Fail("the recorded times are negative or exceed 53 days");
      }
      total += time.picoseconds();
    };
    if (trace_.recording) {
      add(trace_.recording->step);
      add(trace_.recording->plain_step);
      for (const Bytes size : {trace_.recording->allocated, trace_.recording->reserved}) {
        if (size < Bytes(0) || size > Bytes::Unlimited()) {
          Fail(fmt::format("the recording has a peak of {} bytes, expected 0 to 2^60",
                           size.count()));
        }
      }
    }
    CheckRequests();
    for (const Op& op : trace_.ops) {
      if (op.recorded.has_value() != trace_.recording.has_value()) {
        Fail(fmt::format("op '{}' has {} recorded cost, but the trace has {} recording", op.name,
                         op.recorded ? "a" : "no", op.recorded ? "no" : "a"));
      }
      if (!op.recorded) continue;
      add(op.recorded->time);
      add(op.recorded->gap);
      add(op.recorded->host);
      if (op.recorded->again) {
        add(op.recorded->again->time);
        add(op.recorded->again->host);
      }
      if (op.recorded->workspace < Bytes(0) ||
          op.recorded->workspace.count() > kMaxTotal - total_size_ ||
          (op.recorded->again &&
           (op.recorded->again->workspace < Bytes(0) ||
            op.recorded->again->workspace.count() > kMaxTotal - total_size_))) {
        Fail(fmt::format("op '{}' has a recorded workspace of {} bytes, expected 0 to 2^60",
                         op.name, op.recorded->workspace.count()));
      }
    }
  }

  // Checks the requests before the first iteration and the tensors that name them.
  void CheckRequests() const {
    const std::vector<SetupRequest> none;
    const auto& requests = trace_.recording ? trace_.recording->requests : none;
    int64_t total = 0;
    for (size_t i = 0; i < requests.size(); ++i) {
      const SetupRequest& request = requests[i];
      if (request.size < Bytes(0) || request.size.count() > kMaxTotal - total) {
        Fail(fmt::format("request {} of the recording: the sizes are negative or exceed 2^60", i));
      }
      total += request.size.count();
      if (request.freed && (*request.freed <= i || *request.freed > requests.size())) {
        Fail(
            fmt::format("request {} of the recording is freed after {} requests, expected {} to {}",
                        i, *request.freed, i + 1, requests.size()));
      }
    }
    std::vector<bool> taken(requests.size());
    for (const Tensor& tensor : trace_.tensors) {
      if (!tensor.request) continue;
      if (*tensor.request >= requests.size() || requests[*tensor.request].freed ||
          taken[*tensor.request] || tensor.alias_of) {
        Fail(
            fmt::format("tensor '{}' names request {}; expected one of {} that was not freed and "
                        "that no other tensor names, and no alias",
                        tensor.name, *tensor.request, requests.size()));
      }
      taken[*tensor.request] = true;
    }
  }

  void CheckAttributes(const Op& op) {
    attribute_names_.clear();
    for (const Attribute& attribute : op.attributes) {
      if (!std::isfinite(attribute.value)) {
        Fail(fmt::format("op '{}': the attribute '{}' is not finite", op.name, attribute.name));
      }
      attribute_names_.push_back(attribute.name);
    }
    std::sort(attribute_names_.begin(), attribute_names_.end(),
              [](std::string_view a, std::string_view b) {
                return a.size() != b.size() ? a.size() < b.size() : a < b;  // most sizes differ
              });
    const auto twice = std::adjacent_find(attribute_names_.begin(), attribute_names_.end());
    if (twice != attribute_names_.end()) {
      Fail(fmt::format("op '{}' has the attribute '{}' twice", op.name, *twice));
    }
  }

  const Trace& trace_;
  const bool names_differ_;
  NameTable names_;
  std::vector<std::string_view> attribute_names_;
  std::vector<size_t> roots_;   // root of each tensor's alias chain
  std::vector<Bytes> offsets_;  // offset of each tensor in its storage
  std::vector<bool> written_;   // per storage
  std::vector<bool> wholes_;    // tensors that have parts
  int64_t total_size_ = 0;
  int64_t total_flops_ = 0;
  int64_t total_traffic_ = 0;
};

}  // namespace

std::string_view Name(TensorKind kind) { return kTensorKindNames[static_cast<size_t>(kind)]; }

std::span<const std::string_view> TensorKindNames() { return kTensorKindNames; }
std::span<const std::string_view> OpTypeNames() { return kOpTypeNames; }
std::span<const std::string_view> PhaseNames() { return kPhaseNames; }

std::optional<TensorKind> ParseTensorKind(std::string_view name) {
  return ParseEnum<TensorKind>(kTensorKindNames, name);
}
std::optional<OpType> ParseOpType(std::string_view name) {
  return ParseEnum<OpType>(kOpTypeNames, name);
}
std::optional<Phase> ParsePhase(std::string_view name) {
  return ParseEnum<Phase>(kPhaseNames, name);
}
std::optional<DataType> ParseDataType(std::string_view name) {
  return ParseEnum<DataType>(kDataTypeNames, name);
}
std::optional<Arithmetic> ParseArithmetic(std::string_view name) {
  return ParseEnum<Arithmetic>(kArithmeticNames, name);
}

std::string ArithmeticOf(const Trace& trace) {
  std::array<bool, kArithmeticNames.size()> used{};
  for (const Op& op : trace.ops) {
    if (!RowOf(op.type).products) continue;
    for (const Slot& slot : op.slots) used[static_cast<size_t>(slot.arithmetic)] = true;
  }
  std::vector<std::string_view> names;
  for (size_t i = 0; i < used.size(); ++i) {
    if (used[i]) names.push_back(kArithmeticNames[i]);
  }
  return names.empty() ? std::string(Name(Arithmetic::kFp32))
                       : fmt::format("{}", fmt::join(names, "+"));
}

TensorId Trace::Root(TensorId id) const {
  while (tensor(id).alias_of) id = *tensor(id).alias_of;
  return id;
}

Bytes Trace::OffsetInStorage(TensorId id) const {
  Bytes offset;
  for (; tensor(id).alias_of; id = *tensor(id).alias_of) offset += tensor(id).offset;
  return offset;
}

void MoveWaits(std::span<const OpId> places, Trace& trace) {
  for (size_t i = 0; i < trace.ops.size(); ++i) {
    Op& op = trace.ops[i];
    std::vector<OpId> moved;
    for (const OpId old : std::exchange(op.after, {})) {
      const OpId now = places[Index(old)];
      if (Index(now) < i && trace.op(now).lane != op.lane) moved.push_back(now);
    }
    std::ranges::sort(moved);
    moved.erase(std::ranges::unique(moved).begin(), moved.end());
    op.after = std::move(moved);
  }
}

std::vector<bool> Trace::Wholes() const {
  std::vector<bool> wholes(tensors.size());
  for (const Tensor& tensor : tensors) {
    if (tensor.part_of) wholes[Index(*tensor.part_of)] = true;
  }
  return wholes;
}

std::vector<bool> Trace::MovableByDefault() const {
  std::vector<bool> movable(tensors.size(), true);
  if (saved.empty()) return movable;
  std::vector<bool> is_saved(tensors.size());
  for (const KeptForBackward& kept : saved) is_saved[Index(Root(kept.tensor))] = true;
  for (size_t i = 0; i < tensors.size(); ++i) {
    const TensorId root = Root(static_cast<TensorId>(i));
    const TensorKind kind = tensor(root).kind;
    const bool of_pass = kind == TensorKind::kInput || kind == TensorKind::kActivation ||
                         kind == TensorKind::kGradient;
    movable[i] = is_saved[Index(root)] || !of_pass;
  }
  return movable;
}

void Trace::Validate() const { Validator(*this, /*names_differ=*/false).Run(); }

void ValidateAllButNames(const Trace& trace) { Validator(trace, /*names_differ=*/true).Run(); }

}  // namespace spillway::traces
