// Tests of the containers on hot paths against containers of the standard library.

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <random>
#include <set>
#include <string>

#include "traces/base/chunked_set.h"
#include "traces/name_table.h"

namespace spillway::testing {
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
      // The set grows for a while and then shrinks, so that chunks split and vanish.
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

TEST(ChunkedSetTest, FindsTheFirstAndTheLastOfAWeight) {
  struct Entry {
    uint32_t key, weight;
  };
  struct Before {
    bool operator()(const Entry& a, const Entry& b) const { return a.key < b.key; }
  };
  struct WeightOf {
    uint32_t operator()(const Entry& entry) const { return entry.weight; }
  };
  std::mt19937 random(6);
  ChunkedSet<Entry, Before, WeightOf> chunked;
  std::map<uint32_t, uint32_t> model;  // key -> weight
  for (int step = 0; step < 20000; ++step) {
    const auto key = static_cast<uint32_t>(random() % 500);
    if (model.erase(key) != 0) {
      chunked.Erase(Entry{key, 0});
    } else if (step % 4000 < 2500 || random() % 4 == 0) {
      // Few entries are heavy, so that most chunks are skipped.
      model[key] = random() % 8 == 0 ? static_cast<uint32_t>(random() % 100) : 1;
      chunked.Insert({key, model[key]});
    }
    const auto least = static_cast<uint32_t>(random() % 110);
    const auto enough = [&](const auto& entry) { return entry.second >= least; };
    const auto first = std::find_if(model.begin(), model.end(), enough);
    const auto last = std::find_if(model.rbegin(), model.rend(), enough);
    const auto lowest = chunked.FirstAtLeast(least), highest = chunked.LastAtLeast(least);
    ASSERT_EQ(lowest == chunked.End(), first == model.end());
    ASSERT_EQ(highest == chunked.End(), first == model.end());
    ASSERT_EQ(chunked.Largest() >= least, least == 0 || first != model.end());
    if (first == model.end()) continue;
    ASSERT_EQ(chunked.At(lowest).key, first->first);
    ASSERT_EQ(chunked.At(highest).key, last->first);
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
}  // namespace spillway::testing
