#include "traces/lowering/lowering.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "traces/base/error.h"
#include "traces/lowering/in_place.h"
#include "traces/lowering/layer_tensors.h"
#include "traces/lowering/lowered_trace.h"
#include "traces/lowering/updates.h"
#include "traces/ops/op_table.h"

namespace spillway::traces {
namespace {

Arithmetic ArithmeticOf(Precision precision) {
  constexpr std::array kArithmetic{Arithmetic::kFp32, Arithmetic::kTf32, Arithmetic::kBf16};
  return kArithmetic[static_cast<size_t>(precision)];
}

// Returns the trace of an iteration without its tensors, layers and ops.
Trace HeaderOf(const Network& network, const LoweringOptions& options, const Preset& preset) {
  Trace header;
  header.network = network.name();
  header.batch = options.batch * options.accumulate;
  header.name = fmt::format("{}:{}", network.name(), options.batch);
  header.preset = preset.name;
  header.training = options.training;
  return header;
}

// Lowers one network. The tensors of a layer are created when its ops are.
class Lowering {
 public:
  Lowering(const Network& network, const LoweringOptions& options, const Preset& preset)
      : network_(network),
        options_(options),
        preset_(preset),
        update_rule_(options.optimizer.value_or(preset.update_rule)),
        in_place_(network, preset, options.training),
        trace_(HeaderOf(network, options, preset), ArithmeticOf(options.precision),
               options.accumulate),
        layers_(network, ArithmeticOf(options.precision), options.batch, trace_) {}

  Trace Run() {
    for (int64_t i = 1; i <= options_.accumulate; ++i) {
      const std::string suffix = options_.accumulate > 1 ? fmt::format("#{}", i) : "";
      for (LayerNode node = 0; node < layers_.size(); ++node) Restart(node, suffix);
      RunMicroBatch(suffix);
    }
    if (options_.training && preset_.update == Update::kSeparate) {
      AddUpdates(TrainedLayers(), update_rule_, options_.clip_norm, trace_);
    }
    return trace_.Take();
  }

 private:
  // Returns the layer as its present execution has it.
  const LayerSpec& spec(LayerNode node) const { return layers_.at(node).spec; }
  TensorId Input(LayerNode node, size_t i) const {
    return layers_.value(layers_.at(node).inputs[i]).tensor;
  }
  Op MakeOp(LayerId layer, Phase phase, std::string_view suffix,
            std::vector<Attribute> attributes) const {
    return trace_.MakeOp(layer, phase, layers_.batch(), suffix, std::move(attributes));
  }

  // --- Micro-batches and chunks

  // Begins the next execution of the layer, for a micro-batch or a chunk.
  void Restart(LayerNode node, std::string_view suffix) {
    layers_.Restart(node, suffix);
    LayerSpec& spec = layers_.at(node).spec;
    if (RowOf(spec.type).forward.outputs.Has(Role::kLoss) &&
        (options_.accumulate > 1 || options_.loss_chunks > 1)) {
      const int64_t labels = options_.batch * options_.accumulate * spec.output.positions();
      spec.attributes.push_back({"mean_over", static_cast<double>(labels)});
    }
  }

  void RunMicroBatch(const std::string& suffix) {
    const bool in_chunks = options_.loss_chunks > 1;
    const size_t whole = layers_.size() - (in_chunks ? 2 : 0);
    for (LayerNode node = 0; node < whole; ++node) {
      Forward(node);
      if (in_place_.IsForked(node)) Fork(node);
    }
    if (in_chunks) RunLossInChunks(suffix);
    for (LayerNode node = whole; options_.training && node-- > 1;) {
      if (in_place_.IsForked(node)) JoinGradients(node);
      Backward(node);
    }
  }

  // The logits of a chunk are consumed before those of the next are made.
  void RunLossInChunks(const std::string& suffix) {
    const LayerNode loss = layers_.size() - 1, head = loss - 1;
    const int64_t tokens = options_.batch * spec(head).output.positions();
    const TensorId labels = layers_.Own(loss, Role::kLabels);
    const ValueId whole = layers_.Take(network_.Inputs(head).front());
    const TensorId gradient = layers_.Gradient(whole);
    for (int64_t chunk = 0; chunk < options_.loss_chunks; ++chunk) {
      const int64_t first = tokens * chunk / options_.loss_chunks;
      const int64_t count = tokens * (chunk + 1) / options_.loss_chunks - first;
      const std::string number = fmt::format(".chunk{}", chunk + 1);
      const auto part = [&](TensorId id) { return trace_.AddView(id, first, count, number); };
      layers_.set_batch(count);
      for (const LayerNode node : {head, loss}) {
        Restart(node, suffix + number);
        LayerSpec& spec = layers_.at(node).spec;
        spec.output.length = 1;
        std::ranges::find(spec.attributes, "rows", &Attribute::name)->value = 1;
      }
      layers_.at(loss).tensors[Index(Role::kLabels)] = part(labels);
      const ValueId x = layers_.AddValue(part(layers_.value(whole).tensor), "");
      layers_.value(x).gradient = part(gradient);
      layers_.at(head).inputs = {x};
      for (const LayerNode node : {head, loss}) Forward(node);
      for (const LayerNode node : {loss, head}) Backward(node);
    }
    layers_.set_batch(options_.batch);
    layers_.value(whole).gradient_written = true;
  }

  // --- Forward

  void Forward(LayerNode node) {
    LayerExecution& execution = layers_.at(node);
    const LayerSpec& spec = execution.spec;
    execution.layer = trace_.AddLayer(spec.name, spec.type);
    if (!execution.first) execution.first = execution.layer;
    if (spec.type == OpType::kInput) {
      const TensorId input = trace_.AddInput(layers_.NameOf(node) + ".y", layers_.SuffixOf(node),
                                             layers_.OutputShape(node), layers_.OutputType(node));
      execution.output = layers_.AddValue(input, spec.name + ".dy");
      return;
    }
    if (execution.inputs.empty()) {
      for (const LayerNode input : network_.Inputs(node)) {
        execution.inputs.push_back(layers_.Take(input));
      }
    }
    if (in_place_.IsPassedThrough(node)) {
      execution.output = execution.inputs.front();
      return;
    }
    const OpRow& row = RowOf(spec.type);
    Op op = MakeOp(execution.layer, Phase::kForward, "fwd", spec.attributes);
    if (!row.forward.mode.empty()) {
      op.attributes.push_back({std::string(row.forward.mode), options_.training ? 1.0 : 0.0});
    }
    for (const Role role : kParameters) {
      if (InputIndex(op, role)) layers_.Own(node, role);
    }
    std::optional<TensorId> alias;
    if (const auto overwritten = in_place_.OverwrittenInput(node)) {
      alias = Input(node, *overwritten);
    }
    execution.output = AddActivation(node, spec.name, "", alias);
    layers_.AddOperands(node, op, row.forward.inputs, op.inputs);
    layers_.AddOperands(node, op, row.forward.outputs, op.outputs);
    // Creates the state that backward updates next to the tensors of forward.
    if (options_.training) layers_.OwnState(node, row.backward.inputs);
    trace_.AddOp(std::move(op));
  }

  // Adds the output of a layer, or a copy of it: y and its gradient dy, with `number` behind both.
  ValueId AddActivation(LayerNode node, const std::string& layer, const std::string& number,
                        std::optional<TensorId> alias_of) {
    const TensorId y =
        trace_.AddTensor(layer + ".y" + number, TensorKind::kActivation, layers_.OutputShape(node),
                         layers_.OutputType(node), alias_of);
    return layers_.AddValue(y, layer + ".dy" + number);
  }

  // --- Forks

  std::vector<Attribute> ForkAttributes(LayerNode node) const {
    return {{"elements", static_cast<double>(spec(node).output.elements())},
            {"parts", static_cast<double>(network_.Consumers(node).size())}};
  }

  void Fork(LayerNode node) {
    LayerExecution& execution = layers_.at(node);
    const std::string name = execution.spec.name + ".fork";
    execution.fork = trace_.AddLayer(name, OpType::kFork);
    Op op = MakeOp(execution.fork, Phase::kForward, "fwd", ForkAttributes(node));
    op.inputs = {layers_.value(execution.output).tensor};
    for (size_t i = 0; i < network_.Consumers(node).size(); ++i) {
      std::optional<TensorId> alias;
      if (i == 0 && preset_.forks == Forks::kShareOne) alias = op.inputs.front();
      execution.copies.push_back(AddActivation(node, name, std::to_string(i + 1), alias));
      op.outputs.push_back(layers_.value(execution.copies.back()).tensor);
    }
    trace_.AddOp(std::move(op));
  }

  void JoinGradients(LayerNode node) {
    const LayerExecution& execution = layers_.at(node);
    Op op = MakeOp(execution.fork, Phase::kBackward, "bwd", ForkAttributes(node));
    for (const ValueId copy : execution.copies) op.inputs.push_back(layers_.Gradient(copy));
    std::optional<TensorId> alias;
    if (preset_.forks == Forks::kShareOne) alias = op.inputs.front();
    op.outputs = {layers_.Gradient(execution.output, alias)};
    layers_.value(execution.output).gradient_written = true;
    op.attributes.push_back({"needs_dx", 1});
    op.attributes.push_back({"accumulate", 0});
    trace_.AddOp(std::move(op));
  }

  // --- Backward

  // The gradients that a backward op writes. Some of them have been begun by earlier ops.
  struct WrittenGradients {
    std::vector<TensorId> of_inputs;
    std::vector<TensorId> added_to;  // begun by an earlier op
    int64_t accumulate = 0;          // bit i: output i of the op is added to

    // Says that the op adds to `gradient`, its output number `output`.
    void AddTo(size_t output, TensorId gradient) {
      accumulate |= int64_t{1} << output;
      added_to.push_back(gradient);
    }
  };

  void Backward(LayerNode node) {
    const LayerExecution& execution = layers_.at(node);
    const OpRow& row = RowOf(execution.spec.type);
    Op op = MakeOp(execution.layer, Phase::kBackward, "bwd", execution.spec.attributes);
    if (row.backward.inputs.Has(Role::kDy)) layers_.Gradient(execution.output);
    WrittenGradients written;
    if (row.backward.outputs.Has(Role::kDx)) AddInputGradients(node, written);
    AddParameterGradients(node, op, written);
    op.attributes.push_back({"needs_dx", written.of_inputs.empty() ? 0.0 : 1.0});
    op.attributes.push_back({"accumulate", static_cast<double>(written.accumulate)});
    layers_.AddOperands(node, op, row.backward.inputs, op.inputs);
    op.inputs.insert(op.inputs.end(), written.added_to.begin(), written.added_to.end());
    op.outputs = written.of_inputs;
    layers_.AddOperands(node, op, row.backward.outputs, op.outputs);
    Op& added = trace_.AddOp(std::move(op));
    // These inputs are held but not read, so they add no traffic.
    if (preset_.HasAny(row.holds_x)) {
      added.inputs.push_back(Input(node, 0));
      added.attributes.push_back({"holds_x", 1});
    }
    if (preset_.HasAny(row.holds_y)) {
      added.inputs.push_back(layers_.value(execution.output).tensor);
      added.attributes.push_back({"holds_y", 1});
    }
  }

  void AddInputGradients(LayerNode node, WrittenGradients& written) {
    const std::vector<ValueId>& inputs = layers_.at(node).inputs;
    std::vector<bool> begun;
    for (const ValueId input : inputs) begun.push_back(layers_.value(input).gradient_written);
    const std::vector<bool> shared = in_place_.SharedGradients(node, begun);
    const std::vector<LayerNode> producers = network_.Inputs(node);
    for (size_t i = 0; i < inputs.size(); ++i) {
      if (spec(producers[i]).type == OpType::kInput && !preset_.image_gradient) continue;
      std::optional<TensorId> alias;
      if (shared[i]) alias = IncomingGradient(node);
      const TensorId gradient = layers_.Gradient(inputs[i], alias);
      Value& value = layers_.value(inputs[i]);
      if (value.gradient_written) written.AddTo(written.of_inputs.size(), gradient);
      value.gradient_written = true;
      written.of_inputs.push_back(gradient);
    }
  }

  // Returns the tensor that backward starts from: the gradient of the output, or the probabilities
  // for the loss.
  std::optional<TensorId> IncomingGradient(LayerNode node) const {
    const Value& output = layers_.value(layers_.at(node).output);
    const OperandList& reads = RowOf(spec(node).type).backward.inputs;
    return reads.Has(Role::kDy) ? output.gradient : output.tensor;
  }

  // Creates the gradients of the parameters. With a fused update, the parameter itself takes the
  // place of its gradient among the outputs.
  void AddParameterGradients(LayerNode node, Op& op, WrittenGradients& written) {
    auto& tensors = layers_.at(node).tensors;
    if (!tensors[Index(Role::kWeight)]) return;
    const bool fused = preset_.update != Update::kSeparate;
    op.attributes.push_back({"fused_update", fused ? 1.0 : 0.0});
    if (fused) {
      const auto rule = RowOf(update_rule_).attribute_list();
      const auto rate = std::ranges::find(rule, "learning_rate", &AttributeInfo::name);
      SPILLWAY_CHECK(rate != rule.end());
      op.attributes.push_back({"learning_rate", rate->initial});
    }
    for (const Role role : kParameters) {
      const std::optional<TensorId> parameter = tensors[Index(role)];
      if (!parameter) continue;
      // A tied weight has the gradient of the layer that it belongs to.
      const LayerNode owner = role == Role::kWeight ? spec(node).tied.value_or(node) : node;
      std::optional<TensorId>& gradient = layers_.at(owner).tensors[Index(GradientOf(role))];
      if (gradient && !fused) {
        written.AddTo(written.of_inputs.size() + (role == Role::kBias ? 1 : 0), *gradient);
      } else if (preset_.update != Update::kFused) {
        const Tensor& of = trace_.tensor(*parameter);
        gradient = trace_.AddTensor(
            fmt::format("{}.{}", layers_.NameOf(fused ? node : owner), Name(GradientOf(role))),
            fused ? TensorKind::kScratch : TensorKind::kParameterGradient, of.shape, of.dtype);
        if (fused) op.scratch.push_back(*gradient);
      }
      if (fused) gradient = parameter;
      tensors[Index(GradientOf(role))] = gradient;
    }
  }

  // Returns the layers with the parameters that belong to them. A tied weight belongs to another
  // layer.
  std::vector<TrainedLayer> TrainedLayers() const {
    std::vector<TrainedLayer> trained;
    for (LayerNode node = 1; node < layers_.size(); ++node) {
      const LayerExecution& execution = layers_.at(node);
      TrainedLayer layer{layers_.NameOf(node), execution.first.value(), {}};
      for (const Role role : kParameters) {
        const std::optional<TensorId> parameter = execution.tensors[Index(role)];
        if (!parameter || (role == Role::kWeight && execution.spec.tied)) continue;
        const TensorId gradient = execution.tensors[Index(GradientOf(role))].value();
        layer.parameters.push_back({role, *parameter, gradient});
      }
      trained.push_back(std::move(layer));
    }
    return trained;
  }

  const Network& network_;
  const LoweringOptions& options_;
  const Preset& preset_;
  const OpType update_rule_;
  const InPlaceRules in_place_;
  LoweredTrace trace_;
  LayerTensors layers_;
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
  return Bytes(2 * (k * n + c * k) * plane_bytes +
               ElementSize(DataType::kFloat32) * c * k * rows * columns);
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

}  // namespace spillway::traces
