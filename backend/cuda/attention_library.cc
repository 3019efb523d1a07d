#include "backend/cuda/attention_library.h"

#include <cudnn_graph.h>
#include <fmt/format.h>

#include <array>
#include <cmath>
#include <deque>
#include <initializer_list>
#include <limits>
#include <map>
#include <optional>
#include <string_view>
#include <utility>
#include <vector>

#include "backend/cuda/cudnn_error.h"
#include "traces/base/error.h"

namespace spillway::cuda {
namespace {

// Backward of earlier versions is wrong for lengths that are not multiples of 128.
constexpr size_t kOldestCudnn = 91600;

// cuDNN's name of the type of an attribute.
template <typename T>
constexpr cudnnBackendAttributeType_t kAttributeType{};
template <>
constexpr cudnnBackendAttributeType_t kAttributeType<bool> = CUDNN_TYPE_BOOLEAN;
template <>
constexpr cudnnBackendAttributeType_t kAttributeType<int64_t> = CUDNN_TYPE_INT64;
template <>
constexpr cudnnBackendAttributeType_t kAttributeType<std::byte*> = CUDNN_TYPE_VOID_PTR;
template <>
constexpr cudnnBackendAttributeType_t kAttributeType<cudnnHandle_t> = CUDNN_TYPE_HANDLE;
template <>
constexpr cudnnBackendAttributeType_t kAttributeType<cudnnDataType_t> = CUDNN_TYPE_DATA_TYPE;
template <>
constexpr cudnnBackendAttributeType_t kAttributeType<cudnnPointwiseMode_t> =
    CUDNN_TYPE_POINTWISE_MODE;
template <>
constexpr cudnnBackendAttributeType_t kAttributeType<cudnnReduceTensorOp_t> =
    CUDNN_TYPE_REDUCTION_OPERATOR_TYPE;
template <>
constexpr cudnnBackendAttributeType_t kAttributeType<cudnnBackendHeurMode_t> = CUDNN_TYPE_HEUR_MODE;
template <>
constexpr cudnnBackendAttributeType_t kAttributeType<cudnnBackendDescriptor_t> =
    CUDNN_TYPE_BACKEND_DESCRIPTOR;

// A descriptor of the graph API, which is destroyed with its owner.
class GraphDescriptor {
 public:
  explicit GraphDescriptor(cudnnBackendDescriptorType_t type) {
    SPILLWAY_CUDNN_CALL(cudnnBackendCreateDescriptor(type, &value_));
  }
  GraphDescriptor(GraphDescriptor&& other) noexcept : value_(std::exchange(other.value_, {})) {}
  GraphDescriptor& operator=(GraphDescriptor&& other) noexcept {
    std::swap(value_, other.value_);
    return *this;
  }
  ~GraphDescriptor() {
    if (value_ != nullptr) cudnnBackendDestroyDescriptor(value_);
  }
  cudnnBackendDescriptor_t get() const { return value_; }

  template <typename T>
  void Set(cudnnBackendAttributeName_t name, const std::vector<T>& values) {
    SPILLWAY_CUDNN_CALL(cudnnBackendSetAttribute(
        value_, name, kAttributeType<T>, static_cast<int64_t>(values.size()), values.data()));
  }
  template <typename T>
  void Set(cudnnBackendAttributeName_t name, const T& value) {
    SPILLWAY_CUDNN_CALL(cudnnBackendSetAttribute(value_, name, kAttributeType<T>, 1, &value));
  }
  void Set(cudnnBackendAttributeName_t name, const GraphDescriptor& descriptor) {
    Set(name, descriptor.get());
  }
  void Finalize() { SPILLWAY_CUDNN_CALL(cudnnBackendFinalize(value_)); }

 private:
  cudnnBackendDescriptor_t value_ = nullptr;
};

// The tensors that are in memory when a graph is executed, and its scalars.
enum TensorId : int64_t {
  kQ = 1,
  kK,
  kV,
  kY,
  kDy,
  kLogSumExp,
  kDq,
  kDk,
  kDv,
  kRowSums,  // fp32 [batch, heads, rows], the sums of dy * y over each row
  kDqSums,   // fp32 [batch, heads, rows, head_dim]
  kScale,
  kMinusInfinity,
  kOne,
  kFirstVirtual,
};

using Extents = std::vector<int64_t>;

Extents DenseStrides(const Extents& extents) {
  Extents strides(extents.size(), 1);
  for (size_t i = extents.size() - 1; i > 0; --i) strides[i - 1] = strides[i] * extents[i];
  return strides;
}

// Collects the operations of a graph. All intermediate values stay inside the kernel.
class GraphBuilder {
 public:
  using Tensor = const GraphDescriptor&;

  // Adds a tensor that is in memory.
  Tensor InMemory(TensorId id, const Extents& extents, const Extents& strides,
                  cudnnDataType_t type) {
    return Add(id, extents, strides, type, [](GraphDescriptor&) {});
  }

  // Adds a number of type fp32.
  Tensor Scalar(TensorId id) {
    const Extents one(4, 1);
    return Add(id, one, one, CUDNN_DATA_FLOAT,
               [](GraphDescriptor& tensor) { tensor.Set(CUDNN_ATTR_TENSOR_IS_BY_VALUE, true); });
  }

  // Adds an intermediate value.
  Tensor Virtual(const Extents& extents, const Extents& strides,
                 cudnnDataType_t type = CUDNN_DATA_FLOAT) {
    return Add(next_virtual_++, extents, strides, type,
               [](GraphDescriptor& tensor) { tensor.Set(CUDNN_ATTR_TENSOR_IS_VIRTUAL, true); });
  }
  Tensor Virtual(const Extents& extents, cudnnDataType_t type = CUDNN_DATA_FLOAT) {
    return Virtual(extents, DenseStrides(extents), type);
  }

  void Product(Tensor a, Tensor b, Tensor c) {
    GraphDescriptor& product = descriptors_.emplace_back(CUDNN_BACKEND_MATMUL_DESCRIPTOR);
    product.Set(CUDNN_ATTR_MATMUL_COMP_TYPE, CUDNN_DATA_FLOAT);
    product.Finalize();
    AddOperation(CUDNN_BACKEND_OPERATION_MATMUL_DESCRIPTOR,
                 {{CUDNN_ATTR_OPERATION_MATMUL_DESC, product},
                  {CUDNN_ATTR_OPERATION_MATMUL_ADESC, a},
                  {CUDNN_ATTR_OPERATION_MATMUL_BDESC, b},
                  {CUDNN_ATTR_OPERATION_MATMUL_CDESC, c}});
  }

  // y = mode(x)
  void Pointwise(cudnnPointwiseMode_t mode, Tensor x, Tensor y) {
    AddPointwise(PointwiseMode(mode), {{CUDNN_ATTR_OPERATION_POINTWISE_XDESC, x},
                                       {CUDNN_ATTR_OPERATION_POINTWISE_YDESC, y}});
  }
  // y = mode(x, b), computed in fp32 unless `type` is given.
  void Pointwise(cudnnPointwiseMode_t mode, Tensor x, Tensor b, Tensor y,
                 cudnnDataType_t type = CUDNN_DATA_FLOAT) {
    AddPointwise(PointwiseMode(mode, type), {{CUDNN_ATTR_OPERATION_POINTWISE_XDESC, x},
                                             {CUDNN_ATTR_OPERATION_POINTWISE_BDESC, b},
                                             {CUDNN_ATTR_OPERATION_POINTWISE_YDESC, y}});
  }
  // y = condition ? x : otherwise
  void Select(Tensor condition, Tensor x, Tensor otherwise, Tensor y) {
    AddPointwise(PointwiseMode(CUDNN_POINTWISE_BINARY_SELECT),
                 {{CUDNN_ATTR_OPERATION_POINTWISE_XDESC, x},
                  {CUDNN_ATTR_OPERATION_POINTWISE_BDESC, otherwise},
                  {CUDNN_ATTR_OPERATION_POINTWISE_TDESC, condition},
                  {CUDNN_ATTR_OPERATION_POINTWISE_YDESC, y}});
  }
  // Each element of `y` is its own index along `axis`.
  void Index(int64_t axis, Tensor x, Tensor y) {
    AddPointwise(
        PointwiseMode(CUDNN_POINTWISE_GEN_INDEX, CUDNN_DATA_FLOAT, axis),
        {{CUDNN_ATTR_OPERATION_POINTWISE_XDESC, x}, {CUDNN_ATTR_OPERATION_POINTWISE_YDESC, y}});
  }

  // Reduces each axis whose extent is 1 in `y`.
  void Reduce(cudnnReduceTensorOp_t operation, Tensor x, Tensor y) {
    GraphDescriptor& reduction = descriptors_.emplace_back(CUDNN_BACKEND_REDUCTION_DESCRIPTOR);
    reduction.Set(CUDNN_ATTR_REDUCTION_OPERATOR, operation);
    reduction.Set(CUDNN_ATTR_REDUCTION_COMP_TYPE, CUDNN_DATA_FLOAT);
    reduction.Finalize();
    AddOperation(CUDNN_BACKEND_OPERATION_REDUCTION_DESCRIPTOR,
                 {{CUDNN_ATTR_OPERATION_REDUCTION_DESC, reduction},
                  {CUDNN_ATTR_OPERATION_REDUCTION_XDESC, x},
                  {CUDNN_ATTR_OPERATION_REDUCTION_YDESC, y}});
  }

  // `y` is `x` with other extents and strides.
  void Reshape(Tensor x, Tensor y) {
    AddOperation(
        CUDNN_BACKEND_OPERATION_RESHAPE_DESCRIPTOR,
        {{CUDNN_ATTR_OPERATION_RESHAPE_XDESC, x}, {CUDNN_ATTR_OPERATION_RESHAPE_YDESC, y}});
  }

  // Returns the ids of the tensors in memory and of the scalars.
  const std::vector<int64_t>& given() const { return given_; }

  GraphDescriptor Finish() {
    GraphDescriptor graph(CUDNN_BACKEND_OPERATIONGRAPH_DESCRIPTOR);
    graph.Set(CUDNN_ATTR_OPERATIONGRAPH_OPS, operations_);
    graph.Finalize();
    return graph;
  }

 private:
  using Attributes =
      std::initializer_list<std::pair<cudnnBackendAttributeName_t, const GraphDescriptor&>>;

  template <typename Adjust>
  Tensor Add(int64_t id, const Extents& extents, const Extents& strides, cudnnDataType_t type,
             const Adjust& adjust) {
    GraphDescriptor& tensor = descriptors_.emplace_back(CUDNN_BACKEND_TENSOR_DESCRIPTOR);
    tensor.Set(CUDNN_ATTR_TENSOR_UNIQUE_ID, id);
    tensor.Set(CUDNN_ATTR_TENSOR_DATA_TYPE, type);
    tensor.Set(CUDNN_ATTR_TENSOR_DIMENSIONS, extents);
    tensor.Set(CUDNN_ATTR_TENSOR_STRIDES, strides);
    tensor.Set(CUDNN_ATTR_TENSOR_BYTE_ALIGNMENT, int64_t{16});
    adjust(tensor);
    tensor.Finalize();
    if (id < kFirstVirtual) given_.push_back(id);
    return tensor;
  }

  const GraphDescriptor& PointwiseMode(cudnnPointwiseMode_t mode,
                                       cudnnDataType_t type = CUDNN_DATA_FLOAT, int64_t axis = -1) {
    GraphDescriptor& pointwise = descriptors_.emplace_back(CUDNN_BACKEND_POINTWISE_DESCRIPTOR);
    pointwise.Set(CUDNN_ATTR_POINTWISE_MODE, mode);
    pointwise.Set(CUDNN_ATTR_POINTWISE_MATH_PREC, type);
    if (axis >= 0) pointwise.Set(CUDNN_ATTR_POINTWISE_AXIS, axis);
    pointwise.Finalize();
    return pointwise;
  }

  void AddPointwise(const GraphDescriptor& mode, Attributes tensors) {
    AddOperation(CUDNN_BACKEND_OPERATION_POINTWISE_DESCRIPTOR, tensors, &mode);
  }

  void AddOperation(cudnnBackendDescriptorType_t type, Attributes attributes,
                    const GraphDescriptor* mode = nullptr) {
    GraphDescriptor& operation = descriptors_.emplace_back(type);
    if (mode != nullptr) operation.Set(CUDNN_ATTR_OPERATION_POINTWISE_PW_DESCRIPTOR, *mode);
    for (const auto& [name, value] : attributes) operation.Set(name, value);
    operation.Finalize();
    operations_.push_back(operation.get());
  }

  std::vector<int64_t> given_;
  std::deque<GraphDescriptor> descriptors_;
  std::vector<cudnnBackendDescriptor_t> operations_;
  int64_t next_virtual_ = kFirstVirtual;
};

// The extents and strides of the tensors of one shape, in cuDNN's order [batch, heads, rows,
// features].
struct Layout {
  AttentionShape shape;
  cudnnDataType_t type;
  Extents scores, rows, queries, keys;

  explicit Layout(const AttentionShape& s)
      : shape(s),
        type(s.type == AttentionType::kBf16 ? CUDNN_DATA_BFLOAT16 : CUDNN_DATA_HALF),
        scores{s.batch, s.heads, s.rows, s.rows},
        rows{s.batch, s.heads, s.rows, 1},
        queries{s.batch, s.heads, s.rows, s.head_dim},
        keys{s.batch, s.kv_heads, s.rows, s.head_dim} {}

  // Returns the strides of a tensor that lies in memory as [batch, rows, heads, features].
  static Extents Strides(const Extents& e) { return {e[1] * e[2] * e[3], e[3], e[1] * e[3], 1}; }
};

Extents Transposed(Extents extents) {
  std::swap(extents[2], extents[3]);
  return extents;
}

// Builds the graphs of attention. FlashAttention (Dao et al. 2022) is the pattern that cuDNN
// recognises in them.
class AttentionGraph : public GraphBuilder {
 public:
  explicit AttentionGraph(const AttentionShape& shape) : l_(shape) {}

  void Forward(bool training) {
    Tensor scores = Scores(QueryLike(kQ), Transposed(kK));
    Tensor largest = Virtual(l_.rows);
    Tensor difference = Virtual(l_.scores);
    Tensor exponential = Virtual(l_.scores);
    Tensor sum = Virtual(l_.rows);
    Tensor probabilities = Virtual(l_.scores, l_.type);
    Reduce(CUDNN_REDUCE_TENSOR_MAX, scores, largest);
    Pointwise(CUDNN_POINTWISE_SUB, scores, largest, difference);
    Pointwise(CUDNN_POINTWISE_EXP, difference, exponential);
    Reduce(CUDNN_REDUCE_TENSOR_ADD, exponential, sum);
    // cuDNN recognises the pattern only with the logarithm, which inference does not store.
    Tensor logarithm = Virtual(l_.rows);
    Pointwise(CUDNN_POINTWISE_LOG, sum, logarithm);
    Pointwise(CUDNN_POINTWISE_ADD, largest, logarithm,
              training ? Rows(kLogSumExp) : Virtual(l_.rows));
    Pointwise(CUDNN_POINTWISE_DIV, exponential, sum, probabilities);
    Product(probabilities, KeyLike(kV), QueryLike(kY));
  }

  // If `deterministic`, dq is one product of the gradients of the scores, which cuDNN then keeps in
  // its workspace. Otherwise blocks add to `kDqSums` in any order.
  void Backward(bool deterministic) {
    Tensor q = QueryLike(kQ);
    Tensor k_transposed = Transposed(kK);
    Tensor dy = QueryLike(kDy);
    Tensor product = Virtual(l_.queries);
    Tensor sum = Virtual(l_.rows);
    Tensor row_sums = Rows(kRowSums);
    Pointwise(CUDNN_POINTWISE_MUL, dy, QueryLike(kY), product);
    Reduce(CUDNN_REDUCE_TENSOR_ADD, product, sum);
    Pointwise(CUDNN_POINTWISE_MUL, sum, Scalar(kOne), row_sums);

    Tensor scale = Scalar(kScale);
    Tensor products = Virtual(l_.scores);
    Tensor scaled = Virtual(l_.scores);
    Tensor difference = Virtual(l_.scores);
    Tensor probabilities = Virtual(l_.scores);
    Product(q, k_transposed, products);
    Pointwise(CUDNN_POINTWISE_MUL, products, scale, scaled);
    Pointwise(CUDNN_POINTWISE_SUB, scaled, Rows(kLogSumExp), difference);
    Pointwise(CUDNN_POINTWISE_EXP, Masked(difference), probabilities);
    KeyGradient(probabilities, dy, kDv);

    Tensor dp = Virtual(l_.scores);
    Tensor centred = Virtual(l_.scores);
    Tensor unscaled = Virtual(l_.scores);
    Tensor ds = Virtual(l_.scores);
    Product(dy, Transposed(kV), dp);
    Pointwise(CUDNN_POINTWISE_SUB, dp, row_sums, centred);
    Pointwise(CUDNN_POINTWISE_MUL, centred, probabilities, unscaled);
    Pointwise(CUDNN_POINTWISE_MUL, unscaled, scale, ds);
    KeyGradient(ds, q, kDk);

    Tensor k = Virtual(l_.keys, Layout::Strides(l_.keys), l_.type);
    Reshape(k_transposed, k);
    if (deterministic) {
      Product(ds, k, QueryLike(kDq));
      return;
    }
    Tensor dq_sums = InMemory(kDqSums, l_.queries, DenseStrides(l_.queries), CUDNN_DATA_FLOAT);
    Product(ds, k, dq_sums);
    Pointwise(CUDNN_POINTWISE_IDENTITY, dq_sums, QueryLike(kDq));
  }

 private:
  Tensor QueryLike(TensorId id) {
    return InMemory(id, l_.queries, Layout::Strides(l_.queries), l_.type);
  }
  Tensor KeyLike(TensorId id) { return InMemory(id, l_.keys, Layout::Strides(l_.keys), l_.type); }
  Tensor Transposed(TensorId id) {
    return InMemory(id, cuda::Transposed(l_.keys), cuda::Transposed(Layout::Strides(l_.keys)),
                    l_.type);
  }
  Tensor Rows(TensorId id) {
    return InMemory(id, l_.rows, DenseStrides(l_.rows), CUDNN_DATA_FLOAT);
  }

  // Returns the scaled and masked products of queries and keys.
  Tensor Scores(Tensor q, Tensor k_transposed) {
    Tensor products = Virtual(l_.scores);
    Tensor scaled = Virtual(l_.scores);
    Product(q, k_transposed, products);
    Pointwise(CUDNN_POINTWISE_MUL, products, Scalar(kScale), scaled);
    return Masked(scaled);
  }

  // Returns the scores, without those of later positions if the shape is causal.
  Tensor Masked(Tensor scores) {
    if (!l_.shape.causal) return scores;
    Tensor query = Virtual(l_.scores, CUDNN_DATA_INT32);
    Tensor key = Virtual(l_.scores, CUDNN_DATA_INT32);
    Tensor visible = Virtual(l_.scores, CUDNN_DATA_BOOLEAN);
    Tensor masked = Virtual(l_.scores);
    Index(2, scores, query);
    Index(3, scores, key);
    Pointwise(CUDNN_POINTWISE_CMP_GE, query, key, visible, CUDNN_DATA_BOOLEAN);
    Select(visible, scores, Scalar(kMinusInfinity), masked);
    return masked;
  }

  // Computes the gradient of keys or values: the transpose of `scores` times `queries`, added up
  // over the queries' heads that read one head of the keys.
  void KeyGradient(Tensor scores, Tensor queries, TensorId gradient) {
    Tensor transposed =
        Virtual(cuda::Transposed(l_.scores), cuda::Transposed(DenseStrides(l_.scores)), l_.type);
    Reshape(scores, transposed);
    if (l_.shape.heads == l_.shape.kv_heads) {
      Product(transposed, queries, KeyLike(gradient));
      return;
    }
    Tensor of_each_head = Virtual(l_.queries, l_.type);
    Product(transposed, queries, of_each_head);
    Reduce(CUDNN_REDUCE_TENSOR_ADD, of_each_head, KeyLike(gradient));
  }

  const Layout l_;
};

// A compiled graph. Its workspace begins with `kDqSums` and `kRowSums` of backward.
struct Plan {
  GraphDescriptor plan;
  std::vector<int64_t> given;  // ids of the operands
  Bytes dq_sums, row_sums;
  Bytes workspace;  // the bytes of the whole workspace
};

// Returns the configurations of engines that the heuristic proposes, the fastest first.
std::vector<GraphDescriptor> Configurations(const GraphDescriptor& graph,
                                            const GraphDescriptor& device) {
  GraphDescriptor heuristic(CUDNN_BACKEND_ENGINEHEUR_DESCRIPTOR);
  heuristic.Set(CUDNN_ATTR_ENGINEHEUR_OPERATION_GRAPH, graph);
  heuristic.Set(CUDNN_ATTR_ENGINEHEUR_MODE, CUDNN_HEUR_MODE_A);
  heuristic.Set(CUDNN_ATTR_ENGINEHEUR_DEVICEPROP, device);
  const cudnnStatus_t code = cudnnBackendFinalize(heuristic.get());
  if (IsDeclined(code)) return {};
  CheckCudnn(code, "cudnnBackendFinalize");
  int64_t count = 0;
  SPILLWAY_CUDNN_CALL(cudnnBackendGetAttribute(heuristic.get(), CUDNN_ATTR_ENGINEHEUR_RESULTS,
                                               CUDNN_TYPE_BACKEND_DESCRIPTOR, 0, &count, nullptr));
  std::vector<GraphDescriptor> found;
  std::vector<cudnnBackendDescriptor_t> descriptors;
  for (int64_t i = 0; i < count; ++i) {
    descriptors.push_back(found.emplace_back(CUDNN_BACKEND_ENGINECFG_DESCRIPTOR).get());
  }
  SPILLWAY_CUDNN_CALL(cudnnBackendGetAttribute(heuristic.get(), CUDNN_ATTR_ENGINEHEUR_RESULTS,
                                               CUDNN_TYPE_BACKEND_DESCRIPTOR, count, &count,
                                               descriptors.data()));
  found.erase(found.begin() + count, found.end());
  return found;
}

// Returns the plan of the first configuration that cuDNN compiles, if there is one.
std::optional<GraphDescriptor> Compile(const GraphDescriptor& graph,
                                       const GraphDescriptor& device) {
  for (const GraphDescriptor& configuration : Configurations(graph, device)) {
    GraphDescriptor plan(CUDNN_BACKEND_EXECUTION_PLAN_DESCRIPTOR);
    plan.Set(CUDNN_ATTR_EXECUTION_PLAN_ENGINE_CONFIG, configuration);
    plan.Set(CUDNN_ATTR_EXECUTION_PLAN_DEVICEPROP, device);
    const cudnnStatus_t code = cudnnBackendFinalize(plan.get());
    if (code == CUDNN_STATUS_SUCCESS) return plan;
    if (IsEnvironment(code)) CheckCudnn(code, "cudnnBackendFinalize");
  }
  return std::nullopt;
}

Bytes Aligned(int64_t size) { return Bytes((size + 255) / 256 * 256); }

enum class Pass : uint8_t { kInference, kTraining, kBackward };

void CheckShape(const AttentionShape& s, Pass pass, const Activity& activity) {
  // Backward of larger heads has no kernel on Hopper (cuDNN's table of supported attention).
  const int64_t largest = pass == Pass::kInference ? 256 : 128;
  if (s.batch >= 1 && s.rows >= 1 && s.kv_heads >= 1 && s.heads >= 1 && s.heads % s.kv_heads == 0 &&
      s.head_dim >= 8 && s.head_dim <= largest && s.head_dim % 8 == 0) {
    return;
  }
  throw InputError(fmt::format(
      "{}: fused attention of cuDNN needs heads of a multiple of 8 up to {} features and a number "
      "of query heads that the key heads divide; here are {} samples of {} positions, {} heads, {} "
      "key heads and {} features",
      Describe(activity), largest, s.batch, s.rows, s.heads, s.kv_heads, s.head_dim));
}

}  // namespace

struct AttentionLibrary::Impl {
  explicit Impl(bool is_deterministic) : deterministic(is_deterministic) {
    if (cudnnGetVersion() < kOldestCudnn) {
      throw EnvironmentError(
          fmt::format("fused attention needs cuDNN 9.16 or later, found {}", CudnnVersion()));
    }
    SPILLWAY_CUDNN_CALL(cudnnCreate(&handle));
    device.Set(CUDNN_ATTR_DEVICEPROP_HANDLE, handle);
    device.Finalize();
  }
  ~Impl() { cudnnDestroy(handle); }
  Impl(const Impl&) = delete;
  Impl& operator=(const Impl&) = delete;

  // Returns the plan of a shape, which is compiled at its first use.
  const Plan& PlanFor(const AttentionShape& shape, Pass pass, const Activity& activity) {
    const auto found = plans.find({shape, pass});
    if (found != plans.end()) return found->second;
    CheckShape(shape, pass, activity);
    AttentionGraph builder(shape);
    if (pass == Pass::kBackward) {
      builder.Backward(deterministic);
    } else {
      builder.Forward(pass == Pass::kTraining);
    }
    std::optional<GraphDescriptor> compiled = Compile(builder.Finish(), device);
    if (!compiled) {
      throw InputError(fmt::format("{}: cuDNN {} does not support this attention: {}",
                                   Describe(activity), CudnnVersion(), LastCudnnError()));
    }
    int64_t count = 0;
    int64_t size = 0;
    SPILLWAY_CUDNN_CALL(
        cudnnBackendGetAttribute(compiled->get(), CUDNN_ATTR_EXECUTION_PLAN_WORKSPACE_SIZE,
                                 CUDNN_TYPE_INT64, 1, &count, &size),
        activity);
    Plan plan{std::move(*compiled), builder.given(), Bytes(), Bytes(), Bytes()};
    if (pass == Pass::kBackward) {
      const int64_t rows = shape.batch * shape.heads * shape.rows;
      const auto element = static_cast<int64_t>(sizeof(float));
      plan.row_sums = Aligned(rows * element);
      if (!deterministic) plan.dq_sums = Aligned(rows * shape.head_dim * element);
    }
    plan.workspace = plan.dq_sums + plan.row_sums + Bytes(size);
    return plans.emplace(std::pair(shape, pass), std::move(plan)).first->second;
  }

  // Enqueues the plan on the memory at the addresses of `operands`.
  void Execute(const Plan& plan, const AttentionShape& shape,
               std::map<int64_t, const void*> operands, const DeviceRange& workspace,
               const Activity& activity) {
    if (workspace.size < plan.workspace) {
      throw InputError(fmt::format("{}: the workspace has {} bytes, needs {}", Describe(activity),
                                   workspace.size.count(), plan.workspace.count()));
    }
    const float scale = 1 / std::sqrt(static_cast<float>(shape.head_dim));
    const float minus_infinity = -std::numeric_limits<float>::infinity();
    const float one = 1;
    std::byte* const row_sums = workspace.data + plan.dq_sums.count();
    std::byte* const rest = row_sums + plan.row_sums.count();
    operands.insert({{kScale, &scale},
                     {kMinusInfinity, &minus_infinity},
                     {kOne, &one},
                     {kDqSums, workspace.data},
                     {kRowSums, row_sums}});
    std::vector<std::byte*> addresses;
    for (const int64_t id : plan.given) {
      const void* address = operands.at(id);
      addresses.push_back(const_cast<std::byte*>(static_cast<const std::byte*>(address)));
    }
    GraphDescriptor pack(CUDNN_BACKEND_VARIANT_PACK_DESCRIPTOR);
    pack.Set(CUDNN_ATTR_VARIANT_PACK_UNIQUE_IDS, plan.given);
    pack.Set(CUDNN_ATTR_VARIANT_PACK_DATA_POINTERS, addresses);
    pack.Set(CUDNN_ATTR_VARIANT_PACK_WORKSPACE, rest);
    pack.Finalize();
    SPILLWAY_CUDNN_CALL(cudnnBackendExecute(handle, plan.plan.get(), pack.get()), activity);
  }

  cudnnHandle_t handle = nullptr;
  const bool deterministic;
  GraphDescriptor device{CUDNN_BACKEND_DEVICEPROP_DESCRIPTOR};
  std::map<std::pair<AttentionShape, Pass>, Plan> plans;
};

AttentionLibrary::AttentionLibrary(bool deterministic)
    : impl_(std::make_unique<Impl>(deterministic)) {}
AttentionLibrary::~AttentionLibrary() = default;

void AttentionLibrary::SetStream(cudaStream_t stream) {
  SPILLWAY_CUDNN_CALL(cudnnSetStream(impl_->handle, stream));
}

Bytes AttentionLibrary::ForwardWorkspace(const AttentionShape& shape, bool training,
                                         const Activity& activity) {
  return impl_->PlanFor(shape, training ? Pass::kTraining : Pass::kInference, activity).workspace;
}

Bytes AttentionLibrary::BackwardWorkspace(const AttentionShape& shape, const Activity& activity) {
  return impl_->PlanFor(shape, Pass::kBackward, activity).workspace;
}

void AttentionLibrary::Forward(const AttentionShape& shape, const std::byte* q, const std::byte* k,
                               const std::byte* v, std::byte* y, float* log_sum_exp,
                               const DeviceRange& workspace, const Activity& activity) {
  const Pass pass = log_sum_exp != nullptr ? Pass::kTraining : Pass::kInference;
  impl_->Execute(impl_->PlanFor(shape, pass, activity), shape,
                 {{kQ, q}, {kK, k}, {kV, v}, {kY, y}, {kLogSumExp, log_sum_exp}}, workspace,
                 activity);
}

void AttentionLibrary::Backward(const AttentionShape& shape, const std::byte* q, const std::byte* k,
                                const std::byte* v, const std::byte* y, const std::byte* dy,
                                const float* log_sum_exp, std::byte* dq, std::byte* dk,
                                std::byte* dv, const DeviceRange& workspace,
                                const Activity& activity) {
  impl_->Execute(impl_->PlanFor(shape, Pass::kBackward, activity), shape,
                 {{kQ, q},
                  {kK, k},
                  {kV, v},
                  {kY, y},
                  {kDy, dy},
                  {kLogSumExp, log_sum_exp},
                  {kDq, dq},
                  {kDk, dk},
                  {kDv, dv}},
                 workspace, activity);
}

}  // namespace spillway::cuda
