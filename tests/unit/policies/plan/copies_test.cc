// Tests that storages and ops of equal layers are found, and that networks without equal layers
// have no copies.

#include "policies/plan/copies.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <random>
#include <set>
#include <string>
#include <vector>

#include "tests/testing/fixtures.h"
#include "traces/liveness.h"

namespace spillway::testing {
namespace {

// A step of a chain. Each op of forward has a number, which is its library call and the size of its
// output. Backward mirrors forward and reads each output again. A last op reads all gradients.
struct Step {
  explicit Step(const std::vector<int>& numbers) : trace(TraceOf(numbers)), liveness(trace) {
    for (size_t i = 1; i <= numbers.size(); ++i) outputs.push_back(static_cast<TensorId>(i));
  }

  Copies Find() const { return FindCopies(trace, liveness, outputs); }

  static Trace TraceOf(const std::vector<int>& numbers) {
    testing::TraceBuilder builder;
    builder.Tensor("y0", TensorKind::kInput, 8);
    for (size_t i = 1; i <= numbers.size(); ++i) {
      const auto name = fmt::format("y{}", i);
      builder.Tensor(name, TensorKind::kActivation, numbers[i - 1]);
      builder.Op("f" + name, Phase::kForward, {fmt::format("y{}", i - 1)}, {name});
    }
    std::string above = fmt::format("y{}", numbers.size());
    for (size_t i = numbers.size(); i > 0; --i) {
      const auto name = fmt::format("d{}", i);
      builder.Tensor(name, TensorKind::kGradient, numbers[i - 1]);
      builder.Op("b" + name, Phase::kBackward, {fmt::format("y{}", i), above}, {name});
      above = name;
    }
    Trace trace = builder.Build();
    for (size_t i = 0; i < trace.ops.size(); ++i) {
      const size_t forward = std::min(i, trace.ops.size() - 1 - i);
      trace.ops[i].slots[0].signature = std::to_string(numbers[forward]);
    }
    return trace;
  }

  Trace trace;
  Liveness liveness;
  std::vector<TensorId> outputs;
};

// Draws numbers for the ops of a stem, of `layers` equal layers and of a head.
std::vector<int> Draw(std::mt19937_64& random, int layers) {
  const auto some = [&](size_t least) {
    std::vector<int> ops(least + random() % 6);
    for (int& op : ops) op = 4 * static_cast<int>(1 + random() % 5);
    return ops;
  };
  std::vector<int> numbers = some(0);
  const std::vector<int> layer = some(2);
  for (int i = 0; i < layers; ++i) numbers.insert(numbers.end(), layer.begin(), layer.end());
  const std::vector<int> head = some(0);
  numbers.insert(numbers.end(), head.begin(), head.end());
  return numbers;
}

// Returns true iff the ops at i and j, and four ops on either side of them, are alike.
bool AreCopies(const Trace& trace, int64_t i, int64_t j) {
  const auto count = static_cast<int64_t>(trace.ops.size());
  for (int64_t away = -4; away <= 4; ++away) {
    const int64_t a = i + away, b = j + away;
    const bool a_is = a >= 0 && a < count, b_is = b >= 0 && b < count;
    if (a_is != b_is) return false;
    if (!a_is) continue;
    const Op& one = trace.ops[static_cast<size_t>(a)];
    const Op& other = trace.ops[static_cast<size_t>(b)];
    if (one.phase != other.phase || one.slots != other.slots) return false;
    if (one.inputs.size() != other.inputs.size()) return false;
    for (size_t k = 0; k < one.inputs.size(); ++k) {
      if (trace.tensor(one.inputs[k]).size != trace.tensor(other.inputs[k]).size) return false;
    }
  }
  return true;
}

TEST(CopiesTest, OpsAreCopiesIffTheOpsAroundThemAreAlike) {
  std::mt19937_64 random(1);
  int repeating = 0;
  for (int drawn = 0; drawn < 40; ++drawn) {
    const Step step(Draw(random, static_cast<int>(10 + random() % 15)));
    const Copies copies = step.Find();
    if (!copies.layers_repeat) continue;
    ++repeating;
    std::vector<size_t> group(step.trace.ops.size());
    for (size_t i = 0; i < copies.ops.size(); ++i) {
      EXPECT_TRUE(std::ranges::is_sorted(copies.ops[i]));
      for (const OpId op : copies.ops[i]) group[Index(op)] = i;
    }
    for (size_t i = 0; i < group.size(); ++i) {
      for (size_t j = 0; j < i; ++j) {
        EXPECT_EQ(group[i] == group[j],
                  AreCopies(step.trace, static_cast<int64_t>(i), static_cast<int64_t>(j)))
            << drawn << ": " << i << ", " << j;
      }
    }
  }
  EXPECT_GT(repeating, 20);
}

TEST(CopiesTest, EachGroupHasOneStorageOfEachLayer) {
  std::vector<int> numbers{100, 104};
  const std::vector<int> layer{4, 8, 12, 8, 4, 16};  // the same sizes at different places
  for (int i = 0; i < 20; ++i) numbers.insert(numbers.end(), layer.begin(), layer.end());
  numbers.push_back(108);
  const Step step(numbers);
  const Copies copies = step.Find();
  ASSERT_TRUE(copies.layers_repeat);
  std::set<TensorId> seen;
  size_t large = 0;
  for (const std::vector<TensorId>& group : copies.storages) {
    seen.insert(group.begin(), group.end());
    if (group.size() < 3) continue;
    ++large;
    EXPECT_GE(group.size(), 18u);
    for (size_t i = 1; i < group.size(); ++i) {
      EXPECT_EQ(Index(group[i]) - Index(group[i - 1]), layer.size());
    }
  }
  EXPECT_EQ(large, layer.size());
  EXPECT_EQ(seen.size(), step.outputs.size());
}

// Expects that each op and each storage stands alone, in its order.
void ExpectNone(const Step& step) {
  const Copies copies = step.Find();
  EXPECT_FALSE(copies.layers_repeat);
  ASSERT_EQ(copies.storages.size(), step.outputs.size());
  for (size_t i = 0; i < step.outputs.size(); ++i) {
    EXPECT_EQ(copies.storages[i], std::vector{step.outputs[i]});
  }
  ASSERT_EQ(copies.ops.size(), step.trace.ops.size());
  for (size_t i = 0; i < copies.ops.size(); ++i) {
    EXPECT_EQ(copies.ops[i], std::vector{static_cast<OpId>(i)});
  }
}

TEST(CopiesTest, FewLayersAndDifferentLayersDoNotRepeat) {
  std::mt19937_64 random(2);
  for (int drawn = 0; drawn < 20; ++drawn) {
    ExpectNone(Step(Draw(random, 7)));
    std::vector<int> different = Draw(random, 20);
    for (size_t i = 0; i < different.size(); ++i) different[i] += 32 * static_cast<int>(i);
    ExpectNone(Step(different));
  }
  // The trace has as many ops outside the equal layers as in them.
  std::vector<int> half(60, 4);
  for (int i = 0; i < 60; ++i) half.push_back(100 + 4 * i);
  ExpectNone(Step(half));
}

// Long layers, whose first and last ops matter little.
TEST(CopiesTest, EightLayersRepeatAndSevenDoNot) {
  std::vector<int> numbers;
  for (int i = 0; i < 7 * 60; ++i) numbers.push_back(4 * (1 + i % 60));
  ExpectNone(Step(numbers));
  for (int i = 0; i < 60; ++i) numbers.push_back(4 * (1 + i % 60));
  EXPECT_TRUE(Step(numbers).Find().layers_repeat);
}

TEST(CopiesTest, TimesDoNotMatter) {
  Step step(std::vector<int>(60, 4));
  const Copies before = step.Find();
  ASSERT_TRUE(before.layers_repeat);
  for (size_t i = 0; i < step.trace.ops.size(); ++i) {
    step.trace.ops[i].recorded = {Duration::Nanoseconds(static_cast<int64_t>(i)), {}, {}, {}};
  }
  EXPECT_EQ(step.Find().storages, before.storages);
}

TEST(CopiesTest, WithoutStoragesNothingRepeats) {
  Step step({4, 4});
  step.outputs.clear();
  ExpectNone(step);
}

}  // namespace
}  // namespace spillway::testing
