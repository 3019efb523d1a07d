#include "traces/format.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <iterator>
#include <limits>
#include <utility>
#include <vector>

#include "traces/base/error.h"
#include "traces/base/file.h"
#include "traces/base/json.h"
#include "traces/base/json_writer.h"
#include "traces/name_table.h"
#include "traces/validate.h"

namespace spillway::traces {
namespace {

constexpr std::string_view kFormat = "spillway-trace";
constexpr int kVersion = 12;
constexpr int kVersionWithoutCompiled = 11;
constexpr int kVersionWithoutRequestLanes = 10;
constexpr int kVersionWithoutLanes = 9;
constexpr int kVersionWithoutSizes = 7;
constexpr int kVersionWithoutHooks = 6;
constexpr int kVersionWithoutSaved = 5;
constexpr int kVersionWithoutRequests = 4;
constexpr int kVersionWithoutTypes = 3;
constexpr int kVersionWithoutRecording = 2;
constexpr int kVersionWithoutViews = 1;
constexpr int64_t kMaxCount = std::numeric_limits<int64_t>::max();
constexpr int64_t kMaxAmount = Bytes::Unlimited().count();
constexpr int64_t kMaxRequest = std::numeric_limits<uint32_t>::max();
constexpr int64_t kMaxPosition = std::numeric_limits<uint32_t>::max() - 1;
constexpr int64_t kMaxNanoseconds = (int64_t{1} << 62) / 1000;

using Value = JsonDocument::Value;

class TraceReader {
 public:
  TraceReader(std::string_view text, const std::string& origin) : json_(text, origin) {}

  Trace Read();

  // Sets `movable` where the file does not. REQUIRES: `trace` is what `Read` returned, and is
  // valid.
  void CompleteMovable(Trace& trace) const {
    const std::vector<bool> movable = trace.MovableByDefault();
    for (size_t i = 0; i < movable.size(); ++i) {
      if (!std::ranges::binary_search(has_movable_, i)) trace.tensors[i].movable = movable[i];
    }
  }

 private:
  // An `alias_of` or `part_of` that names a tensor further down in the file.
  struct ForwardName {
    size_t tensor;
    std::optional<TensorId> Tensor::*member;
    std::string_view name;
    JsonDocument::Place place;
  };

  // A `held_until`. It is resolved later, because the ops follow the tensors in the file.
  struct Hold {
    size_t tensor;
    std::string_view op;
    JsonDocument::Place place;
  };

  auto To(std::string& target) {
    return [this, &target](Value value) { target = json_.ReadString(value); };
  }
  auto To(bool& target) {
    return [this, &target](Value value) { target = json_.ReadBool(value); };
  }
  auto To(Bytes& target) {
    return
        [this, &target](Value value) { target = Bytes(json_.ReadInteger(value, 0, kMaxAmount)); };
  }
  auto To(std::vector<TensorId>& target) {
    return [this, &target](Value value) {
      ReadList(value, ids_, target,
               [&](Value element) { return TensorId{Lookup(element, tensors_, "tensor")}; });
    };
  }
  auto ToNanoseconds(Duration& target) {
    return [this, &target](Value value) {
      target = Duration::Nanoseconds(json_.ReadInteger(value, 0, kMaxNanoseconds));
    };
  }
  auto ToInteger(int64_t& target, int64_t min, int64_t max) {
    return [this, &target, min, max](Value value) { target = json_.ReadInteger(value, min, max); };
  }

  void ReadLayer(Value value) {
    Layer& layer = trace_.layers.emplace_back();
    std::string_view name;
    json_.ReadObject(value, Required("name", [&](Value v) { name = Define(v, layers_); }),
                     Required("type", [&](Value v) {
                       layer.type = ReadEnum(v, "type", ParseOpType, OpTypeNames());
                     }));
    layer.name = name;
  }

  void ReadTensor(Value value) {
    const size_t index = trace_.tensors.size();
    Tensor& tensor = trace_.tensors.emplace_back();
    json_.ReadObject(
        value, Required("name", [&](Value v) { tensor.name = Define(v, tensors_); }),
        Required("kind",
                 [&](Value v) {
                   tensor.kind = ReadEnum(v, "kind", ParseTensorKind, TensorKindNames());
                 }),
        Required("shape",
                 [&](Value v) {
                   ReadList(v, extents_, tensor.shape,
                            [&](Value extent) { return json_.ReadInteger(extent, 0, kMaxAmount); });
                 }),
        Required("size", To(tensor.size)),
        Optional("dtype",
                 [&](Value v) {
                   NeedVersion(4, "dtype");
                   tensor.dtype = ReadEnum(v, "dtype", ParseDataType, kDataTypeNames);
                 }),
        Optional("alias_of", [&](Value v) { ReadName(v, index, &Tensor::alias_of); }),
        Optional("part_of",
                 [&](Value v) {
                   NeedVersion(2, "part_of");
                   ReadName(v, index, &Tensor::part_of);
                 }),
        Optional("offset",
                 [&](Value v) {
                   NeedVersion(2, "offset");
                   tensor.offset = Bytes(json_.ReadInteger(v, 0, kMaxAmount));
                 }),
        Optional("held_until",
                 [&](Value v) {
                   NeedVersion(3, "held_until");
                   holds_.push_back({index, json_.ReadString(v), json_.Here()});
                 }),
        Optional("request",
                 [&](Value v) {
                   NeedVersion(5, "request");
                   tensor.request = static_cast<uint32_t>(json_.ReadInteger(v, 0, kMaxRequest));
                 }),
        Optional("movable",
                 [&](Value v) {
                   NeedVersion(5, "movable");
                   tensor.movable = json_.ReadBool(v);
                   has_movable_.push_back(index);
                 }),
        Optional("lane", [&](Value v) { tensor.lane = ReadLane(v); }));
  }

  uint8_t ReadLane(Value value) {
    NeedVersion(10, "lane");
    return static_cast<uint8_t>(json_.ReadInteger(value, 0, int64_t{kMaxLanes} - 1));
  }

  void ReadRecording(Value value) {
    NeedVersion(3, "recording");
    Recording& recording = trace_.recording.emplace();
    json_.ReadObject(value, Required("framework", To(recording.framework)),
                     Required("device", To(recording.device)),
                     Required("step_ns", ToNanoseconds(recording.step)),
                     Required("plain_step_ns", ToNanoseconds(recording.plain_step)),
                     Required("allocated", To(recording.allocated)),
                     Required("reserved", To(recording.reserved)),
                     Optional("requests", [&](Value requests) {
                       NeedVersion(5, "requests");
                       json_.ReadArray(requests, [&](Value request) {
                         ReadRequest(request, recording.requests.emplace_back());
                       });
                     }));
  }

  // Reads [size, requests that had been made when it was freed, lane]; the second is -1 if it was
  // not, and the lane may be absent.
  void ReadRequest(Value value, SetupRequest& request) {
    constexpr const char* kExpected = "expected two or three numbers: size, freed, lane";
    constexpr int64_t kLeast[] = {0, -1, 0};
    constexpr int64_t kMost[] = {kMaxAmount, kMaxRequest, kMaxLanes - 1};
    int64_t numbers[] = {0, -1, 0};
    size_t count = 0;
    json_.ReadArray(value, [&](Value number) {
      if (count == std::size(numbers)) json_.Fail(kExpected);
      if (count == 2) NeedVersion(11, "a request's lane");
      numbers[count] = json_.ReadInteger(number, kLeast[count], kMost[count]);
      ++count;
    });
    if (count < 2) json_.Fail(kExpected);
    request.size = Bytes(numbers[0]);
    if (numbers[1] >= 0) request.freed = static_cast<uint32_t>(numbers[1]);
    request.lane = static_cast<uint8_t>(numbers[2]);
  }

  void ReadSaved(Value value) {
    NeedVersion(6, "saved");
    json_.ReadArray(value, [this](Value element) {
      KeptForBackward& saved = trace_.saved.emplace_back();
      const auto position = [this](Value v) {
        return static_cast<uint32_t>(json_.ReadInteger(v, 0, kMaxPosition));
      };
      json_.ReadObject(
          element,
          Required("tensor",
                   [&](Value v) { saved.tensor = TensorId{Lookup(v, tensors_, "tensor")}; }),
          Required("packed", [&](Value v) { saved.packed = position(v); }),
          Required("unpacked",
                   [&](Value v) { ReadList(v, positions_, saved.unpacked, position); }));
    });
  }

  void ReadRecordedCost(Value value, Op& op) {
    NeedVersion(3, "recorded");
    RecordedCost& recorded = op.recorded.emplace();
    json_.ReadObject(value, Required("time_ns", ToNanoseconds(recorded.time)),
                     Required("gap_ns", ToNanoseconds(recorded.gap)),
                     Required("host_ns", ToNanoseconds(recorded.host)),
                     Required("workspace", To(recorded.workspace)),
                     Optional("again", [&](Value again) {
                       NeedVersion(7, "again");
                       RecordedCost::Again& cost = recorded.again.emplace();
                       json_.ReadObject(again, Required("time_ns", ToNanoseconds(cost.time)),
                                        Required("host_ns", ToNanoseconds(cost.host)),
                                        Required("workspace", To(cost.workspace)));
                     }));
  }

  void ReadHooks(Value value) {
    NeedVersion(7, "hooks");
    StepHooks& hooks = trace_.hooks.emplace();
    const auto move = [this](std::optional<Duration>& target) {
      return [this, &target](Value v) { ToNanoseconds(target.emplace())(v); };
    };
    json_.ReadObject(
        value,
        Required("places",
                 [&](Value places) {
                   json_.ReadArray(
                       places, [&](Value place) { ReadPlace(place, hooks.places.emplace_back()); });
                 }),
        Required("pack_ns", ToNanoseconds(hooks.pack)),
        Required("unpack_ns", ToNanoseconds(hooks.unpack)),
        Required("moves",
                 [&](Value moves) {
                   json_.ReadObject(moves, Optional("offload_ns", move(hooks.offload)),
                                    Optional("prefetch_ns", move(hooks.prefetch)),
                                    Optional("evict_ns", move(hooks.evict)),
                                    Optional("state_ns", [&](Value v) {
                                      NeedVersion(9, "state_ns");
                                      move(hooks.state)(v);
                                    }));
                 }),
        Required("copy_bytes_per_second", ToInteger(hooks.copies.bytes_per_second, 0, kMaxAmount)),
        Required("beside_copy", [&](Value v) { hooks.beside_copy = json_.ReadNumber(v); }));
  }

  // Reads [ops that have run, tensors saved, tensors read].
  void ReadPlace(Value value, HookPlace& place) {
    std::array<uint32_t*, 3> numbers{&place.at, &place.packed, &place.unpacked};
    size_t count = 0;
    json_.ReadArray(value, [&](Value number) {
      if (count == numbers.size()) json_.Fail("expected three numbers: at, packed, unpacked");
      *numbers[count++] = static_cast<uint32_t>(json_.ReadInteger(number, 0, kMaxPosition));
    });
    if (count < numbers.size()) json_.Fail("expected three numbers: at, packed, unpacked");
  }

  void ReadCut(Value value) {
    CompiledCut& cut = trace_.compiled.emplace_back();
    json_.ReadObject(value, Required("memory", To(cut.memory)),
                     Required("flops", ToInteger(cut.flops, 0, kMaxAmount)),
                     Required("traffic", To(cut.traffic)),
                     Required("kernels", ToInteger(cut.kernels, 1, kMaxRequest)));
  }

  // Fails if the file's version is older than the version that introduced the key.
  void NeedVersion(int64_t version, std::string_view key) {
    if (version_ >= version) return;
    json_.Fail(fmt::format("the key '{}' needs version {} of the format", key, version));
  }

  void ReadName(Value value, size_t tensor, std::optional<TensorId> Tensor::*member) {
    const std::string_view name = json_.ReadString(value);
    if (const uint32_t* found = tensors_.Find(name)) {
      trace_.tensors[tensor].*member = static_cast<TensorId>(*found);
    } else {
      forward_names_.push_back({tensor, member, name, json_.Here()});
    }
  }

  void ResolveForwardNames() {
    for (const ForwardName& forward : forward_names_) {
      const uint32_t* found = tensors_.Find(forward.name);
      if (found == nullptr) {
        json_.Fail(forward.place,
                   fmt::format("there is no tensor '{}'", JsonExcerpt(forward.name)));
      }
      trace_.tensors[forward.tensor].*forward.member = static_cast<TensorId>(*found);
    }
  }

  void ReadOps(Value value) {
    json_.ReadArray(value, [this](Value op) { ReadOp(op); });
    for (const Hold& hold : holds_) {
      const uint32_t* found = ops_.Find(hold.op);
      if (found == nullptr) {
        json_.Fail(hold.place, fmt::format("there is no op '{}'", JsonExcerpt(hold.op)));
      }
      trace_.tensors[hold.tensor].held_until = static_cast<OpId>(*found);
    }
  }

  void ReadOp(Value value) {
    Op& op = trace_.ops.emplace_back();
    json_.ReadObject(
        value, Required("name", [&](Value v) { op.name = Define(v, ops_); }),
        Required("layer", [&](Value v) { op.layer = LayerId{Lookup(v, layers_, "layer")}; }),
        Required("type",
                 [&](Value v) { op.type = ReadEnum(v, "type", ParseOpType, OpTypeNames()); }),
        Required("phase",
                 [&](Value v) { op.phase = ReadEnum(v, "phase", ParsePhase, PhaseNames()); }),
        Required("batch", ToInteger(op.batch, 1, kMaxCount)), Required("inputs", To(op.inputs)),
        Required("outputs", To(op.outputs)), Optional("scratch", To(op.scratch)),
        Required("slots",
                 [&](Value v) {
                   json_.ReadArray(v, [&](Value slot) { ReadSlot(slot, op.slots.emplace_back()); });
                 }),
        Optional("attributes",
                 [&](Value v) {
                   attributes_.clear();
                   json_.ReadMap(v, [&](std::string_view name, Value number) {
                     attributes_.push_back({std::string(name), json_.ReadNumber(number)});
                   });
                   op.attributes.assign(std::move_iterator(attributes_.begin()),
                                        std::move_iterator(attributes_.end()));
                 }),
        Optional("recomputable", To(op.recomputable)),
        Optional("recorded", [&](Value v) { ReadRecordedCost(v, op); }),
        Optional("lane", [&](Value v) { op.lane = ReadLane(v); }), Optional("after", [&](Value v) {
          NeedVersion(10, "after");
          ReadList(v, after_, op.after, [&](Value name) { return OpId{Lookup(name, ops_, "op")}; });
        }));
  }

  // Reads an array through `buffer`, so that `target` takes no more memory than it needs.
  template <typename Element, typename Read>
  void ReadList(Value value, std::vector<Element>& buffer, std::vector<Element>& target,
                const Read& read) {
    buffer.clear();
    json_.ReadArray(value, [&](Value element) { buffer.push_back(read(element)); });
    target.assign(buffer.begin(), buffer.end());
  }

  void ReadSlot(Value value, Slot& slot) {
    json_.ReadObject(
        value, Required("name", To(slot.name)), Required("signature", To(slot.signature)),
        Required("flops", ToInteger(slot.flops, 0, kMaxAmount)),
        Required("traffic", To(slot.traffic)), Optional("arithmetic", [&](Value v) {
          NeedVersion(4, "arithmetic");
          slot.arithmetic = ReadEnum(v, "arithmetic", ParseArithmetic, kArithmeticNames);
        }));
  }

  // Reads the name of the next element and adds it to `names`.
  std::string_view Define(Value value, NameTable& names) {
    const std::string_view name = json_.ReadString(value);
    if (!names.Insert(name)) {
      json_.Fail(fmt::format("'{}' is already the name of element [{}]", JsonExcerpt(name),
                             *names.Find(name)));
    }
    return name;
  }

  uint32_t Lookup(Value value, const NameTable& names, std::string_view what) {
    const std::string_view name = json_.ReadString(value);
    const uint32_t* found = names.Find(name);
    if (found == nullptr) {
      json_.Fail(fmt::format("there is no {} '{}'", what, JsonExcerpt(name)));
    }
    return *found;
  }

  template <typename Enum>
  Enum ReadEnum(Value value, std::string_view what, std::optional<Enum> (*parse)(std::string_view),
                std::span<const std::string_view> valid) {
    const std::string_view name = json_.ReadString(value);
    const std::optional<Enum> parsed = parse(name);
    if (!parsed) json_.Fail(UnknownName(what, JsonExcerpt(name), {valid.begin(), valid.end()}));
    return *parsed;
  }

  JsonDocument json_;
  Trace trace_;
  // Indices by name. The names are views into the document.
  NameTable layers_;
  NameTable tensors_;
  NameTable ops_;
  std::vector<ForwardName> forward_names_;
  std::vector<Hold> holds_;
  int64_t version_ = kVersion;
  // Buffers for the list that is being read.
  std::vector<TensorId> ids_;
  std::vector<int64_t> extents_;
  std::vector<Attribute> attributes_;
  std::vector<OpId> after_;
  std::vector<uint32_t> positions_;
  std::vector<size_t> has_movable_;  // indices of tensors with this key, ascending
};

Trace TraceReader::Read() {
  version_ = json_.ReadHeader(kFormat, kVersion, kVersionWithoutViews);
  bool has_layers = false, has_tensors = false, has_ops = false, has_saved = false;
  json_.ReadRoot(Required("format", SkipJson), Required("version", SkipJson),
                 Required("name", To(trace_.name)), Required("network", To(trace_.network)),
                 Required("batch", ToInteger(trace_.batch, 1, kMaxCount)),
                 Required("preset", To(trace_.preset)), Required("training", To(trace_.training)),
                 Optional("recording", [this](Value recording) { ReadRecording(recording); }),
                 Required("layers",
                          [&](Value layers) {
                            json_.ReadArray(layers, [this](Value layer) { ReadLayer(layer); });
                            has_layers = true;
                          }),
                 Required("tensors",
                          [&](Value tensors) {
                            json_.ReadArray(tensors, [this](Value tensor) { ReadTensor(tensor); });
                            ResolveForwardNames();
                            has_tensors = true;
                          }),
                 Required("ops",
                          [&](Value ops) {
                            has_ops = has_layers && has_tensors;
                            if (has_ops) ReadOps(ops);
                          }),
                 Optional("saved", [&](Value) { has_saved = true; }),
                 Optional("hooks", [this](Value hooks) { ReadHooks(hooks); }),
                 Optional("sizes", [this](Value) { NeedVersion(8, "sizes"); }),
                 Optional("compiled", [this](Value compiled) {
                   NeedVersion(12, "compiled");
                   json_.ReadArray(compiled, [this](Value cut) { ReadCut(cut); });
                 }));
  // The ops name layers and tensors, which may follow the ops in the file.
  if (!has_ops) json_.ReadFromRoot("ops", [this](Value ops) { ReadOps(ops); });
  if (has_saved) json_.ReadFromRoot("saved", [this](Value saved) { ReadSaved(saved); });
  if (trace_.ops.empty())
    json_.Fail(fmt::format("trace '{}' has no ops", JsonExcerpt(trace_.name)));
  return std::move(trace_);
}

class TraceWriter {
 public:
  explicit TraceWriter(const Trace& trace)
      : trace_(trace), movable_by_default_(trace.MovableByDefault()) {}

  std::string Write() {
    json_.BeginObject().Put("format", kFormat).Put("version", VersionNeeded());
    json_.Put("name", trace_.name).Put("network", trace_.network).Put("batch", trace_.batch);
    json_.Put("preset", trace_.preset).Put("training", trace_.training);
    if (trace_.recording) {
      json_.Key("recording").BeginObject().Put("framework", trace_.recording->framework);
      json_.Put("device", trace_.recording->device);
      PutNanoseconds("step_ns", trace_.recording->step);
      PutNanoseconds("plain_step_ns", trace_.recording->plain_step);
      json_.Put("allocated", trace_.recording->allocated);
      json_.Put("reserved", trace_.recording->reserved);
      if (!trace_.recording->requests.empty()) {
        List("requests", trace_.recording->requests, [this](const SetupRequest& request) {
          json_.BeginArray().Put(request.size.count());
          json_.Put(request.freed ? int64_t{*request.freed} : -1);
          if (request.lane > 0) json_.Put(int64_t{request.lane});
          json_.EndArray();
        });
      }
      json_.EndObject();
    }
    List("layers", trace_.layers, [this](const Layer& layer) {
      json_.BeginObject().Put("name", layer.name).Put("type", Name(layer.type)).EndObject();
    });
    json_.Key("tensors").BeginArray();
    for (size_t i = 0; i < trace_.tensors.size(); ++i) {
      WriteTensor(trace_.tensors[i], movable_by_default_[i]);
    }
    json_.EndArray();
    List("ops", trace_.ops, [this](const Op& op) { WriteOp(op); });
    if (!trace_.saved.empty()) {
      List("saved", trace_.saved, [this](const KeptForBackward& saved) {
        json_.BeginObject().Put("tensor", trace_.tensor(saved.tensor).name);
        json_.Put("packed", int64_t{saved.packed});
        List("unpacked", saved.unpacked, [this](uint32_t at) { json_.Put(int64_t{at}); });
        json_.EndObject();
      });
    }
    if (trace_.hooks) WriteHooks(*trace_.hooks);
    if (!trace_.compiled.empty()) {
      List("compiled", trace_.compiled, [this](const CompiledCut& cut) {
        json_.BeginObject().Put("memory", cut.memory).Put("flops", cut.flops);
        json_.Put("traffic", cut.traffic).Put("kernels", cut.kernels).EndObject();
      });
    }
    return json_.EndObject().Take();
  }

 private:
  static bool IsHeld(const Tensor& tensor) { return tensor.held_until.has_value(); }
  static bool HasLane(const Op& op) { return op.lane != 0 || !op.after.empty(); }
  static bool IsTyped(const Tensor& tensor) { return tensor.dtype != DataType::kFloat32; }
  static bool IsReduced(const Slot& slot) { return slot.arithmetic != Arithmetic::kFp32; }

  int VersionNeeded() const {
    if (!trace_.compiled.empty()) return kVersion;
    const auto is_of_lane = [](const auto& one) { return one.lane != 0; };
    if (trace_.recording && std::ranges::any_of(trace_.recording->requests, is_of_lane)) {
      return kVersionWithoutCompiled;
    }
    if (std::ranges::any_of(trace_.ops, &HasLane) ||
        std::ranges::any_of(trace_.tensors, is_of_lane)) {
      return kVersionWithoutRequestLanes;
    }
    if (trace_.hooks && trace_.hooks->state) return kVersionWithoutLanes;
    const auto differs_again = [](const Op& op) { return op.recorded && op.recorded->again; };
    if (trace_.hooks || std::ranges::any_of(trace_.ops, differs_again)) {
      return kVersionWithoutSizes;
    }
    if (!trace_.saved.empty()) return kVersionWithoutHooks;
    const auto is_fixed = [](const Tensor& tensor) { return !tensor.movable; };
    if ((trace_.recording && !trace_.recording->requests.empty()) ||
        std::ranges::any_of(trace_.tensors, is_fixed)) {
      return kVersionWithoutSaved;
    }
    const auto is_reduced = [](const Op& op) { return std::ranges::any_of(op.slots, &IsReduced); };
    if (std::ranges::any_of(trace_.tensors, &IsTyped) ||
        std::ranges::any_of(trace_.ops, is_reduced)) {
      return kVersionWithoutRequests;
    }
    if (trace_.recording || std::ranges::any_of(trace_.tensors, &IsHeld)) {
      return kVersionWithoutTypes;
    }
    const auto is_view = [](const Tensor& tensor) {
      return tensor.part_of || tensor.offset > Bytes(0);
    };
    return std::ranges::any_of(trace_.tensors, is_view) ? kVersionWithoutRecording
                                                        : kVersionWithoutViews;
  }

  void WriteTensor(const Tensor& tensor, bool movable_by_default) {
    json_.BeginObject().Put("name", tensor.name).Put("kind", Name(tensor.kind));
    List("shape", tensor.shape, [this](int64_t extent) { json_.Put(extent); });
    json_.Put("size", tensor.size);
    if (IsTyped(tensor)) json_.Put("dtype", Name(tensor.dtype));
    if (tensor.alias_of) json_.Put("alias_of", trace_.tensor(*tensor.alias_of).name);
    if (tensor.part_of) json_.Put("part_of", trace_.tensor(*tensor.part_of).name);
    if (tensor.offset > Bytes(0)) json_.Put("offset", tensor.offset);
    if (tensor.held_until) json_.Put("held_until", trace_.op(*tensor.held_until).name);
    if (tensor.request) json_.Put("request", int64_t{*tensor.request});
    if (tensor.movable != movable_by_default) json_.Put("movable", tensor.movable);
    if (tensor.lane != 0) json_.Put("lane", int64_t{tensor.lane});
    json_.EndObject();
  }

  void PutNanoseconds(std::string_view key, Duration time) {
    json_.Put(key, time.picoseconds() / 1000);
  }

  void WriteOp(const Op& op) {
    json_.BeginObject().Put("name", op.name).Put("layer", trace_.layer(op.layer).name);
    json_.Put("type", Name(op.type)).Put("phase", Name(op.phase)).Put("batch", op.batch);
    const auto tensor_name = [this](TensorId id) { json_.Put(trace_.tensor(id).name); };
    List("inputs", op.inputs, tensor_name);
    List("outputs", op.outputs, tensor_name);
    if (!op.scratch.empty()) List("scratch", op.scratch, tensor_name);
    List("slots", op.slots, [this](const Slot& slot) {
      json_.BeginObject().Put("name", slot.name).Put("signature", slot.signature);
      json_.Put("flops", slot.flops).Put("traffic", slot.traffic);
      if (IsReduced(slot)) json_.Put("arithmetic", Name(slot.arithmetic));
      json_.EndObject();
    });
    if (!op.attributes.empty()) {
      json_.Key("attributes").BeginObject();
      for (const Attribute& attribute : op.attributes) json_.Put(attribute.name, attribute.value);
      json_.EndObject();
    }
    if (op.recomputable) json_.Put("recomputable", true);
    if (op.recorded) {
      json_.Key("recorded").BeginObject();
      PutNanoseconds("time_ns", op.recorded->time);
      PutNanoseconds("gap_ns", op.recorded->gap);
      PutNanoseconds("host_ns", op.recorded->host);
      json_.Put("workspace", op.recorded->workspace);
      if (op.recorded->again) {
        json_.Key("again").BeginObject();
        PutNanoseconds("time_ns", op.recorded->again->time);
        PutNanoseconds("host_ns", op.recorded->again->host);
        json_.Put("workspace", op.recorded->again->workspace).EndObject();
      }
      json_.EndObject();
    }
    if (op.lane != 0) json_.Put("lane", int64_t{op.lane});
    if (!op.after.empty()) {
      List("after", op.after, [this](OpId id) { json_.Put(trace_.op(id).name); });
    }
    json_.EndObject();
  }

  void WriteHooks(const StepHooks& hooks) {
    json_.Key("hooks").BeginObject();
    List("places", hooks.places, [this](const HookPlace& place) {
      json_.BeginArray().Put(int64_t{place.at}).Put(int64_t{place.packed});
      json_.Put(int64_t{place.unpacked}).EndArray();
    });
    PutNanoseconds("pack_ns", hooks.pack);
    PutNanoseconds("unpack_ns", hooks.unpack);
    json_.Key("moves").BeginObject();
    if (hooks.offload) PutNanoseconds("offload_ns", *hooks.offload);
    if (hooks.prefetch) PutNanoseconds("prefetch_ns", *hooks.prefetch);
    if (hooks.evict) PutNanoseconds("evict_ns", *hooks.evict);
    if (hooks.state) PutNanoseconds("state_ns", *hooks.state);
    json_.EndObject().Put("copy_bytes_per_second", hooks.copies.bytes_per_second);
    json_.Put("beside_copy", hooks.beside_copy).EndObject();
  }

  template <typename Element, typename WriteElement>
  void List(std::string_view key, const std::vector<Element>& elements, const WriteElement& write) {
    json_.Key(key).BeginArray();
    for (const Element& element : elements) write(element);
    json_.EndArray();
  }

  const Trace& trace_;
  const std::vector<bool> movable_by_default_;
  JsonWriter json_{2};  // one line for each layer, tensor and op
};

}  // namespace

Trace ReadTrace(const std::filesystem::path& path) {
  return ParseTrace(ReadFile(path), path.string());
}

Trace ParseTrace(std::string_view json, const std::string& origin) {
  TraceReader reader(json, origin);
  Trace trace = reader.Read();
  try {
    ValidateAllButNames(trace);
  } catch (const InputError& error) {
    throw InputError(fmt::format("{}: {}", origin, error.what()));
  }
  if (!trace.saved.empty()) reader.CompleteMovable(trace);
  return trace;
}

std::string FormatTrace(const Trace& trace) {
  trace.Validate();
  std::string text = TraceWriter(trace).Write();
  if (!IsUtf8(text)) {
    throw InputError(fmt::format("trace '{}': a name is not valid UTF-8", trace.name));
  }
  return text;
}

void WriteTrace(const Trace& trace, const std::filesystem::path& path) {
  WriteFile(path, FormatTrace(trace));
}

}  // namespace spillway::traces
