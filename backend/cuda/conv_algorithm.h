// The convolution algorithms of cuDNN by name: the spelling in cost tables, and cuDNN's
// enumerators.
//
// Includes no CUDA, so that names can be checked on any machine. Which algorithms exist for a given
// convolution is the library's answer at run time; see `CudaKernels::Candidates`.

#ifndef SPILLWAY_BACKEND_CUDA_CONV_ALGORITHM_H_
#define SPILLWAY_BACKEND_CUDA_CONV_ALGORITHM_H_

#include <cstdint>
#include <span>
#include <string_view>

namespace spillway {

// The library call behind a convolution slot.
enum class ConvStep : uint8_t { kForward, kBackwardData, kBackwardFilter };

struct ConvAlgorithm {
  std::string_view name;      // "winograd_nonfused"
  int value = 0;              // cudnnConvolution{Fwd,BwdData,BwdFilter}Algo_t
  bool deterministic = true;  // gives the same bits on every run
};

// All the algorithms that cuDNN names for `step`, in the order of its enumerators.
std::span<const ConvAlgorithm> ConvAlgorithms(ConvStep step);

// The algorithm called `name`. Throws `InputError` that lists the valid names.
const ConvAlgorithm& FindConvAlgorithm(ConvStep step, std::string_view name);

// The step of a slot: "fwd", "bwd_data" or "bwd_filter". Throws `InputError` for another name.
ConvStep ParseConvStep(std::string_view slot_name);
std::string_view Name(ConvStep step);

}  // namespace spillway

#endif  // SPILLWAY_BACKEND_CUDA_CONV_ALGORITHM_H_
