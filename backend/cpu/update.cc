// The updates of parameters, SGD with momentum, Adam and AdamW, and the clipping of gradients.

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "backend/cpu/operands.h"
#include "traces/base/error.h"

namespace spillway::cpu {
namespace {

// Calls update(part, elements) for each parameter. Throws `InputError` if the parameters have other
// sizes together than the op says.
template <typename Scalar, typename Update>
void ForEachParameter(const Call<Scalar>& call, Update update) {
  const Op& op = call.op;
  const size_t parameters = ParameterCount(op, call.inputs.size(), call.outputs.size());
  const auto count_of = [&](size_t i) {
    const std::span<std::byte> parameter = call.inputs[InputIndex(op, kParameter, i).value()];
    return static_cast<int64_t>(parameter.size() / sizeof(Scalar));
  };
  int64_t total = 0;
  for (size_t i = 0; i < parameters; ++i) total += count_of(i);
  if (total != op.IntAttribute("elements")) {
    throw InputError(
        fmt::format("op '{}' ({}): the parameters have {} elements, attribute 'elements' is {}",
                    op.name, Name(op.type), total, op.IntAttribute("elements")));
  }
  for (size_t i = 0; i < parameters; ++i) update(i, count_of(i));
}

template <typename Scalar>
void RunSgd(const Call<Scalar>& call) {
  const Op& op = call.op;
  const auto learning_rate = static_cast<Scalar>(op.NumberAttribute("learning_rate"));
  const auto momentum = static_cast<Scalar>(op.NumberAttribute("momentum"));
  const auto weight_decay = static_cast<Scalar>(op.NumberAttribute("weight_decay"));
  ForEachParameter(call, [&](size_t part, int64_t count) {
    const Scalar* w = call.Input(kParameter, count, part);
    const Scalar* dw = call.Input(kGradient, count, part);
    const Scalar* m = call.Input(kMomentum, count, part);
    Scalar* next_w = call.Output(kParameter, count, part);
    Scalar* next_m = call.Output(kMomentum, count, part);
    for (int64_t j = 0; j < count; ++j) {
      const Scalar old = w[j];
      const Scalar velocity = momentum * m[j] + (dw[j] + weight_decay * old);
      next_m[j] = velocity;
      next_w[j] = old - learning_rate * velocity;
    }
  });
}

// Kingma and Ba 2015. AdamW decays the weights apart from the gradient (Loshchilov and Hutter
// 2019).
template <typename Scalar>
void RunAdam(const Call<Scalar>& call) {
  const Op& op = call.op;
  const double rate = op.NumberAttribute("learning_rate");
  const double beta1 = op.NumberAttribute("beta1");
  const double beta2 = op.NumberAttribute("beta2");
  const auto epsilon = static_cast<Scalar>(op.NumberAttribute("epsilon"));
  const double decay = op.NumberAttribute("weight_decay");
  const bool master = op.Flag("master");  // a copy of the parameter that is not rounded
  const bool apart = op.type == OpType::kAdamW;
  ForEachParameter(call, [&](size_t part, int64_t count) {
    const Scalar* w = call.Input(master ? kMaster : kParameter, count, part);
    const Scalar* dw = call.Input(kGradient, count, part);
    const Scalar* m = call.Input(kMomentum, count, part);
    const Scalar* v = call.Input(kSecondMoment, count, part);
    Scalar* next_w = call.Output(kParameter, count, part);
    Scalar* next_master = master ? call.Output(kMaster, count, part) : nullptr;
    Scalar* next_m = call.Output(kMomentum, count, part);
    Scalar* next_v = call.Output(kSecondMoment, count, part);
    const Scalar step = *call.Input(kStep, 1, part) + 1;
    *call.Output(kStep, 1, part) = step;
    const double correction1 = 1 - std::pow(beta1, static_cast<double>(step));
    const double correction2 = 1 - std::pow(beta2, static_cast<double>(step));
    const auto size = static_cast<Scalar>(rate / correction1);
    const auto root = static_cast<Scalar>(std::sqrt(correction2));
    const auto kept = static_cast<Scalar>(apart ? 1 - rate * decay : 1);
    const auto pull = static_cast<Scalar>(apart ? 0 : decay);
    const auto b1 = static_cast<Scalar>(beta1), b2 = static_cast<Scalar>(beta2);
    const auto rest1 = static_cast<Scalar>(1 - beta1), rest2 = static_cast<Scalar>(1 - beta2);
    for (int64_t j = 0; j < count; ++j) {
      const Scalar gradient = dw[j] + pull * w[j];
      const Scalar first = b1 * m[j] + rest1 * gradient;
      const Scalar second = b2 * v[j] + rest2 * gradient * gradient;
      next_m[j] = first;
      next_v[j] = second;
      next_w[j] = kept * w[j] - size * first / (std::sqrt(second) / root + epsilon);
      if (master) next_master[j] = next_w[j];
    }
  });
}

// Sums in double, whatever the scalar type.
template <typename Scalar>
void RunSquareSum(const Call<Scalar>& call) {
  const int64_t count = call.op.IntAttribute("elements");
  const Scalar* gradient = call.Input(kGradient, count);
  double sum = 0;
  for (int64_t i = 0; i < count; ++i) {
    sum += static_cast<double>(gradient[i]) * static_cast<double>(gradient[i]);
  }
  Store(call.Output(kSquareSum, 1), 0, static_cast<Scalar>(sum), call.op.Accumulates(0));
}

// Scales the gradient as `torch.nn.utils.clip_grad_norm_` does.
template <typename Scalar>
void RunClip(const Call<Scalar>& call) {
  const int64_t count = call.op.IntAttribute("elements");
  const Scalar* gradient = call.Input(kGradient, count);
  Scalar* clipped = call.Output(kGradient, count);
  const Scalar norm = std::sqrt(*call.Input(kSquareSum, 1));
  const auto max_norm = static_cast<Scalar>(call.op.NumberAttribute("max_norm"));
  const Scalar factor = std::min(max_norm / (norm + static_cast<Scalar>(1e-6)), Scalar(1));
  for (int64_t i = 0; i < count; ++i) clipped[i] = gradient[i] * factor;
}

}  // namespace

template <typename Scalar>
bool RunUpdate(const Call<Scalar>& call) {
  switch (call.op.type) {
    case OpType::kSquareSum:
      return RunSquareSum(call), true;
    case OpType::kClip:
      return RunClip(call), true;
    case OpType::kSgd:
      return RunSgd(call), true;
    case OpType::kAdam:
    case OpType::kAdamW:
      return RunAdam(call), true;
    default:
      return false;
  }
}

template bool RunUpdate(const Call<float>&);
template bool RunUpdate(const Call<double>&);

}  // namespace spillway::cpu
