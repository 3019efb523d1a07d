// Tests of pivots: drawn results stand in exactly one cell each, and results that cannot are named.

#include "experiments/output/pivot.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <random>

namespace spillway::testing {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

struct Result {
  std::string network, policy, memory;
  std::string status = "ok";
  std::optional<double> iteration;
  int64_t batch = 1;
};

ValueTable TableOf(const std::vector<Result>& results) {
  const Columns<Result> columns{
      {"network", "", "", &Result::network}, {"batch", "1", "", &Result::batch},
      {"policy", "", "", &Result::policy},   {"memory", "", "", &Result::memory},
      {"status", "", "", &Result::status},   {"iteration_ms", "ms", "", &Result::iteration},
  };
  return ValueTableOf(columns, results);
}

const Pivot kPivot{{"policy"}, "memory"};

std::vector<std::string> HeadsOf(const TextTable& table) {
  std::vector<std::string> heads;
  for (const TextTable::Column& column : table.columns) heads.push_back(column.head);
  return heads;
}

std::string ErrorOf(const std::vector<Result>& results, const Pivot& pivot) {
  try {
    FormatPivot(TableOf(results), pivot);
  } catch (const UsageError& error) {
    return error.what();
  }
  return "no error";
}

TEST(PivotTest, EachDrawnResultStandsInOneCell) {
  std::mt19937 random(3);
  for (int i = 0; i < 200; ++i) {
    std::vector<Result> results;
    std::map<std::pair<std::string, std::string>, std::string> expected;
    for (size_t policy = 0; policy < 1 + random() % 7; ++policy) {
      for (int memory = 10; memory <= 100; memory += 10) {
        if (random() % 3 == 0) continue;
        const double time = static_cast<double>(1000 + results.size());
        results.push_back(
            {"net", fmt::format("p{}", policy), fmt::format("{}%", memory), "ok", time});
        expected[{results.back().policy, results.back().memory}] = fmt::format("{:.0f}", time);
      }
    }
    if (results.empty()) continue;
    std::ranges::shuffle(results, random);
    const TextTable table = FormatPivot(TableOf(results), kPivot);
    std::map<std::pair<std::string, std::string>, std::string> found;
    for (const auto& row : table.rows) {
      ASSERT_EQ(row.size(), table.columns.size());
      for (size_t c = 1; c < row.size(); ++c) {
        if (row[c].empty()) continue;
        EXPECT_TRUE(found.try_emplace({row[0], table.columns[c].head}, row[c]).second);
      }
    }
    EXPECT_EQ(found, expected);

    Result other = results[random() % results.size()];
    other.network = "other";
    results.push_back(other);
    const std::string error = ErrorOf(results, kPivot);
    EXPECT_THAT(error,
                HasSubstr(fmt::format("policy '{}' and memory '{}'", other.policy, other.memory)));
    EXPECT_THAT(error, HasSubstr("'network'"));
    EXPECT_THAT(error, HasSubstr("--pivot network,policy"));
    EXPECT_EQ(FormatPivot(TableOf(results), {{"network", "policy"}, "memory"}).rows.size(),
              table.rows.size() + 1);
  }
}

TEST(PivotTest, NumbersAscendAndNamesKeepTheirOrder) {
  const auto heads = [](std::vector<std::string> memories) {
    std::vector<Result> results;
    for (const std::string& memory : memories) results.push_back({"net", "p", memory, "ok", 1});
    return HeadsOf(FormatPivot(TableOf(results), kPivot));
  };
  EXPECT_THAT(heads({"100%", "7.5%", "20%"}), ElementsAre("policy", "7.5%", "20%", "100%"));
  EXPECT_THAT(heads({"12 GiB", "512MiB", "2GiB"}),
              ElementsAre("policy", "512MiB", "2GiB", "12 GiB"));
  EXPECT_THAT(heads({"2GiB", "1GiB", "40%"}), ElementsAre("policy", "2GiB", "1GiB", "40%"));
  std::vector<Result> batches{{"net", "b", "", "ok", 1, 32}, {"net", "a", "", "ok", 1, 4}};
  const TextTable table = FormatPivot(TableOf(batches), {{"policy"}, "batch"});
  EXPECT_THAT(HeadsOf(table), ElementsAre("policy", "4", "32"));
  EXPECT_THAT(table.rows[0], ElementsAre("b", "", "1.000"));
}

TEST(PivotTest, CellsWithoutAValueSayWhy) {
  const TextTable table = FormatPivot(TableOf({{"net", "a", "1%", "oom", {}},
                                               {"net", "a", "2%", "failed", {}},
                                               {"net", "a", "3%", "ok", {}},
                                               {"net", "b", "3%", "ok", 12.3456}}),
                                      kPivot);
  EXPECT_THAT(table.rows, ElementsAre(ElementsAre("a", "oom", "failed", "-"),
                                      ElementsAre("b", "", "", "12.35")));
  EXPECT_EQ(table.title, "Iteration (ms) by policy and memory: net, batch 1");
  EXPECT_THAT(table.notes.back(), "oom: out of memory");
  EXPECT_EQ(table.group, "memory");
}

TEST(PivotTest, RefusesWhatMakesNoTable) {
  const std::vector<Result> twice{{"net", "a", "1%", "ok", 1}, {"net", "a", "1%", "ok", 1}};
  EXPECT_THAT(ErrorOf(twice, kPivot), HasSubstr("are alike"));
  const std::vector<Result> one{twice[0]};
  EXPECT_THAT(ErrorOf(one, {{"policy"}, "policy"}), HasSubstr("'policy' is named twice"));
  EXPECT_THAT(ErrorOf(one, {{"polcy"}, "memory"}), HasSubstr("did you mean 'policy'?"));
  EXPECT_THAT(ErrorOf(one, {{"policy"}, "memory", "iteration"}), "no error");
}

}  // namespace
}  // namespace spillway::testing
