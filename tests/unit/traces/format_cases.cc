#include "tests/unit/traces/format_cases.h"

#include <gtest/gtest.h>

#include <random>
#include <vector>

#include "tests/testing/files.h"
#include "traces/format.h"

namespace spillway::testing {

std::string Edited(std::string_view from, std::string_view to) {
  std::string text(kSmall);
  const size_t at = text.find(from);
  EXPECT_NE(at, std::string::npos) << from;
  return text.replace(at, from.size(), to);
}

std::string ErrorOfEdit(std::string_view from, std::string_view to) {
  return InputErrorOf([&] { ParseTrace(Edited(from, to), "t.json"); });
}

std::string Shuffled(const std::string& text) {
  const size_t layers = text.find("\"layers\""), tensors = text.find("\"tensors\""),
               ops = text.find("\"ops\"");
  const std::string shuffled = "{" + text.substr(ops, text.size() - ops - 1) + "," +
                               text.substr(tensors, ops - tensors) +
                               text.substr(layers, tensors - layers) + text.substr(1, layers - 1);
  return shuffled.substr(0, shuffled.rfind(',')) + "}";
}

Trace RandomTrace(uint32_t seed) {
  std::mt19937 random(seed);
  const auto draw = [&](int64_t n) { return static_cast<int64_t>(random() % n); };
  const auto name = [&](const char* prefix, size_t i) {
    static constexpr const char* kTails[] = {"", "\"", "\\", "\n", " {}", "\u00e9", "/", "\x01"};
    return prefix + std::to_string(i) + kTails[draw(8)];
  };
  Trace trace;
  trace.name = name("trace", seed);
  trace.network = name("network", 0);
  trace.batch = 1 + draw(512);
  trace.training = draw(2) == 0;
  for (int64_t i = 0; i <= draw(5); ++i) {
    trace.layers.push_back({name("layer", i), static_cast<OpType>(draw(15))});
  }
  const int64_t tensors = 1 + draw(30);
  for (int64_t i = 0; i < tensors; ++i) {
    Tensor tensor{
        name("t", i), static_cast<TensorKind>(draw(7)), {}, Bytes(draw(int64_t{1} << 31)), {}};
    for (int64_t d = draw(5); d > 0; --d) tensor.shape.push_back(draw(1000));
    if (draw(3) == 0 && i + 1 < tensors) {
      tensor.alias_of = static_cast<TensorId>(i + 1 + draw(tensors - i - 1));
      tensor.size = Bytes(0);
    }
    trace.tensors.push_back(tensor);
  }
  for (Tensor& tensor : trace.tensors) {
    if (!tensor.alias_of || trace.tensor(*tensor.alias_of).alias_of) continue;
    tensor.offset = Bytes(draw(trace.tensor(*tensor.alias_of).size.count() + 1));
  }
  std::vector<TensorId> readable, scratch;
  for (size_t i = 0; i < trace.tensors.size(); ++i) {
    const TensorId id{static_cast<uint32_t>(i)};
    const TensorKind kind = trace.tensor(trace.Root(id)).kind;
    if (kind == TensorKind::kInput || kind == TensorKind::kParameter) readable.push_back(id);
    if (kind == TensorKind::kScratch) scratch.push_back(id);
  }
  for (int64_t i = draw(20); i >= 0; --i) {
    Op op;
    op.name = name("op", i);
    op.layer = static_cast<LayerId>(draw(static_cast<int64_t>(trace.layers.size())));
    op.type = static_cast<OpType>(draw(15));
    op.phase = static_cast<Phase>(draw(3));
    op.recomputable = op.phase == Phase::kForward && draw(2) == 0;
    op.batch = 1 + draw(100);
    for (int64_t k = draw(4); k > 0 && !readable.empty(); --k) {
      op.inputs.push_back(readable[draw(static_cast<int64_t>(readable.size()))]);
    }
    for (int64_t k = draw(3); k > 0; --k)
      op.outputs.push_back(static_cast<TensorId>(draw(tensors)));
    if (draw(2) == 0 && !scratch.empty()) op.scratch.push_back(scratch.front());
    for (int64_t k = draw(3); k >= 0; --k) {
      op.slots.push_back({name("slot", k), name("signature", draw(9)), draw(int64_t{1} << 31),
                          Bytes(draw(int64_t{1} << 31))});
    }
    for (int64_t k = draw(4); k > 0; --k) {
      op.attributes.push_back({name("a", k), static_cast<double>(random()) / 1000});
    }
    op.lane = static_cast<uint8_t>(draw(2) == 0 ? draw(kMaxLanes) : 0);
    for (uint32_t k = 0; k < trace.ops.size() && op.lane != 0; ++k) {
      if (trace.ops[k].lane != op.lane && draw(3) == 0) op.after.push_back(OpId{k});
    }
    trace.ops.push_back(op);
  }
  for (Tensor& tensor : trace.tensors) {
    tensor.lane = static_cast<uint8_t>(draw(4) == 0 ? draw(kMaxLanes) : 0);
  }
  return trace;
}

}  // namespace spillway::testing
