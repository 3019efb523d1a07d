#include "backend/cuda/matmul_library.h"

#include <cublasLt.h>
#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cstring>
#include <map>
#include <optional>
#include <set>
#include <utility>

#include "traces/base/error.h"

namespace spillway::cuda {
namespace {

// A cuBLASLt object that is destroyed with its owner.
template <typename T, cublasStatus_t (*kDestroy)(T)>
class Owned {
 public:
  Owned() = default;
  ~Owned() {
    if (value_ != nullptr) kDestroy(value_);
  }
  Owned(const Owned&) = delete;
  Owned& operator=(const Owned&) = delete;
  T get() const { return value_; }
  T* address() { return &value_; }

 private:
  T value_ = nullptr;
};
using Handle = Owned<cublasLtHandle_t, cublasLtDestroy>;
using Operation = Owned<cublasLtMatmulDesc_t, cublasLtMatmulDescDestroy>;
using Matrix = Owned<cublasLtMatrixLayout_t, cublasLtMatrixLayoutDestroy>;
using Preference = Owned<cublasLtMatmulPreference_t, cublasLtMatmulPreferenceDestroy>;

void Set(const Operation& operation, cublasLtMatmulDescAttributes_t name, const auto& value) {
  SPILLWAY_CUBLAS_CALL(
      cublasLtMatmulDescSetAttribute(operation.get(), name, &value, sizeof(value)));
}
void Set(const Matrix& matrix, cublasLtMatrixLayoutAttribute_t name, const auto& value) {
  SPILLWAY_CUBLAS_CALL(cublasLtMatrixLayoutSetAttribute(matrix.get(), name, &value, sizeof(value)));
}
void Set(const Preference& preference, cublasLtMatmulPreferenceAttributes_t name,
         const auto& value) {
  SPILLWAY_CUBLAS_CALL(
      cublasLtMatmulPreferenceSetAttribute(preference.get(), name, &value, sizeof(value)));
}

// The part of an algorithm's name that says one attribute, and the attribute's size in bytes. The
// name leaves out attributes that are 0.
struct NamePart {
  std::string_view name;
  cublasLtMatmulAlgoConfigAttributes_t attribute;
  size_t size;
};
constexpr std::array kNameParts{
    NamePart{"id", CUBLASLT_ALGO_CONFIG_ID, 4},
    NamePart{"tile", CUBLASLT_ALGO_CONFIG_TILE_ID, 4},
    NamePart{"stages", CUBLASLT_ALGO_CONFIG_STAGES_ID, 4},
    NamePart{"splitk", CUBLASLT_ALGO_CONFIG_SPLITK_NUM, 4},
    NamePart{"reduction", CUBLASLT_ALGO_CONFIG_REDUCTION_SCHEME, 4},
    NamePart{"swizzle", CUBLASLT_ALGO_CONFIG_CTA_SWIZZLING, 4},
    NamePart{"custom", CUBLASLT_ALGO_CONFIG_CUSTOM_OPTION, 4},
    NamePart{"inner", CUBLASLT_ALGO_CONFIG_INNER_SHAPE_ID, 2},
    NamePart{"cluster", CUBLASLT_ALGO_CONFIG_CLUSTER_SHAPE_ID, 2},
};

std::string NameOf(const cublasLtMatmulAlgo_t& algorithm) {
  std::string name;
  for (const NamePart& part : kNameParts) {
    int32_t value = 0;
    size_t written = 0;
    SPILLWAY_CUBLAS_CALL(cublasLtMatmulAlgoConfigGetAttribute(&algorithm, part.attribute, &value,
                                                              part.size, &written));
    if (value == 0 && !name.empty()) continue;
    name += fmt::format("{}{}{}", name.empty() ? "" : "_", part.name, value);
  }
  return name;
}

// Returns the numbers of `kNameParts` that a name says, or nullopt if it is no such name.
std::optional<std::array<int32_t, kNameParts.size()>> ParseName(std::string_view name) {
  std::array<int32_t, kNameParts.size()> values{};
  size_t next = 0;  // the first part that may still follow
  bool separator = false;
  while (!name.empty()) {
    if (separator) {
      if (name.front() != '_') return std::nullopt;
      name.remove_prefix(1);
    }
    while (next < kNameParts.size() && !name.starts_with(kNameParts[next].name)) ++next;
    if (next == kNameParts.size()) return std::nullopt;
    name.remove_prefix(kNameParts[next].name.size());
    const auto [end, error] = std::from_chars(name.begin(), name.end(), values[next]);
    if (error != std::errc()) return std::nullopt;
    name.remove_prefix(static_cast<size_t>(end - name.begin()));
    ++next;
    separator = true;
  }
  return separator ? std::optional(values) : std::nullopt;
}

struct Types {
  cublasComputeType_t compute;
  cudaDataType_t in, out;
  int64_t in_size, out_size;
};

Types TypesOf(MatmulType type) {
  switch (type) {
    case MatmulType::kFp32:
      return {CUBLAS_COMPUTE_32F, CUDA_R_32F, CUDA_R_32F, 4, 4};
    case MatmulType::kTf32:
      return {CUBLAS_COMPUTE_32F_FAST_TF32, CUDA_R_32F, CUDA_R_32F, 4, 4};
    case MatmulType::kBf16:
      return {CUBLAS_COMPUTE_32F, CUDA_R_16BF, CUDA_R_16BF, 2, 2};
    case MatmulType::kBf16ToFp32:
      return {CUBLAS_COMPUTE_32F, CUDA_R_16BF, CUDA_R_32F, 2, 4};
  }
  throw Error("unknown type of product");
}

// Returns the levels of a shape with more than one product. Neighbours whose products follow each
// other at equal distances in all operands are one level.
std::vector<MatmulLevel> MergedLevels(const MatmulShape& shape) {
  std::vector<MatmulLevel> merged;
  for (const MatmulLevel& level : shape.levels) {
    if (level.count == 1) continue;
    if (!merged.empty()) {
      MatmulLevel& outer = merged.back();
      const int64_t n = level.count;
      if (outer.a == n * level.a && outer.b == n * level.b && outer.c == n * level.c) {
        outer = {outer.count * n, level.a, level.b, level.c};
        continue;
      }
    }
    merged.push_back(level);
  }
  return merged;
}

// A product as cuBLASLt sees it. It takes matrices by columns, so it multiplies the transposes:
// C^T = op(B)^T op(A)^T.
struct Product {
  Operation operation;
  Matrix first, second, out;  // B, A and C
  Types types{};
  std::vector<MatmulLevel> loops;  // one call for each product of these levels
  int64_t alignment = 0;
  std::vector<MatmulCandidate> candidates;
  std::map<std::string, cublasLtMatmulHeuristicResult_t, std::less<>> plans;
};

Bytes WorkspaceOf(const cublasLtMatmulHeuristicResult_t& plan) {
  return Bytes(static_cast<int64_t>(plan.workspaceSize));
}

void SetBatch(const Matrix& matrix, const MatmulLevel& batch, int64_t stride) {
  Set(matrix, CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT, static_cast<int32_t>(batch.count));
  Set(matrix, CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET, stride);
}

void CheckShape(const MatmulShape& s, const Activity& activity) {
  const auto fits = [](int64_t row, bool transposed, int64_t rows, int64_t columns) {
    return row >= (transposed ? rows : columns);
  };
  bool valid = s.m >= 1 && s.n >= 1 && s.k >= 1 && s.alignment >= 1 &&
               (s.alignment & (s.alignment - 1)) == 0 && fits(s.row_a, s.transpose_a, s.m, s.k) &&
               fits(s.row_b, s.transpose_b, s.k, s.n) && fits(s.row_c, false, s.m, s.n);
  for (const MatmulLevel& level : s.levels) {
    const bool sums = level.count > 1 && level.c == 0;
    const bool single = level.count == 1;
    valid = valid && level.count >= 1 && !(s.epilogue == MatmulEpilogue::kBias && sums) &&
            (s.epilogue != MatmulEpilogue::kBiasGradient || single);
  }
  if (valid) return;
  throw InputError(fmt::format(
      "{}: not a product: {} x {} x {}, rows of {}, {} and {} elements, {} x {} x {} products, "
      "alignment {}",
      Describe(activity), s.m, s.n, s.k, s.row_a, s.row_b, s.row_c, s.levels[0].count,
      s.levels[1].count, s.levels[2].count, s.alignment));
}

}  // namespace

struct MatmulLibrary::Impl {
  Impl() { SPILLWAY_CUBLAS_CALL(cublasLtCreate(handle.address())); }

  Product& ProductFor(const MatmulShape& shape, const Activity& activity) {
    std::unique_ptr<Product>& product = products[shape];
    if (!product) {
      CheckShape(shape, activity);
      auto made = std::make_unique<Product>();
      DescribeProduct(shape, *made, activity);
      FindCandidates(*made, activity);
      product = std::move(made);
    }
    return *product;
  }

  static void DescribeProduct(const MatmulShape& s, Product& product, const Activity& activity) {
    product.types = TypesOf(s.type);
    const auto& [compute, in, out, in_size, out_size] = product.types;
    std::vector<MatmulLevel> levels = MergedLevels(s);
    // The products of a batch run at once, so they cannot be added up.
    MatmulLevel batch;
    size_t chosen = levels.size();
    for (size_t i = 0; i < levels.size(); ++i) {
      if (levels[i].c != 0 && levels[i].count > batch.count) batch = levels[chosen = i];
    }
    if (chosen < levels.size()) levels.erase(levels.begin() + static_cast<int64_t>(chosen));
    product.loops = levels;
    product.alignment = s.alignment;
    for (const MatmulLevel& level : levels) {
      for (const int64_t bytes : {level.a * in_size, level.b * in_size, level.c * out_size}) {
        if (bytes != 0) product.alignment = std::min(product.alignment, bytes & -bytes);
      }
    }
    SPILLWAY_CUBLAS_CALL(cublasLtMatmulDescCreate(product.operation.address(), compute, CUDA_R_32F),
                         activity);
    Set(product.operation, CUBLASLT_MATMUL_DESC_TRANSA, s.transpose_b ? CUBLAS_OP_T : CUBLAS_OP_N);
    Set(product.operation, CUBLASLT_MATMUL_DESC_TRANSB, s.transpose_a ? CUBLAS_OP_T : CUBLAS_OP_N);
    if (s.epilogue != MatmulEpilogue::kNone) {
      Set(product.operation, CUBLASLT_MATMUL_DESC_EPILOGUE,
          s.epilogue == MatmulEpilogue::kBias ? CUBLASLT_EPILOGUE_BIAS : CUBLASLT_EPILOGUE_BGRADB);
      Set(product.operation, CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE, static_cast<int32_t>(out));
    }
    const auto create = [&](Matrix& matrix, cudaDataType_t type, bool transposed, int64_t rows,
                            int64_t columns, int64_t row, int64_t stride) {
      if (transposed) std::swap(rows, columns);
      SPILLWAY_CUBLAS_CALL(
          cublasLtMatrixLayoutCreate(matrix.address(), type, static_cast<uint64_t>(columns),
                                     static_cast<uint64_t>(rows), row),
          activity);
      SetBatch(matrix, batch, stride);
    };
    create(product.first, in, s.transpose_b, s.k, s.n, s.row_b, batch.b);
    create(product.second, in, s.transpose_a, s.m, s.k, s.row_a, batch.a);
    create(product.out, out, false, s.m, s.n, s.row_c, batch.c);
  }

  void FindCandidates(Product& product, const Activity& activity) {
    Preference preference;
    SPILLWAY_CUBLAS_CALL(cublasLtMatmulPreferenceCreate(preference.address()), activity);
    const auto alignment = static_cast<uint32_t>(product.alignment);
    for (const auto name :
         {CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES,
          CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES}) {
      Set(preference, name, alignment);
    }
    // The first query is for candidates, the second for one that needs no workspace.
    for (const Bytes limit : {kMaxWorkspace, Bytes(0)}) {
      Set(preference, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES,
          static_cast<uint64_t>(limit.count()));
      std::array<cublasLtMatmulHeuristicResult_t, kMaxCandidates> results;
      int count = 0;
      const cublasStatus_t code =
          cublasLtMatmulAlgoGetHeuristic(handle.get(), product.operation.get(), product.first.get(),
                                         product.second.get(), product.out.get(), product.out.get(),
                                         preference.get(), kMaxCandidates, results.data(), &count);
      if (code == CUBLAS_STATUS_NOT_SUPPORTED || code == CUBLAS_STATUS_INVALID_VALUE) continue;
      CheckCublas(code, "cublasLtMatmulAlgoGetHeuristic", activity);
      for (int i = 0; i < count; ++i) {
        AddCandidate(product, results[static_cast<size_t>(i)], limit == Bytes(0));
      }
    }
    for (MatmulCandidate& candidate : product.candidates) {
      candidate.workspace = WorkspaceOf(product.plans.find(candidate.name)->second);
    }
  }

  // Adds an algorithm unless its name does not say all about it. The heuristic may name a workspace
  // for an algorithm that it also proposes where there is none.
  void AddCandidate(Product& product, const cublasLtMatmulHeuristicResult_t& result,
                    bool without_workspace) {
    if (result.state != CUBLAS_STATUS_SUCCESS) return;
    if (without_workspace && result.workspaceSize == 0) product.plans.emplace("default", result);
    const std::string name = NameOf(result.algo);
    std::optional<cublasLtMatmulHeuristicResult_t> rebuilt = Rebuild(product, name);
    if (!rebuilt || std::memcmp(&rebuilt->algo, &result.algo, sizeof(result.algo)) != 0) return;
    rebuilt->workspaceSize = std::max(rebuilt->workspaceSize, result.workspaceSize);
    const auto [plan, added] = product.plans.emplace(name, *rebuilt);
    if (without_workspace && rebuilt->workspaceSize == 0) plan->second.workspaceSize = 0;
    if (added && product.candidates.size() < kMaxCandidates) {
      product.candidates.push_back({name, Bytes(0)});
    }
  }

  // Returns the algorithm of a name, or nullopt if there is none or cuBLASLt does not support it
  // for this product.
  std::optional<cublasLtMatmulHeuristicResult_t> Rebuild(const Product& product,
                                                         std::string_view name) const {
    const auto values = ParseName(name);
    if (!values || values->front() < 0) return std::nullopt;
    cublasLtMatmulHeuristicResult_t result{};
    const Types& t = product.types;
    if (cublasLtMatmulAlgoInit(handle.get(), t.compute, CUDA_R_32F, t.in, t.in, t.out, t.out,
                               values->front(), &result.algo) != CUBLAS_STATUS_SUCCESS) {
      return std::nullopt;
    }
    for (size_t i = 1; i < kNameParts.size(); ++i) {
      const NamePart& part = kNameParts[i];
      if (cublasLtMatmulAlgoConfigSetAttribute(&result.algo, part.attribute, &(*values)[i],
                                               part.size) != CUBLAS_STATUS_SUCCESS) {
        return std::nullopt;
      }
    }
    if (cublasLtMatmulAlgoCheck(handle.get(), product.operation.get(), product.first.get(),
                                product.second.get(), product.out.get(), product.out.get(),
                                &result.algo, &result) != CUBLAS_STATUS_SUCCESS) {
      return std::nullopt;
    }
    return result;
  }

  const cublasLtMatmulHeuristicResult_t& PlanFor(Product& product, std::string_view name,
                                                 const Activity& activity) const {
    const auto found = product.plans.find(name);
    if (found != product.plans.end()) return found->second;
    if (const auto rebuilt = Rebuild(product, name)) {
      return product.plans.emplace(name, *rebuilt).first->second;
    }
    std::string names;
    for (const auto& [known, plan] : product.plans) {
      names += fmt::format("{}{}", names.empty() ? "" : ", ", known);
    }
    throw InputError(fmt::format("{}: cuBLASLt has no algorithm '{}' for this product; it has {}",
                                 Describe(activity), name, names.empty() ? "none at all" : names));
  }

  Handle handle;
  cudaStream_t stream = nullptr;
  std::map<MatmulShape, std::unique_ptr<Product>> products;
};

MatmulLibrary::MatmulLibrary() : impl_(std::make_unique<Impl>()) {}
MatmulLibrary::~MatmulLibrary() = default;

std::string MatmulLibrary::Version() {
  const size_t version = cublasLtGetVersion();  // 130200 means 13.2.0
  return fmt::format("{}.{}.{}", version / 10000, version / 100 % 100, version % 100);
}

void MatmulLibrary::SetStream(cudaStream_t stream) { impl_->stream = stream; }

const std::vector<MatmulCandidate>& MatmulLibrary::Candidates(const MatmulShape& shape,
                                                              const Activity& activity) {
  return impl_->ProductFor(shape, activity).candidates;
}

Bytes MatmulLibrary::Workspace(const MatmulShape& shape, std::string_view name,
                               const Activity& activity) {
  return WorkspaceOf(impl_->PlanFor(impl_->ProductFor(shape, activity), name, activity));
}

void MatmulLibrary::Multiply(const MatmulShape& shape, std::string_view name, float alpha,
                             const std::byte* a, const std::byte* b, float beta, std::byte* c,
                             std::byte* vector, const DeviceRange& workspace,
                             const Activity& activity) {
  Product& product = impl_->ProductFor(shape, activity);
  const cublasLtMatmulHeuristicResult_t& plan = impl_->PlanFor(product, name, activity);
  if (shape.epilogue != MatmulEpilogue::kNone) {
    Set(product.operation, CUBLASLT_MATMUL_DESC_BIAS_POINTER, vector);
  }
  const auto call = [&](const std::byte* a_at, const std::byte* b_at, float beta_at,
                        std::byte* c_at) {
    SPILLWAY_CUBLAS_CALL(
        cublasLtMatmul(impl_->handle.get(), product.operation.get(), &alpha, b_at,
                       product.first.get(), a_at, product.second.get(), &beta_at, c_at,
                       product.out.get(), c_at, product.out.get(), &plan.algo, workspace.data,
                       static_cast<size_t>(workspace.size.count()), impl_->stream),
        activity);
  };
  const Types& t = product.types;
  const auto loop = [&](const auto& self, size_t level, const std::byte* a_at,
                        const std::byte* b_at, float beta_at, std::byte* c_at) -> void {
    if (level == product.loops.size()) return call(a_at, b_at, beta_at, c_at);
    const MatmulLevel& l = product.loops[level];
    for (int64_t i = 0; i < l.count; ++i) {
      self(self, level + 1, a_at + i * l.a * t.in_size, b_at + i * l.b * t.in_size,
           i > 0 && l.c == 0 ? 1.0f : beta_at, c_at + i * l.c * t.out_size);
    }
  };
  loop(loop, 0, a, b, beta, c);
}

}  // namespace spillway::cuda
