// Tests of the columns that tables for people show, and of the digits of their cells.

#include "experiments/output/value_table.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "traces/base/error.h"

namespace spillway::testing {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

struct Result {
  std::string workload, network, device;
  std::optional<std::string> request;
  std::optional<Bytes> memory;
  std::string policy;
  std::optional<double> slowdown = {};
};

ValueTable TableOf(const std::vector<Result>& results) {
  return ValueTableOf(
      Columns<Result>{
          {"workload", "", "", &Result::workload},
          {"network", "", "", &Result::network},
          {"device", "", "", &Result::device},
          {"memory_bytes", "B", "", &Result::memory},
          {"memory_request", "", "", &Result::request},
          {"policy", "", "", &Result::policy, "policy"},
          {"slowdown", "1", "", &Result::slowdown, "slowdown"},
          {"stall_ms", "ms", "", [](auto&) { return Duration::Milliseconds(7); }},
      },
      results);
}

std::vector<std::string> HeadsOf(const TextTable& table) {
  std::vector<std::string> heads;
  for (const TextTable::Column& column : table.columns) heads.push_back(column.head);
  return heads;
}

const Result kResult{"net:4", "net", "h200", "40%", Bytes::GiB(2), "dtr", 1.5};

TEST(ValueTableTest, SettingsThatAgreeStandInTheCaption) {
  const TextTable table = ChooseColumns(TableOf({kResult, kResult}), {});
  EXPECT_THAT(HeadsOf(table), ElementsAre("policy", "slowdown"));
  EXPECT_EQ(table.title, "net:4, device h200, memory 40%");
  EXPECT_THAT(table.rows[1], ElementsAre("dtr", "1.500"));
  EXPECT_THAT(table.notes, ElementsAre(HasSubstr("100% the peak in core")));
}

TEST(ValueTableTest, SettingsThatDifferAreColumnsUnlessTheyFollow) {
  Result other = kResult;
  other.workload = "net:8";
  other.memory = Bytes::GiB(3);  // follows from the workload and the request
  TextTable table = ChooseColumns(TableOf({kResult, other}), {});
  EXPECT_THAT(HeadsOf(table), ElementsAre("workload", "policy", "slowdown"));
  EXPECT_EQ(table.title, "net, device h200, memory 40%");
  EXPECT_EQ(
      ChooseColumns(TableOf({{"net:4", "net", "h200", "12GiB", Bytes::GiB(12), "dtr"}}), {}).title,
      "net:4, device h200, memory 12 GiB");
  other.request.reset();
  other.slowdown.reset();
  table = ChooseColumns(TableOf({kResult, other, {"net:8", "net", "h200", {}, {}, "dtr"}}), {});
  EXPECT_THAT(HeadsOf(table), ElementsAre("workload", "memory", "policy", "slowdown"));
  EXPECT_THAT(table.rows, ElementsAre(ElementsAre("net:4", "40%", "dtr", "1.500"),
                                      ElementsAre("net:8", "3 GiB", "dtr", "-"),
                                      ElementsAre("net:8", "unlimited", "dtr", "-")));
}

TEST(ValueTableTest, UsualSettingsOfNoCaptionStay) {
  const Columns<Result> columns{{"allocator", "", "", &Result::policy},
                                {"workload", "", "", &Result::workload}};
  const std::vector<std::string_view> usual{"allocator", "workload"};
  const TextTable table = ChooseColumns(ValueTableOf(columns, std::vector{kResult}, usual), {});
  EXPECT_THAT(HeadsOf(table), ElementsAre("allocator"));
  EXPECT_EQ(table.title, "net:4");
}

TEST(ValueTableTest, ColumnsAreChosenByName) {
  const ValueTable results = TableOf({kResult});
  const TextTable table = ChooseColumns(results, {"stall", "memory_bytes", "network"});
  EXPECT_THAT(HeadsOf(table), ElementsAre("stall (ms)", "memory (GiB)", "network"));
  EXPECT_TRUE(table.columns[1].numbers);
  EXPECT_FALSE(table.columns[2].numbers);
  EXPECT_THAT(table.rows, ElementsAre(ElementsAre("7.000", "2.000", "net")));
  try {
    results.IndexOf("slodown");
    ADD_FAILURE();
  } catch (const UsageError& error) {
    EXPECT_THAT(error.what(),
                HasSubstr("unknown column 'slodown'; did you mean 'slowdown'? (valid: "
                          "workload, network, device, memory_bytes"));
  }
}

TEST(ValueTableTest, CellsHaveFourDigits) {
  const std::pair<Value, const char*> kCases[] = {
      {1401.4, "1401"},        {777.34, "777.3"},    {9.99996, "10.00"},
      {0.0012344, "0.001234"}, {123456.7, "123457"}, {0.0, "0"},
      {-1.5, "-1.500"},        {1e-7, "1.000e-07"},  {int64_t{123456}, "123456"},
      {true, "yes"},           {"a_b", "a_b"},       {Value(), "-"}};
  for (const auto& [value, cell] : kCases) EXPECT_EQ(CellOf(value, "1"), cell);
  EXPECT_EQ(CellOf(int64_t{1} << 29, "B"), "0.5000");
  EXPECT_EQ(CellOf(28.1745, ""), "28.1745");
}

TEST(ValueTableTest, RowsWithoutMemoryHaveNoSuchColumn) {
  const Columns<Result> columns{{"policy", "", "", &Result::policy}};
  const TextTable table = ChooseColumns(ValueTableOf(columns, std::vector{kResult}), {});
  EXPECT_THAT(HeadsOf(table), ElementsAre("policy"));
  EXPECT_EQ(table.title, "");
  EXPECT_THAT(table.notes, IsEmpty());
}

}  // namespace
}  // namespace spillway::testing
