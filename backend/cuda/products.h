// The ops that multiply matrices with cuBLASLt: linear layers and the products of attention.

#ifndef SPILLWAY_BACKEND_CUDA_PRODUCTS_H_
#define SPILLWAY_BACKEND_CUDA_PRODUCTS_H_

#include <cstddef>
#include <cstdint>
#include <vector>

#include "backend/cuda/matmul_library.h"
#include "backend/cuda/slot_launch.h"
#include "backend/cuda/slot_operands.h"
#include "backend/cuda/spare_workspace.h"

namespace spillway::cuda {

// If an operand or the result of a product is bfloat16, operands of float32 are converted first.
// The copies lie in the workspace.
class Products {
 public:
  // Opens cuBLASLt on the current device. `tf32` allows tensor cores for products of float32, which
  // round their operands.
  explicit Products(bool tf32) : tf32_(tf32) {}

  // Returns true iff the op multiplies matrices with this class.
  static bool Has(const Op& op);

  void SetStream(cudaStream_t stream);

  // Returns the algorithms of a slot on `batch` samples. The name of an algorithm of a slot with
  // two products joins the names of both by '+'.
  std::vector<Candidate> Candidates(const Op& op, size_t slot, int64_t batch,
                                    const OperandTypes& types);

  void Run(const Op& op, const SlotLaunch& launch, const Operands& operands,
           const SumScratch& scratch, SpareWorkspace& spare, const Activity& activity);

 private:
  struct Product;
  // Returns the products of the slot in their order. `is_bf16` says it of the operand of a role.
  template <typename IsBf16>
  std::vector<Product> Plan(const Op& op, int64_t batch, const IsBf16& is_bf16);

  bool tf32_;
  MatmulLibrary library_;
  cudaStream_t stream_ = nullptr;
};

}  // namespace spillway::cuda

#endif  // SPILLWAY_BACKEND_CUDA_PRODUCTS_H_
