#include "backend/cuda/conv_algorithm.h"

#include <array>
#include <string>
#include <vector>

#include "traces/base/error.h"

namespace spillway::cuda {
namespace {

constexpr std::array<std::string_view, 3> kStepNames{"fwd", "bwd_data", "bwd_filter"};

constexpr std::array<ConvAlgorithm, 8> kForward{{{"implicit_gemm", 0},
                                                 {"implicit_precomp_gemm", 1},
                                                 {"gemm", 2},
                                                 {"direct", 3},
                                                 {"fft", 4},
                                                 {"fft_tiling", 5},
                                                 {"winograd", 6},
                                                 {"winograd_nonfused", 7}}};
constexpr std::array<ConvAlgorithm, 6> kBackwardData{{{"algo_0", 0, false},
                                                      {"algo_1", 1},
                                                      {"fft", 2},
                                                      {"fft_tiling", 3},
                                                      {"winograd", 4},
                                                      {"winograd_nonfused", 5}}};
constexpr std::array<ConvAlgorithm, 7> kBackwardFilter{{{"algo_0", 0, false},
                                                        {"algo_1", 1},
                                                        {"fft", 2},
                                                        {"algo_3", 3, false},
                                                        {"winograd", 4},
                                                        {"winograd_nonfused", 5},
                                                        {"fft_tiling", 6}}};

}  // namespace

std::span<const ConvAlgorithm> ConvAlgorithms(ConvStep step) {
  switch (step) {
    case ConvStep::kForward:
      return kForward;
    case ConvStep::kBackwardData:
      return kBackwardData;
    case ConvStep::kBackwardFilter:
      return kBackwardFilter;
  }
  SPILLWAY_CHECK(false);
}

const ConvAlgorithm& FindConvAlgorithm(ConvStep step, std::string_view name) {
  std::vector<std::string> valid;
  for (const ConvAlgorithm& algorithm : ConvAlgorithms(step)) {
    if (algorithm.name == name) return algorithm;
    valid.emplace_back(algorithm.name);
  }
  throw InputError(UnknownName(std::string(Name(step)) + " algorithm", name, valid));
}

ConvStep ParseConvStep(std::string_view slot_name) {
  for (size_t i = 0; i < kStepNames.size(); ++i) {
    if (kStepNames[i] == slot_name) return static_cast<ConvStep>(i);
  }
  throw InputError(
      UnknownName("convolution slot", slot_name, {kStepNames.begin(), kStepNames.end()}));
}

std::string_view Name(ConvStep step) { return kStepNames[static_cast<size_t>(step)]; }

}  // namespace spillway::cuda
