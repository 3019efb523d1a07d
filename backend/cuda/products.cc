#include "backend/cuda/products.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <string>
#include <string_view>
#include <utility>

#include "backend/cuda/elementwise.h"
#include "backend/cuda/sequence_kernels.h"
#include "traces/base/error.h"
#include "traces/ops/op_table.h"

namespace spillway::cuda {

using enum Role;

namespace {

// The workspace begins with the converted operands, each at a multiple of this.
constexpr int64_t kAlignment = 256;

Bytes AlignedCopy(int64_t elements) {
  return Bytes((elements * 2 + kAlignment - 1) / kAlignment * kAlignment);
}

// The candidates of each product from which the algorithms of a slot with two are joined.
constexpr size_t kCandidatesOfTwo = 3;

bool IsInput(Role role) { return role != kY && role != kDx && role != kDx2 && role != kDweight; }

// The geometry of attention, of one sample. Queries are [rows, heads, head_dim], keys and values
// [rows, kv_heads, head_dim], scores [heads, rows, rows].
struct Heads {
  int64_t rows, heads, kv_heads, head_dim;

  explicit Heads(const Op& op)
      : rows(op.IntAttribute("rows", 1)),
        heads(op.IntAttribute("heads", 1)),
        kv_heads(op.IntAttribute("kv_heads", 1, heads)),
        head_dim(op.IntAttribute("head_dim", 1)) {
    if (heads % kv_heads != 0) {
      throw InputError(fmt::format("op '{}' ({}): {} heads of keys do not divide {} heads", op.name,
                                   Name(op.type), kv_heads, heads));
    }
  }
  int64_t group() const { return heads / kv_heads; }
};

// A matrix of each head: its row length in memory, and the elements from one sample, head of the
// keys, and query of this head to the next.
struct HeadMatrix {
  int64_t row, sample, head, query;
};

}  // namespace

// One product of a slot, with the roles of its operands.
struct Products::Product {
  Role a, b, c;
  int64_t a_elements, b_elements, c_elements;  // a sample's elements, or all of a parameter's
  bool convert_a = false, convert_b = false;
  float alpha = 1;
  MatmulShape shape{};

  // Returns the bytes of the converted operands.
  Bytes Copies(int64_t batch) const {
    Bytes size;
    if (convert_a) size += AlignedCopy(a_elements * (a == kWeight ? 1 : batch));
    if (convert_b) size += AlignedCopy(b_elements * (b == kWeight ? 1 : batch));
    return size;
  }
};

bool Products::Has(const Op& op) {
  const auto bf16 = [](const Slot& slot) { return slot.arithmetic == Arithmetic::kBf16; };
  return (op.type == OpType::kLinear &&
          (op.FindAttribute("rows") || std::ranges::any_of(op.slots, bf16))) ||
         op.type == OpType::kAttentionScores || op.type == OpType::kAttentionValues;
}

void Products::SetStream(cudaStream_t stream) {
  library_.SetStream(stream);
  stream_ = stream;
}

template <typename IsBf16>
std::vector<Products::Product> Products::Plan(const Op& op, int64_t batch, const IsBf16& is_bf16) {
  std::vector<Product> products;
  const bool forward = op.phase == Phase::kForward;
  if (op.type == OpType::kLinear) {
    const int64_t rows = PositionsOf(op);
    const int64_t in = op.IntAttribute("in_features", 1), out = op.IntAttribute("out_features", 1);
    const int64_t n = batch * rows;
    if (forward) {
      Product& p = products.emplace_back(Product{kX, kWeight, kY, rows * in, in * out, rows * out});
      p.shape.m = n, p.shape.n = out, p.shape.k = in;
      p.shape.transpose_b = true;
      p.shape.row_a = in, p.shape.row_b = in, p.shape.row_c = out;
    } else {
      if (op.Flag("needs_dx")) {
        Product& p =
            products.emplace_back(Product{kDy, kWeight, kDx, rows * out, in * out, rows * in});
        p.shape.m = n, p.shape.n = in, p.shape.k = out;
        p.shape.row_a = out, p.shape.row_b = in, p.shape.row_c = in;
      }
      Product& p =
          products.emplace_back(Product{kDy, kX, kDweight, rows * out, rows * in, in * out});
      p.shape.m = out, p.shape.n = in, p.shape.k = n;
      p.shape.transpose_a = true;
      p.shape.row_a = out, p.shape.row_b = in, p.shape.row_c = in;
    }
  } else {
    const Heads s(op);
    const HeadMatrix query{s.heads * s.head_dim, s.rows * s.heads * s.head_dim,
                           s.group() * s.head_dim, s.head_dim};
    const HeadMatrix key{s.kv_heads * s.head_dim, s.rows * s.kv_heads * s.head_dim, s.head_dim, 0};
    const HeadMatrix score{s.rows, s.heads * s.rows * s.rows, s.group() * s.rows * s.rows,
                           s.rows * s.rows};
    const auto add = [&](Role a, Role b, Role c, const HeadMatrix& of_a, const HeadMatrix& of_b,
                         const HeadMatrix& of_c, int64_t n, int64_t k) -> Product& {
      Product& p = products.emplace_back(Product{a, b, c, of_a.sample, of_b.sample, of_c.sample});
      p.shape.m = s.rows, p.shape.n = n, p.shape.k = k;
      p.shape.row_a = of_a.row, p.shape.row_b = of_b.row, p.shape.row_c = of_c.row;
      p.shape.levels = {{{batch, of_a.sample, of_b.sample, of_c.sample},
                         {s.kv_heads, of_a.head, of_b.head, of_c.head},
                         {s.group(), of_a.query, of_b.query, of_c.query}}};
      return p;
    };
    const bool scores = op.type == OpType::kAttentionScores;
    if (scores && forward) {
      add(kX, kX2, kY, query, key, score, s.rows, s.head_dim).shape.transpose_b = true;
    } else if (scores) {
      add(kDy, kX2, kDx, score, key, query, s.head_dim, s.rows);
      add(kDy, kX, kDx2, score, query, key, s.head_dim, s.rows).shape.transpose_a = true;
    } else if (forward) {
      add(kX, kX2, kY, score, key, query, s.head_dim, s.rows);
    } else {
      add(kDy, kX2, kDx, query, key, score, s.rows, s.head_dim).shape.transpose_b = true;
      add(kX, kDy, kDx2, score, query, key, s.head_dim, s.rows).shape.transpose_a = true;
    }
    if (scores) {
      for (Product& p : products) p.alpha = 1 / std::sqrt(static_cast<float>(s.head_dim));
    }
  }
  for (Product& p : products) {
    const bool a = is_bf16(p.a), b = is_bf16(p.b), c = is_bf16(p.c);
    p.shape.type = tf32_ ? MatmulType::kTf32 : MatmulType::kFp32;
    if (a || b || c) {
      p.shape.type = c ? MatmulType::kBf16 : MatmulType::kBf16ToFp32;
      p.convert_a = !a;
      p.convert_b = !b;
    }
    // Parts of the batch begin at any sample, and levels at any of their products.
    int64_t bits = kAlignment;
    const auto add = [&](int64_t elements, bool bf16) { bits |= elements * (bf16 ? 2 : 4); };
    const bool short_a = a || p.convert_a, short_b = b || p.convert_b;
    if (op.batch > 1) {
      add(p.a_elements, short_a);
      add(p.b_elements, short_b);
      add(p.c_elements, c);
    }
    for (const MatmulLevel& level : p.shape.levels) {
      if (level.count == 1) continue;
      add(level.a, short_a);
      add(level.b, short_b);
      add(level.c, c);
    }
    p.shape.alignment = bits & -bits;
    if (op.type != OpType::kLinear || !forward || !op.Flag("bias")) continue;
    p.shape.epilogue = MatmulEpilogue::kBias;
    if (library_.Candidates(p.shape, {op.name, {}, {}}).empty()) {
      p.shape.epilogue = MatmulEpilogue::kNone;
    }
  }
  return products;
}

std::vector<Candidate> Products::Candidates(const Op& op, size_t slot, int64_t batch,
                                            const OperandTypes& types) {
  const auto type_of = [](const std::vector<DataType>& list, std::optional<size_t> i) {
    return i && *i < list.size() ? list[*i] : DataType::kFloat32;
  };
  const std::vector<Product> products = Plan(op, batch, [&](Role role) {
    return IsBf16(op, IsInput(role) ? type_of(types.inputs, InputIndex(op, role))
                                    : type_of(types.outputs, OutputIndex(op, role)));
  });
  const Activity activity{op.name, op.slots[slot].name, {}};
  std::vector<Candidate> candidates;
  for (const Product& product : products) {
    const Bytes copies = product.Copies(batch);
    const std::vector<MatmulCandidate>& offered = library_.Candidates(product.shape, activity);
    const size_t count =
        products.size() == 1 ? offered.size() : std::min(offered.size(), kCandidatesOfTwo);
    std::vector<Candidate> joined;
    const std::vector<Candidate> none{{"", Bytes(0), true}};
    for (const Candidate& before : candidates.empty() ? none : candidates) {
      for (size_t i = 0; i < count; ++i) {
        joined.push_back(
            {before.algorithm + (before.algorithm.empty() ? "" : "+") + offered[i].name,
             std::max(before.workspace, copies + offered[i].workspace),
             before.deterministic && offered[i].deterministic});
      }
    }
    candidates = std::move(joined);
    if (candidates.empty()) {
      throw InputError(fmt::format(
          "op '{}', slot '{}': cuBLASLt {} has no algorithm for {} at "
          "batch {}",
          op.name, op.slots[slot].name, MatmulLibrary::Version(), op.slots[slot].signature, batch));
    }
  }
  return candidates;
}

void Products::Run(const Op& op, const SlotLaunch& launch, const Operands& operands,
                   const SumScratch& scratch, SpareWorkspace& spare, const Activity& activity) {
  const std::vector<Product> products = Plan(op, launch.batch, [&](Role role) {
    return IsInput(role) ? operands.ReadShared(role, 0).bf16 : operands.WriteShared(role, 0).bf16;
  });
  std::string_view algorithms = launch.algorithm;
  for (const Product& p : products) {
    const size_t end = algorithms.find('+');
    const std::string_view algorithm = algorithms.substr(0, end);
    if (end != algorithms.npos) algorithms.remove_prefix(end + 1);

    DeviceRange workspace = spare.AtLeast(p.Copies(launch.batch), launch.workspace);
    const auto take = [&](Role role, int64_t elements, bool convert) {
      const bool shared = role == kWeight;
      ConstElements operand =
          shared ? operands.ReadShared(role, elements) : operands.Read(role, elements);
      if (!convert) return operand;
      const int64_t count = elements * (shared ? 1 : launch.batch);
      const Bytes size = AlignedCopy(count);
      const Elements copy{workspace.data, true};
      CopyRows(operand, count, copy, count, count, 1, false, stream_);
      workspace.data += size.count();
      workspace.size -= size;
      return ConstElements(copy);
    };
    const ConstElements a = take(p.a, p.a_elements, p.convert_a);
    const ConstElements b = take(p.b, p.b_elements, p.convert_b);
    const bool parameter = p.c == kDweight;
    const Elements c =
        parameter ? operands.WriteShared(p.c, p.c_elements) : operands.Write(p.c, p.c_elements);
    GradientScale scale{p.alpha, 0};
    if (parameter) {
      scale = ParameterScale(op, launch, p.c);
    } else if (op.phase == Phase::kBackward && op.Accumulates(OutputIndex(op, p.c).value())) {
      scale.beta = 1;
    }
    std::byte* vector = nullptr;
    if (p.shape.epilogue == MatmulEpilogue::kBias) {
      vector = const_cast<std::byte*>(operands.ReadShared(kBias, p.shape.n).bytes());
    }
    library_.Multiply(p.shape, algorithm, scale.alpha, a.bytes(), b.bytes(), scale.beta, c.bytes(),
                      vector, workspace, activity);
  }
  if (!op.Flag("bias")) return;
  const int64_t rows = PositionsOf(op), out = op.IntAttribute("out_features");
  const int64_t n = launch.batch * rows;
  if (op.phase == Phase::kForward) {
    if (products.front().shape.epilogue == MatmulEpilogue::kBias) return;
    AddBias(operands.Write(kY, rows * out), operands.ReadShared(kBias, out), n, out, stream_);
    return;
  }
  SumColumns(operands.Read(kDy, rows * out), 1, n, n, 1, out, operands.WriteShared(kDbias, out),
             ParameterScale(op, launch, kDbias), scratch, stream_);
}

}  // namespace spillway::cuda
