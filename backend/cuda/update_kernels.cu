#include "backend/cuda/sequence_kernels.h"

#include <cmath>

#include "backend/cuda/device_rows.h"

namespace spillway::cuda {
namespace {

struct AdamCall {
  AdamParameter parameters[kMostAdamParameters];
  bool wide[kMostAdamParameters];  // whether elements can be moved four at a time
  AdamRule rule;
  double log_beta1, log_beta2;
};

// Each block updates a part of one parameter. Its first thread computes the corrections that depend
// on the step.
__global__ void AdamKernel(AdamCall call) {
  const AdamParameter& p = call.parameters[blockIdx.y];
  const AdamRule& rule = call.rule;
  if (int64_t{blockIdx.x} * blockDim.x * 4 >= p.count) return;
  __shared__ float size, root;
  if (threadIdx.x == 0) {
    const double step = static_cast<double>(*p.step) + 1;
    size = static_cast<float>(rule.learning_rate / -expm1(step * call.log_beta1));
    root = static_cast<float>(sqrt(-expm1(step * call.log_beta2)));
  }
  __syncthreads();
  const auto beta1 = static_cast<float>(rule.beta1), rest1 = static_cast<float>(1 - rule.beta1);
  const auto beta2 = static_cast<float>(rule.beta2), rest2 = static_cast<float>(1 - rule.beta2);
  const auto epsilon = static_cast<float>(rule.epsilon);
  const double decay = rule.learning_rate * rule.weight_decay;
  const auto kept = static_cast<float>(rule.decay_apart ? 1 - decay : 1);
  const auto pull = static_cast<float>(rule.decay_apart ? 0 : rule.weight_decay);
  const int64_t i = (int64_t{blockIdx.x} * blockDim.x + threadIdx.x) * 4;
  const RowPart part{0, p.count, call.wide[blockIdx.y]};
  const Floats<4> w = part.Get(p.weight, i), g = part.Get(p.gradient, i);
  const Floats<4> m = part.Get(p.first, i), v = part.Get(p.second, i);
  Floats<4> next_w, next_m, next_v;
  for (int k = 0; k < 4; ++k) {
    const float gradient = g.v[k] + pull * w.v[k];
    next_m.v[k] = beta1 * m.v[k] + rest1 * gradient;
    next_v.v[k] = beta2 * v.v[k] + rest2 * gradient * gradient;
    next_w.v[k] = kept * w.v[k] - size * next_m.v[k] / (sqrtf(next_v.v[k]) / root + epsilon);
  }
  part.Put(p.next_first, i, next_m, false);
  part.Put(p.next_second, i, next_v, false);
  part.Put(p.next_weight, i, next_w, false);
  if (p.next_copy.data != nullptr) part.Put(p.next_copy, i, next_w, false);
}

// Runs behind `AdamKernel`, whose blocks read the old steps.
__global__ void AdamStepKernel(AdamCall call) {
  const AdamParameter& p = call.parameters[threadIdx.x];
  *p.next_step = *p.step + 1;
}

}  // namespace

void Adam(const AdamParameter* parameters, size_t count, const AdamRule& rule,
          cudaStream_t stream) {
  AdamCall call;
  call.rule = rule;
  call.log_beta1 = std::log(rule.beta1);
  call.log_beta2 = std::log(rule.beta2);
  int64_t largest = 0;
  for (size_t i = 0; i < count; ++i) {
    const AdamParameter& p = call.parameters[i] = parameters[i];
    call.wide[i] = WideRows(p.count, {p.weight, p.gradient, p.first, p.second, p.next_weight,
                                      p.next_first, p.next_second, p.next_copy});
    largest = std::max(largest, p.count);
  }
  if (largest == 0) return;
  AdamKernel<<<dim3(BlockCount((largest + 3) / 4), static_cast<unsigned>(count)), kThreads, 0,
               stream>>>(call);
  AdamStepKernel<<<1, static_cast<unsigned>(count), 0, stream>>>(call);
  SPILLWAY_CUDA_CALL(cudaGetLastError());
}

}  // namespace spillway::cuda
