#include "traces/lowering/lowering.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <map>
#include <optional>
#include <utility>

#include "traces/base/error.h"
#include "traces/lowering/in_place.h"
#include "traces/ops/op_table.h"

namespace spillway {
namespace {

constexpr int64_t kElementSize = 4;  // fp32
constexpr std::array kParameters{Role::kWeight, Role::kBias};

// Throws `InputError` if the tensor would have more than 2^56 elements.
int64_t ElementsOf(std::string_view tensor, const std::vector<int64_t>& shape) {
  constexpr int64_t kMost = int64_t{1} << 56;
  int64_t product = 1;
  for (const int64_t extent : shape) {
    if (__builtin_mul_overflow(product, extent, &product) || product > kMost) {
      throw InputError(fmt::format("tensor '{}' of {} has more than 2^56 elements", tensor,
                                   fmt::join(shape, "x")));
    }
  }
  return product;
}

TensorKind KindOf(Role role) {
  switch (role) {
    case Role::kWeight:
    case Role::kBias:
      return TensorKind::kParameter;
    case Role::kRunningMean:
    case Role::kRunningVar:
      return TensorKind::kOptimizerState;
    case Role::kLabels:
      return TensorKind::kInput;
    default:
      return TensorKind::kActivation;
  }
}

// Lowers one network. The tensors of a node are created when its ops are.
class Lowering {
 public:
  Lowering(const Network& network, const LoweringOptions& options, const Preset& preset)
      : network_(network),
        preset_(preset),
        update_rule_(options.optimizer.value_or(preset.update_rule)),
        precision_(options.precision),
        accumulate_(options.accumulate),
        clip_norm_(options.clip_norm),
        loss_chunks_(options.loss_chunks),
        in_place_(network, preset, options.training),
        batch_(options.batch),
        nodes_(network.size()),
        specs_(network.size()) {
    trace_.network = network.name();
    trace_.batch = options.batch * options.accumulate;
    trace_.name = fmt::format("{}:{}", network.name(), options.batch);
    trace_.preset = preset.name;
    trace_.training = options.training;
  }

  Trace Run() {
    for (int64_t i = 1; i <= accumulate_; ++i) {
      const std::string suffix = accumulate_ > 1 ? fmt::format("#{}", i) : "";
      for (LayerNode node = 0; node < nodes_.size(); ++node) Restart(node, suffix);
      RunMicroBatch(suffix);
    }
    if (trace_.training && preset_.update == Update::kSeparate) {
      if (clip_norm_) {
        for (LayerNode node = 1; node < nodes_.size(); ++node) SumSquares(node);
      }
      for (LayerNode node = 1; node < nodes_.size(); ++node) UpdateParameters(node);
    }
    trace_.Validate();
    return std::move(trace_);
  }

 private:
  // An activation as its consumers see it: a layer's output, or a copy made by a fork.
  struct Value {
    TensorId tensor{};
    std::string gradient_name;
    std::optional<TensorId> gradient;
    bool gradient_written = false;
  };
  using ValueId = size_t;
  // The tensors that have been created for a layer so far.
  struct NodeTensors {
    std::optional<LayerId> first;  // the layer of the first micro-batch and chunk
    LayerId layer{};
    std::vector<ValueId> inputs;
    ValueId output = 0;
    // The layer's tensors by role, except for activations and their gradients.
    std::array<std::optional<TensorId>, kRoleNames.size()> tensors;
    LayerId fork{};
    std::vector<ValueId> copies;  // one for each consumer, if the output is forked
    size_t taken = 0;             // number of copies that consumers have taken
  };

  const LayerSpec& layer(LayerNode node) const { return specs_[node]; }
  // Returns the name that the layer has in the network, without the number of a micro-batch or
  // chunk.
  const std::string& NameOf(LayerNode node) const { return network_.layer(node).name; }
  std::string SuffixOf(LayerNode node) const {
    return layer(node).name.substr(NameOf(node).size());
  }
  size_t ConsumerCount(LayerNode node) const { return network_.Consumers(node).size(); }
  const Value& InputValue(LayerNode node, size_t i) const {
    return values_[nodes_[node].inputs[i]];
  }

  std::vector<int64_t> ActivationShape(const LayerSpec& spec) const {
    const Shape shape = spec.output;
    if (spec.dtype == DataType::kInt32) return {batch_, shape.length};
    if (shape.length > 0) return {batch_, shape.length, shape.channels};
    if (shape.height == 1 && shape.width == 1) return {batch_, shape.channels};
    return {batch_, shape.channels, shape.height, shape.width};
  }

  // Returns the type of the tensors that a layer has for itself, except for statistics and losses.
  DataType TypeOf(const LayerSpec& spec) const {
    if (spec.dtype != DataType::kFloat32) return spec.dtype;
    const bool is_short = precision_ == Precision::kBf16 && !RowOf(spec.type).stays_fp32;
    return is_short ? DataType::kBfloat16 : DataType::kFloat32;
  }

  // The tensor is an alias of `alias_of` if this is given and has the same size.
  TensorId AddTensor(std::string name, TensorKind kind, std::vector<int64_t> shape, DataType dtype,
                     std::optional<TensorId> alias_of = std::nullopt) {
    const Bytes size(ElementsOf(name, shape) * ElementSize(dtype));
    if (alias_of && trace_.tensor(*alias_of).size != size) alias_of = std::nullopt;
    const auto id = static_cast<TensorId>(trace_.tensors.size());
    trace_.tensors.push_back({std::move(name), kind, std::move(shape), size, alias_of});
    trace_.tensors.back().dtype = dtype;
    roots_.push_back(alias_of ? roots_[Index(*alias_of)] : id);
    return id;
  }

  // Adds an input that has one row of data for each sample or token of the micro-batch: a part of
  // the input of all micro-batches, whose name is `name`.
  TensorId AddInput(const std::string& name, const std::string& suffix, std::vector<int64_t> shape,
                    DataType dtype) {
    if (accumulate_ == 1) return AddTensor(name, TensorKind::kInput, std::move(shape), dtype);
    const auto [known, is_new] = inputs_.try_emplace(name);
    WholeInput& whole = known->second;
    if (is_new) {
      std::vector<int64_t> of_all = shape;
      of_all.front() *= accumulate_;
      whole.tensor = AddTensor(name, TensorKind::kInput, std::move(of_all), dtype);
    }
    const TensorId part = AddTensor(name + suffix, TensorKind::kInput, std::move(shape), dtype);
    trace_.tensors[Index(part)].part_of = whole.tensor;
    trace_.tensors[Index(part)].offset = whole.taken;
    whole.taken += trace_.tensor(part).size;
    return part;
  }

  // Adds a view of the rows [first, first + count) of a tensor that has one row for each token of
  // the micro-batch.
  TensorId AddView(TensorId id, int64_t first, int64_t count, std::string_view suffix) {
    const Tensor whole = trace_.tensor(id);
    const int64_t tokens = whole.shape.at(0) * whole.shape.at(1);
    std::vector<int64_t> shape = whole.shape;
    shape[0] = count;
    shape[1] = 1;
    const TensorId view = AddTensor(fmt::format("{}{}", whole.name, suffix), whole.kind,
                                    std::move(shape), whole.dtype);
    trace_.tensors[Index(view)].alias_of = id;
    trace_.tensors[Index(view)].offset = Bytes(whole.size.count() / tokens * first);
    roots_[Index(view)] = roots_[Index(id)];
    return view;
  }

  ValueId AddValue(TensorId tensor, std::string gradient_name) {
    values_.push_back({tensor, std::move(gradient_name), std::nullopt, false});
    return values_.size() - 1;
  }

  LayerId AddLayer(std::string name, OpType type) {
    trace_.layers.push_back({std::move(name), type});
    return static_cast<LayerId>(trace_.layers.size() - 1);
  }

  Op MakeOp(LayerId layer, Phase phase, std::string_view suffix,
            std::vector<Attribute> attributes) const {
    Op op;
    op.name = fmt::format("{}.{}", trace_.layer(layer).name, suffix);
    op.layer = layer;
    op.type = trace_.layer(layer).type;
    op.phase = phase;
    op.batch = batch_;
    op.attributes = std::move(attributes);
    op.recomputable = phase == Phase::kForward;
    return op;
  }

  // Returns the traffic of reading or writing every operand once.
  Bytes OperandTraffic(const Op& op) const {
    Bytes traffic;
    for (const auto* list : {&op.inputs, &op.outputs}) {
      for (const TensorId id : *list) traffic += trace_.tensor(id).size;
    }
    if (RowOf(op.type).gathers && op.phase == Phase::kForward) {
      const Bytes table = trace_.tensor(FindInput(op, Role::kWeight).value()).size;
      traffic += std::min(table, trace_.tensor(op.outputs.front()).size) - table;
    }
    return traffic;
  }

  // Returns the operations of the whole batch. A number that is too large for a trace stays so.
  static int64_t Flops(const Op& op, const OpSlot& slot) {
    int64_t flops = 0;
    const bool overflows = __builtin_mul_overflow(op.batch, slot.flops(op), &flops);
    return overflows ? int64_t{1} << 61 : flops;
  }

  void AddSlots(Op& op) const {
    for (const OpSlot& slot : StepOf(op).slots) {
      if (slot.name.empty() || !Holds(op, slot.when)) continue;
      std::string signature = SignatureOf(op, slot);
      int64_t flops = 0;
      Bytes traffic = OperandTraffic(op);
      if (slot.flops != nullptr) {
        flops = Flops(op, slot);
      } else {
        const Bytes size = trace_.tensor(op.inputs.front()).size;
        const int64_t copies = std::ranges::count_if(op.outputs, [&](TensorId output) {
          return roots_[Index(output)] != roots_[Index(op.inputs.front())];
        });
        const auto added_to = static_cast<int64_t>(op.inputs.size()) - 1;
        traffic = copies == 0 ? Bytes(0) : size * (1 + copies + added_to);
        signature += fmt::format(" copies={}", copies);
      }
      constexpr std::array kArithmetic{Arithmetic::kFp32, Arithmetic::kTf32, Arithmetic::kBf16};
      const bool products = RowOf(op.type).products;
      if (precision_ == Precision::kBf16 || (precision_ == Precision::kTf32 && products)) {
        signature += fmt::format(" {}", kPrecisionNames[static_cast<size_t>(precision_)]);
      }
      if (precision_ == Precision::kBf16) {  // kernels convert what is not bfloat16
        const auto is_fp32 = [&](TensorId id) {
          return trace_.tensor(id).dtype == DataType::kFloat32;
        };
        if (is_fp32(op.inputs.front())) signature += " reads=fp32";
        if (is_fp32(op.outputs.front())) signature += " writes=fp32";
      }
      op.slots.push_back({std::string(slot.name), std::move(signature), flops, traffic});
      if (products) op.slots.back().arithmetic = kArithmetic[static_cast<size_t>(precision_)];
    }
  }

  // --- Micro-batches and chunks

  // Forgets what the latest execution of the layer made, except for parameters, their gradients and
  // state. The next execution has `suffix` behind the layer's name.
  void Restart(LayerNode node, std::string_view suffix) {
    NodeTensors begun;
    begun.first = nodes_[node].first;
    for (const Role role : {Role::kWeight, Role::kDweight, Role::kBias, Role::kDbias,
                            Role::kRunningMean, Role::kRunningVar}) {
      begun.tensors[Index(role)] = nodes_[node].tensors[Index(role)];
    }
    nodes_[node] = std::move(begun);
    LayerSpec& spec = specs_[node];
    spec = network_.layer(node);
    spec.name += suffix;
    if (RowOf(spec.type).forward.outputs.Has(Role::kLoss) &&
        (accumulate_ > 1 || loss_chunks_ > 1)) {
      const int64_t labels = trace_.batch * spec.output.positions();
      spec.attributes.push_back({"mean_over", static_cast<double>(labels)});
    }
  }

  void RunMicroBatch(const std::string& suffix) {
    const size_t whole = nodes_.size() - (loss_chunks_ > 1 ? 2 : 0);
    for (LayerNode node = 0; node < whole; ++node) {
      Forward(node);
      if (in_place_.IsForked(node)) Fork(node);
    }
    if (loss_chunks_ > 1) RunLossInChunks(suffix);
    for (LayerNode node = whole; trace_.training && node-- > 1;) {
      if (in_place_.IsForked(node)) JoinGradients(node);
      Backward(node);
    }
  }

  // The logits of a chunk are consumed before those of the next are made.
  void RunLossInChunks(const std::string& suffix) {
    const LayerNode loss = nodes_.size() - 1, head = loss - 1;
    const int64_t batch = batch_;
    const int64_t tokens = batch * layer(head).output.positions();
    const TensorId labels = Own(loss, Role::kLabels);
    const ValueId whole = Take(network_.Inputs(head).front());
    const TensorId gradient = Gradient(whole);
    for (int64_t chunk = 0; chunk < loss_chunks_; ++chunk) {
      const int64_t first = tokens * chunk / loss_chunks_;
      batch_ = tokens * (chunk + 1) / loss_chunks_ - first;
      const std::string number = fmt::format(".chunk{}", chunk + 1);
      for (const LayerNode node : {head, loss}) {
        Restart(node, suffix + number);
        specs_[node].output.length = 1;
        std::ranges::find(specs_[node].attributes, "rows", &Attribute::name)->value = 1;
      }
      nodes_[loss].tensors[Index(Role::kLabels)] = AddView(labels, first, batch_, number);
      const ValueId x = AddValue(AddView(values_[whole].tensor, first, batch_, number), "");
      values_[x].gradient = AddView(gradient, first, batch_, number);
      nodes_[head].inputs = {x};
      for (const LayerNode node : {head, loss}) Forward(node);
      for (const LayerNode node : {loss, head}) Backward(node);
    }
    batch_ = batch;
    values_[whole].gradient_written = true;
  }

  // --- Forward

  // Returns the output of `input`, or the next copy of the output if it is forked.
  ValueId Take(LayerNode input) {
    NodeTensors& tensors = nodes_[input];
    return tensors.copies.empty() ? tensors.output : tensors.copies[tensors.taken++];
  }

  void Forward(LayerNode node) {
    const LayerSpec& spec = layer(node);
    NodeTensors& tensors = nodes_[node];
    tensors.layer = AddLayer(spec.name, spec.type);
    if (!tensors.first) tensors.first = tensors.layer;
    if (spec.type == OpType::kInput) {
      tensors.output = AddValue(
          AddInput(NameOf(node) + ".y", SuffixOf(node), ActivationShape(spec), TypeOf(spec)),
          spec.name + ".dy");
      return;
    }
    if (tensors.inputs.empty()) {
      for (const LayerNode input : network_.Inputs(node)) tensors.inputs.push_back(Take(input));
    }
    if (in_place_.IsPassedThrough(node)) {
      tensors.output = tensors.inputs.front();
      return;
    }
    const OpRow& row = RowOf(spec.type);
    Op op = MakeOp(tensors.layer, Phase::kForward, "fwd", spec.attributes);
    if (!row.forward.mode.empty()) {
      op.attributes.push_back({std::string(row.forward.mode), trace_.training ? 1.0 : 0.0});
    }
    for (const Role role : kParameters) {
      if (InputIndex(op, role)) Own(node, role);
    }
    std::optional<TensorId> alias;
    if (const auto overwritten = in_place_.OverwrittenInput(node)) {
      alias = InputValue(node, *overwritten).tensor;
    }
    tensors.output = AddValue(AddTensor(spec.name + ".y", TensorKind::kActivation,
                                        ActivationShape(spec), TypeOf(spec), alias),
                              spec.name + ".dy");
    AddOperands(node, op, row.forward.inputs, op.inputs);
    AddOperands(node, op, row.forward.outputs, op.outputs);
    // Creates the state that backward updates next to the tensors of forward.
    for (const Operand& operand : row.backward.inputs.span()) {
      if (trace_.training && KindOf(operand.role) == TensorKind::kOptimizerState) {
        Own(node, operand.role);
      }
    }
    AddSlots(op);
    trace_.ops.push_back(std::move(op));
  }

  // Returns the shape of a layer's tensor that is neither an activation nor a gradient.
  std::vector<int64_t> ShapeOf(const LayerSpec& spec, Role role) const {
    if (role == Role::kWeight) return spec.weight_shape;
    if (role == Role::kBias) return {spec.bias_elements};
    if (role == Role::kLoss) return {1};
    if (role == Role::kLogSumExp) {
      const auto heads = std::ranges::find(spec.attributes, "heads", &Attribute::name);
      return {batch_, static_cast<int64_t>(heads->value), spec.output.length};
    }
    if (std::ranges::count(spec.attributes, "rows", &Attribute::name) != 0) {
      return {batch_, spec.output.positions()};
    }
    if (role == Role::kLabels) return {batch_};
    return {spec.output.channels};
  }

  // Returns the layer's tensor of a role. The first call creates it.
  TensorId Own(LayerNode node, Role role) {
    const LayerSpec& spec = layer(node);
    std::optional<TensorId>& tensor = nodes_[node].tensors[Index(role)];
    if (!tensor && role == Role::kWeight && spec.tied) tensor = Own(*spec.tied, role);
    if (tensor) return *tensor;
    const std::string name(Name(role));
    const TensorKind kind = KindOf(role);
    if (role == Role::kLabels) {
      tensor = AddInput(name, SuffixOf(node), ShapeOf(spec, role), DataType::kFloat32);
    } else if (role == Role::kLoss) {
      tensor = AddTensor(name + SuffixOf(node), kind, ShapeOf(spec, role), DataType::kFloat32);
    } else {
      const bool lasts = kind == TensorKind::kParameter || kind == TensorKind::kOptimizerState;
      tensor = AddTensor(fmt::format("{}.{}", lasts ? NameOf(node) : spec.name, name), kind,
                         ShapeOf(spec, role),
                         kind == TensorKind::kParameter ? TypeOf(spec) : DataType::kFloat32);
    }
    return *tensor;
  }

  // Appends the operands of one step of the layer, except for the gradients dx that it writes.
  void AddOperands(LayerNode node, const Op& op, const OperandList& list,
                   std::vector<TensorId>& to) {
    const NodeTensors& tensors = nodes_[node];
    constexpr std::array kInputs{Role::kX, Role::kX2, Role::kX3};
    constexpr std::array kInputGradients{Role::kDx, Role::kDx2, Role::kDx3};
    for (const Operand& operand : list.span()) {
      const bool written = std::ranges::count(kInputGradients, operand.role) != 0;
      if (written || !Holds(op, operand.when)) continue;
      const auto* const input = std::ranges::find(kInputs, operand.role);
      if (operand.role == Role::kX && list.repeats) {
        for (const ValueId value : tensors.inputs) to.push_back(values_[value].tensor);
      } else if (input != kInputs.end()) {
        to.push_back(InputValue(node, static_cast<size_t>(input - kInputs.begin())).tensor);
      } else if (operand.role == Role::kIndices) {
        to.push_back(InputValue(node, 0).tensor);
      } else if (operand.role == Role::kY) {
        to.push_back(values_[tensors.output].tensor);
      } else if (operand.role == Role::kDy) {
        to.push_back(Gradient(tensors.output));
      } else {
        to.push_back(Own(node, operand.role));
      }
    }
  }

  // --- Forks

  std::vector<Attribute> ForkAttributes(LayerNode node) const {
    return {{"elements", static_cast<double>(layer(node).output.elements())},
            {"parts", static_cast<double>(ConsumerCount(node))}};
  }

  void Fork(LayerNode node) {
    NodeTensors& tensors = nodes_[node];
    const std::string name = layer(node).name + ".fork";
    tensors.fork = AddLayer(name, OpType::kFork);
    Op op = MakeOp(tensors.fork, Phase::kForward, "fwd", ForkAttributes(node));
    op.inputs = {values_[tensors.output].tensor};
    for (size_t i = 0; i < ConsumerCount(node); ++i) {
      std::optional<TensorId> alias;
      if (i == 0 && preset_.forks == Forks::kShareOne) alias = op.inputs.front();
      op.outputs.push_back(AddTensor(fmt::format("{}.y{}", name, i + 1), TensorKind::kActivation,
                                     ActivationShape(layer(node)), TypeOf(layer(node)), alias));
      tensors.copies.push_back(AddValue(op.outputs.back(), fmt::format("{}.dy{}", name, i + 1)));
    }
    AddSlots(op);
    trace_.ops.push_back(std::move(op));
  }

  void JoinGradients(LayerNode node) {
    NodeTensors& tensors = nodes_[node];
    Op op = MakeOp(tensors.fork, Phase::kBackward, "bwd", ForkAttributes(node));
    for (const ValueId copy : tensors.copies) op.inputs.push_back(Gradient(copy));
    std::optional<TensorId> alias;
    if (preset_.forks == Forks::kShareOne) alias = op.inputs.front();
    op.outputs = {Gradient(tensors.output, alias)};
    values_[tensors.output].gradient_written = true;
    op.attributes.push_back({"needs_dx", 1});
    op.attributes.push_back({"accumulate", 0});
    AddSlots(op);
    trace_.ops.push_back(std::move(op));
  }

  // --- Backward

  // Returns the gradient of a value. The first call creates it, as an alias of `alias_of` if given.
  TensorId Gradient(ValueId id, std::optional<TensorId> alias_of = std::nullopt) {
    Value& value = values_[id];
    if (!value.gradient) {
      value.gradient =
          AddTensor(value.gradient_name, TensorKind::kGradient, trace_.tensor(value.tensor).shape,
                    trace_.tensor(value.tensor).dtype, alias_of);
    }
    return *value.gradient;
  }

  void Backward(LayerNode node) {
    const OpRow& row = RowOf(layer(node).type);
    const NodeTensors& tensors = nodes_[node];
    const std::vector<LayerNode> inputs = network_.Inputs(node);
    Op op = MakeOp(tensors.layer, Phase::kBackward, "bwd", layer(node).attributes);
    if (row.backward.inputs.Has(Role::kDy)) Gradient(tensors.output);

    // Collects the gradients of the inputs. This op adds to the gradients that an earlier backward
    // op has begun.
    int64_t accumulate = 0;
    std::vector<TensorId> gradients, added_to;
    std::vector<bool> begun;
    for (const ValueId input : tensors.inputs) begun.push_back(values_[input].gradient_written);
    const std::vector<bool> shared = in_place_.SharedGradients(node, begun);
    for (size_t i = 0; i < inputs.size() && row.backward.outputs.Has(Role::kDx); ++i) {
      if (layer(inputs[i]).type == OpType::kInput && !preset_.image_gradient) continue;
      Value& value = values_[tensors.inputs[i]];
      std::optional<TensorId> alias;
      if (shared[i]) alias = IncomingGradient(node);
      const TensorId gradient = Gradient(tensors.inputs[i], alias);
      if (value.gradient_written) {
        accumulate |= int64_t{1} << gradients.size();
        added_to.push_back(gradient);
      }
      value.gradient_written = true;
      gradients.push_back(gradient);
    }
    for (const Role role : AddParameterGradients(node, op)) {
      accumulate |= int64_t{1} << (gradients.size() + (role == Role::kBias ? 1 : 0));
      added_to.push_back(tensors.tensors[Index(GradientOf(role))].value());
    }
    op.attributes.push_back({"needs_dx", gradients.empty() ? 0.0 : 1.0});
    op.attributes.push_back({"accumulate", static_cast<double>(accumulate)});
    AddOperands(node, op, row.backward.inputs, op.inputs);
    op.inputs.insert(op.inputs.end(), added_to.begin(), added_to.end());
    op.outputs = gradients;
    AddOperands(node, op, row.backward.outputs, op.outputs);
    AddSlots(op);
    // These inputs are held but not read, so they add no traffic.
    if (preset_.HasAny(row.holds_x)) {
      op.inputs.push_back(InputValue(node, 0).tensor);
      op.attributes.push_back({"holds_x", 1});
    }
    if (preset_.HasAny(row.holds_y)) {
      op.inputs.push_back(values_[tensors.output].tensor);
      op.attributes.push_back({"holds_y", 1});
    }
    trace_.ops.push_back(std::move(op));
  }

  // Returns the tensor that backward starts from: the gradient of the output, or the probabilities
  // for the loss.
  std::optional<TensorId> IncomingGradient(LayerNode node) const {
    const Value& output = values_[nodes_[node].output];
    const OperandList& reads = RowOf(layer(node).type).backward.inputs;
    return reads.Has(Role::kDy) ? output.gradient : output.tensor;
  }

  // Creates the gradients of the parameters. With a fused update, the parameter itself takes the
  // place of its gradient among the outputs. Returns the parameters to whose gradients, begun by an
  // earlier op, this op adds.
  std::vector<Role> AddParameterGradients(LayerNode node, Op& op) {
    auto& tensors = nodes_[node].tensors;
    if (!tensors[Index(Role::kWeight)]) return {};
    const bool fused = preset_.update != Update::kSeparate;
    op.attributes.push_back({"fused_update", fused ? 1.0 : 0.0});
    if (fused) {
      const auto rule = RowOf(update_rule_).attribute_list();
      const auto rate = std::ranges::find(rule, "learning_rate", &AttributeInfo::name);
      SPILLWAY_CHECK(rate != rule.end());
      op.attributes.push_back({"learning_rate", rate->initial});
    }
    std::vector<Role> adds;
    for (const Role role : kParameters) {
      const std::optional<TensorId> parameter = tensors[Index(role)];
      if (!parameter) continue;
      // A tied weight has the gradient of the layer that it belongs to.
      const LayerNode owner = role == Role::kWeight ? layer(node).tied.value_or(node) : node;
      std::optional<TensorId>& gradient = nodes_[owner].tensors[Index(GradientOf(role))];
      if (gradient && !fused) {
        adds.push_back(role);
      } else if (preset_.update != Update::kFused) {
        gradient =
            AddTensor(fmt::format("{}.{}", NameOf(fused ? node : owner), Name(GradientOf(role))),
                      fused ? TensorKind::kScratch : TensorKind::kParameterGradient,
                      trace_.tensor(*parameter).shape, trace_.tensor(*parameter).dtype);
        if (fused) op.scratch.push_back(*gradient);
      }
      if (fused) gradient = parameter;
      tensors[Index(GradientOf(role))] = gradient;
    }
    return adds;
  }

  // Returns the parameters that belong to the layer. A tied weight belongs to another.
  std::vector<Role> OwnParameters(LayerNode node) const {
    std::vector<Role> own;
    for (const Role role : kParameters) {
      const bool exists = nodes_[node].tensors[Index(role)].has_value();
      if (exists && (role == Role::kBias || !layer(node).tied)) own.push_back(role);
    }
    return own;
  }

  int64_t ElementsIn(TensorId id) const {
    return ElementsOf(trace_.tensor(id).name, trace_.tensor(id).shape);
  }

  Op MakeUpdate(LayerNode node, OpType type, std::string_view suffix,
                std::vector<Attribute> attributes = {}) const {
    Op op = MakeOp(nodes_[node].first.value(), Phase::kUpdate, "", std::move(attributes));
    op.name = fmt::format("{}.{}", NameOf(node), suffix);
    op.type = type;
    op.batch = 1;
    return op;
  }

  void SumSquares(LayerNode node) {
    for (const Role role : OwnParameters(node)) {
      const TensorId gradient = nodes_[node].tensors[Index(GradientOf(role))].value();
      Op op = MakeUpdate(node, OpType::kSquareSum, fmt::format("{}.square_sum", Name(role)),
                         {{"elements", static_cast<double>(ElementsIn(gradient))},
                          {"accumulate", square_sum_ ? 1.0 : 0.0}});
      op.inputs = {gradient};
      if (square_sum_) {
        op.inputs.push_back(*square_sum_);
      } else {
        square_sum_ = AddTensor(std::string(Name(Role::kSquareSum)), TensorKind::kParameterGradient,
                                {1}, DataType::kFloat32);
      }
      op.outputs = {*square_sum_};
      AddSlots(op);
      trace_.ops.push_back(std::move(op));
    }
  }

  void Clip(LayerNode node, Role role) {
    const TensorId gradient = nodes_[node].tensors[Index(GradientOf(role))].value();
    Op op = MakeUpdate(
        node, OpType::kClip, fmt::format("{}.clip", Name(role)),
        {{"elements", static_cast<double>(ElementsIn(gradient))}, {"max_norm", *clip_norm_}});
    op.inputs = {gradient, square_sum_.value()};
    op.outputs = {gradient};
    AddSlots(op);
    trace_.ops.push_back(std::move(op));
  }

  void UpdateParameters(LayerNode node) {
    const std::vector<Role> updated = OwnParameters(node);
    if (updated.empty()) return;
    const OpRow& rule = RowOf(update_rule_);
    Op op = MakeUpdate(node, rule.type, "update");
    int64_t elements = 0;
    bool is_short = false;
    for (const Role role : updated) {
      if (clip_norm_) Clip(node, role);
      const TensorId parameter = nodes_[node].tensors[Index(role)].value();
      elements += ElementsIn(parameter);
      is_short = trace_.tensor(parameter).dtype != DataType::kFloat32;
    }
    for (const AttributeInfo& info : rule.attribute_list()) {
      const double value = info.name == "elements" ? static_cast<double>(elements)
                           : info.name == "master" ? (is_short ? 1.0 : 0.0)
                                                   : info.initial;
      op.attributes.push_back({std::string(info.name), value});
    }
    for (const Role role : updated) AddUpdate(node, role, op);
    AddSlots(op);
    trace_.ops.push_back(std::move(op));
  }

  // Appends the operands of the update of one parameter. Creates its state.
  void AddUpdate(LayerNode node, Role role, Op& op) {
    const NodeTensors& tensors = nodes_[node];
    const OpStep& step = RowOf(op.type).update;
    const TensorId parameter = tensors.tensors[Index(role)].value();
    std::array<std::optional<TensorId>, kRoleNames.size()> operands;
    operands[Index(Role::kParameter)] = parameter;
    operands[Index(Role::kGradient)] = tensors.tensors[Index(GradientOf(role))];
    const bool has_master = step.inputs.Has(Role::kMaster);
    for (const Operand& input : step.inputs.span()) {
      if (!Holds(op, input.when)) continue;
      std::optional<TensorId>& operand = operands[Index(input.role)];
      if (!operand) {
        const Tensor& of = trace_.tensor(parameter);
        operand = AddTensor(fmt::format("{}.{}_{}", NameOf(node), Name(role), Name(input.role)),
                            TensorKind::kOptimizerState,
                            input.role == Role::kStep ? std::vector<int64_t>{1} : of.shape,
                            has_master ? DataType::kFloat32 : of.dtype);
      }
      op.inputs.push_back(*operand);
    }
    for (const Operand& output : step.outputs.span()) {
      if (Holds(op, output.when)) op.outputs.push_back(operands[Index(output.role)].value());
    }
  }

  // An input of all micro-batches, and how much of it those before the present one have.
  struct WholeInput {
    TensorId tensor{};
    Bytes taken;
  };

  const Network& network_;
  const Preset& preset_;
  const OpType update_rule_;
  const Precision precision_;
  const int64_t accumulate_;
  const std::optional<double> clip_norm_;
  const int64_t loss_chunks_;
  const InPlaceRules in_place_;
  Trace trace_;
  int64_t batch_;  // of the ops that are being made: samples, or tokens in a chunk
  std::map<std::string, WholeInput> inputs_;
  std::optional<TensorId> square_sum_;
  std::vector<TensorId> roots_;  // `Trace::Root` of each tensor, cached for long chains
  std::vector<NodeTensors> nodes_;
  std::vector<LayerSpec> specs_;  // the layers as the present micro-batch or chunk has them
  std::vector<Value> values_;
};

// Throws `UsageError` if the options for training do not suit each other, the preset or the
// network.
void CheckTraining(const Network& network, const LoweringOptions& options, const Preset& preset) {
  std::string_view given;
  if (options.loss_chunks != 1) given = "loss-chunks";
  if (options.clip_norm) given = "clip-norm";
  if (options.accumulate != 1) given = "accumulate";
  if (given.empty()) return;
  if (!options.training) {
    throw UsageError(fmt::format("{}: the option is for training, not for inference", given));
  }
  if (preset.update != Update::kSeparate) {
    throw UsageError(
        fmt::format("{}: the preset '{}' updates parameters inside backward, before the gradients "
                    "of an iteration are complete; the option needs another preset, for example "
                    "torch",
                    given, preset.name));
  }
  if (options.accumulate < 1) {
    throw UsageError(
        fmt::format("accumulate is {}, expected at least 1 micro-batch", options.accumulate));
  }
  if (options.clip_norm && !(*options.clip_norm > 0 && std::isfinite(*options.clip_norm))) {
    throw UsageError(
        fmt::format("clip-norm is {}, expected a positive number", *options.clip_norm));
  }
  if (options.loss_chunks == 1) return;
  const LayerNode loss = network.size() - 1;
  const LayerSpec& last = network.layer(loss);
  const bool of_tokens = last.type == OpType::kSoftmaxLoss && last.output.length > 0 &&
                         network.layer(network.Inputs(loss).front()).type == OpType::kLinear &&
                         network.Inputs(loss).front() == loss - 1 &&
                         network.Consumers(loss - 1).size() == 1 &&
                         network.Consumers(network.Inputs(loss - 1).front()).size() == 1;
  if (!of_tokens) {
    throw UsageError(
        fmt::format("loss-chunks: '{}' has no loss of each token behind a linear layer; the option "
                    "is for language models, such as gpt2, bert-base and llama-1b",
                    network.name()));
  }
  const int64_t tokens = options.batch * last.output.length;
  if (options.loss_chunks < 1 || options.loss_chunks > tokens) {
    throw UsageError(fmt::format(
        "loss-chunks is {}, but a batch of {} with {} tokens each has {}; expected 1 to {} chunks",
        options.loss_chunks, options.batch, last.output.length, tokens, tokens));
  }
}

// Returns the FFT workspace of one convolution, or 0 if the algorithm does not apply or is not
// counted.
Bytes FftWorkspace(const Op& op) {
  const int64_t rows = op.IntAttribute("kernel_h");
  const int64_t columns = op.IntAttribute("kernel_w");
  const auto plane = static_cast<int64_t>(std::bit_ceil(static_cast<uint64_t>(
      std::max(op.IntAttribute("in_height") + rows, op.IntAttribute("in_width") + columns) - 1)));
  if (op.IntAttribute("stride_h") != 1 || plane > 128) return Bytes(0);
  const int64_t c = op.IntAttribute("in_channels") / op.IntAttribute("groups");
  const int64_t k = op.IntAttribute("out_channels") / op.IntAttribute("groups");
  const int64_t n = op.batch;
  const int64_t plane_bytes = plane * (plane / 2 + 1) * 8;
  if (op.phase == Phase::kForward) return Bytes((c * n + k * n + c * k) * plane_bytes);
  if (std::max(rows, columns) <= 3) return Bytes(0);
  return Bytes(2 * (k * n + c * k) * plane_bytes + kElementSize * c * k * rows * columns);
}

}  // namespace

Trace LowerNetwork(const Network& network, const LoweringOptions& options) {
  return LowerNetwork(network, options, FindPreset(options.preset));
}

Trace LowerNetwork(const Network& network, const LoweringOptions& options, const Preset& preset) {
  if (options.optimizer && preset.update != Update::kSeparate &&
      *options.optimizer != preset.update_rule) {
    throw UsageError(
        fmt::format("the preset '{}' updates parameters inside backward, by plain {}; "
                    "the optimizer {} needs another preset, for example torch",
                    preset.name, Name(preset.update_rule), Name(*options.optimizer)));
  }
  CheckTraining(network, options, preset);
  if (preset.order == Order::kConstruction) return Lowering(network, options, preset).Run();
  const Network ordered = network.InOrder(ExecutionOrder(network, preset.order));
  return Lowering(ordered, options, preset).Run();
}

Bytes FftBaselineWorkspace(const Trace& trace) {
  Bytes largest;
  for (const Op& op : trace.ops) {
    if (op.type == OpType::kConv2d) largest = std::max(largest, FftWorkspace(op));
  }
  return largest;
}

}  // namespace spillway
