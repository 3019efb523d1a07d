// The containers behind the hot paths, against the standard library's.

#include <gtest/gtest.h>

#include <map>
#include <random>
#include <set>
#include <string>

#include "traces/base/chunked_set.h"
#include "traces/name_table.h"

namespace spillway {
namespace {

TEST(ChunkedSetTest, AgreesWithASet) {
  std::mt19937 random(5);
  for (const uint32_t range : {10u, 300u, 5000u}) {
    ChunkedSet<uint32_t> chunked;
    std::set<uint32_t> model;
    for (int step = 0; step < 20000; ++step) {
      const auto key = static_cast<uint32_t>(random() % range);
      const auto at = chunked.LowerBound(key);
      const auto expected = model.lower_bound(key);
      ASSERT_EQ(at == chunked.End(), expected == model.end());
      const bool present = expected != model.end() && *expected == key;
      if (expected != model.end()) {
        ASSERT_EQ(chunked.At(at), *expected);
        const auto next = chunked.Next(at);
        ASSERT_EQ(next == chunked.End(), std::next(expected) == model.end());
        if (next != chunked.End()) {
          ASSERT_EQ(chunked.At(next), *std::next(expected));
        }
      }
      if (expected != model.begin()) {
        ASSERT_EQ(chunked.At(chunked.Previous(at)), *std::prev(expected));
      }
      // Grows for a while, then shrinks, so that chunks split and vanish.
      if (!present && (step % 4000 < 2500 || random() % 4 == 0)) {
        chunked.Insert(key);
        model.insert(key);
      } else if (present) {
        chunked.Erase(at);
        model.erase(key);
      }
      ASSERT_EQ(chunked.empty(), model.empty());
      if (!model.empty()) {
        ASSERT_EQ(chunked.Last(), *model.rbegin());
        ASSERT_EQ(chunked.At(chunked.Begin()), *model.begin());
      }
    }
  }
}

TEST(NameTableTest, AgreesWithAMap) {
  std::mt19937 random(2);
  std::map<std::string, uint32_t, std::less<>> model;
  NameTable table;
  for (uint32_t step = 0; step < 20000; ++step) {
    const std::string name = "tensor" + std::to_string(random() % 5000);
    const auto [entry, inserted] = model.emplace(name, static_cast<uint32_t>(model.size()));
    ASSERT_EQ(table.Insert(entry->first), inserted);
    ASSERT_EQ(*table.Find(name), entry->second);
    ASSERT_EQ(table.Find(name + "x"), nullptr);
  }
  table.Clear();
  EXPECT_EQ(table.Find("tensor1"), nullptr);
}

}  // namespace
}  // namespace spillway
