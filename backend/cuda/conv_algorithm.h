// The convolution algorithms of cuDNN: their names in cost tables, and cuDNN's enumerators.
//
// The header includes no CUDA, so that names can be checked on any machine.
// `CudaKernels::Candidates` asks the library at run time which algorithms exist for a given
// convolution.

#ifndef SPILLWAY_BACKEND_CUDA_CONV_ALGORITHM_H_
#define SPILLWAY_BACKEND_CUDA_CONV_ALGORITHM_H_

#include <cstdint>
#include <span>
#include <string_view>

namespace spillway::cuda {

// The library call behind a convolution slot.
enum class ConvStep : uint8_t { kForward, kBackwardData, kBackwardFilter };

struct ConvAlgorithm {
  std::string_view name;      // for example "winograd_nonfused"
  int value = 0;              // a cudnnConvolution{Fwd,BwdData,BwdFilter}Algo_t
  bool deterministic = true;  // gives the same bits on every run
};

// Returns all algorithms that cuDNN names for `step`, in the order of its enumerators.
std::span<const ConvAlgorithm> ConvAlgorithms(ConvStep step);

// Returns the algorithm called `name`. Throws `InputError` that lists the valid names if there is
// none.
const ConvAlgorithm& FindConvAlgorithm(ConvStep step, std::string_view name);

// Returns the step of the slot "fwd", "bwd_data" or "bwd_filter". Throws `InputError` for any other
// name.
ConvStep ParseConvStep(std::string_view slot_name);
std::string_view Name(ConvStep step);

}  // namespace spillway::cuda

#endif  // SPILLWAY_BACKEND_CUDA_CONV_ALGORITHM_H_
