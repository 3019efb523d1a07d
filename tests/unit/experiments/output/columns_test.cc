// Tests of tables of columns, on a struct that has a value of every kind.

#include "experiments/output/columns.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "experiments/output/view.h"

namespace spillway::testing {
namespace {

struct Planet {
  std::string name;
  std::optional<int64_t> moons;
  double mass = 0;
  bool rings = false;
  Bytes map = {};
  Duration day = {};
};

Columns<Planet> PlanetColumns() {
  Columns<Planet> columns{
      {"name", "", "what it is called", &Planet::name, "planet"},
      {"moons", "1", "how many", &Planet::moons, "moons"},
      {"mass", "1", "in Earths", &Planet::mass, "Earths"},
      {"rings", "", "whether it has any", &Planet::rings, "rings"},
      {"map_bytes", "B", "of its map", &Planet::map, "map GiB"},
      {"day_ms", "ms", "from noon to noon", &Planet::day},
      {"parts", "", "in documents", [](auto&) { return Nested{"[1, {}]"}; }},
      {"colour", "", "of those that are red", [](auto&) { return "red"; }},
  };
  columns.back().present = [](const Planet& planet) { return planet.name == "Mars"; };
  return columns;
}

const Planet kVenus{"Venus, \"evening star\"", std::nullopt, 0.815, false, Bytes::MiB(512),
                    Duration::Milliseconds(7)};
const Planet kSaturn{"Saturn", 146, 95.16, true, Bytes::GiB(3), Duration::Microseconds(1500)};

TEST(ColumnsTest, WriteCsv) {
  EXPECT_EQ(FormatCsv(PlanetColumns(), std::vector{kVenus, kSaturn}),
            "name,moons,mass,rings,map_bytes,day_ms\r\n"
            "\"Venus, \"\"evening star\"\"\",,0.815,false,536870912,7\r\n"
            "Saturn,146,95.16,true,3221225472,1.5\r\n");
  EXPECT_EQ(FormatCsv(PlanetColumns(), {}), "");
}

TEST(ColumnsTest, WriteJson) {
  EXPECT_EQ(FormatJson(PlanetColumns(), std::vector{kVenus}, "planets/v1"),
            R"({
  "schema": "planets/v1",
  "rows": [
    {
      "name": "Venus, \"evening star\"",
      "moons": null,
      "mass": 0.815,
      "rings": false,
      "map_bytes": 536870912,
      "day_ms": 7,
      "parts": [1, {}]
    }
  ]
}
)");
  EXPECT_EQ(FormatJson(PlanetColumns(), {}, "planets/v1"),
            "{\n  \"schema\": \"planets/v1\",\n  \"rows\": []\n}\n");
}

TEST(ColumnsTest, WriteTables) {
  constexpr std::string_view kShown[] = {"map_bytes", "name", "moons", "mass", "rings"};
  const Planet earth{"Earth", 1, 1, false, Bytes::GiB(20), {}};
  EXPECT_EQ(FormatTable(PlanetColumns(), kShown, std::vector{earth, kSaturn}),
            "map GiB  planet  moons  Earths  rings\n"
            "  20.00  Earth       1   1.000  no\n"
            "  3.000  Saturn    146   95.16  yes\n");
}

TEST(ColumnsTest, CellsHaveFourSignificantDigits) {
  for (const auto& [number, text] :
       std::vector<std::pair<double, std::string>>{{0, "0"},
                                                   {1, "1.000"},
                                                   {868.24, "868.2"},
                                                   {2039.8, "2040"},
                                                   {123456.7, "123457"},
                                                   {999.96, "1000"},
                                                   {-9.4121, "-9.412"},
                                                   {0.051234, "0.0512"}}) {
    EXPECT_EQ(FormatCell(number, "1"), text);
  }
  EXPECT_EQ(FormatCell(int64_t{123456}, "1"), "123456");
  EXPECT_EQ(FormatCell(Bytes::MiB(1536).count(), "B"), "1.500");
  EXPECT_EQ(FormatCell(Value(), "1"), "-");
}

TEST(ColumnsTest, LongFirstCellsGoOnInTheNextLine) {
  const std::vector<std::vector<std::string>> cells{
      {"policy", "ms"}, {"mine:first=1,second=2", "30"}, {"abcdefghijklmnopqrstuvwxyz", "4"}};
  EXPECT_EQ(FormatTable(cells, 40),
            "policy            ms\n"
            "mine:first=1,     30\n"
            "  second=2\n"
            "abcdefghijklmnop   4\n"
            "  qrstuvwxyz\n");
}

TEST(ColumnsTest, TablesFitAWidth) {
  const std::vector<std::vector<std::string>> cells{{"name", "none", "one", "two"},
                                                    {"a", "-", "1", "2"}};
  EXPECT_EQ(FormatTable(cells), "name  none  one  two\na        -    1    2\n");
  EXPECT_EQ(FormatTable(cells, 14), "name  one  two\na       1    2\n");
  EXPECT_EQ(FormatTable(cells, 13), "name  one\na       1\n(1 more columns with --wide)\n");
  EXPECT_EQ(FormatTable(cells, 1), "name\na\n(2 more columns with --wide)\n");
}

TEST(ColumnsTest, SomeColumnsAreOfSomeItemsOnly) {
  Planet mars;
  mars.name = "Mars";
  const std::string csv = FormatCsv(PlanetColumns(), std::vector{mars});
  EXPECT_NE(csv.find(",day_ms,colour\r\n"), std::string::npos);
  EXPECT_NE(csv.find(",0,red\r\n"), std::string::npos);
}

TEST(ColumnsTest, KnowTheirTypes) {
  std::vector<std::string> types;
  for (const Column<Planet>& column : PlanetColumns()) types.push_back(column.type);
  EXPECT_EQ(types, (std::vector<std::string>{"string", "integer or null", "number", "boolean",
                                             "integer", "number", "array", "string"}));
}

TEST(ColumnsTest, NestAndChooseFormats) {
  const Columns<Planet> columns{{"name", "", "", &Planet::name}};
  EXPECT_EQ(NestRows(columns, std::vector{kSaturn, kSaturn}).json,
            R"([{"name": "Saturn"}, {"name": "Saturn"}])");
  const auto in = [&](Format format) {
    return FormatAs({format}, columns, std::vector{kSaturn}, "s.word/v1", [] { return "table"; });
  };
  EXPECT_EQ(in(Format::kTable), "table");
  EXPECT_EQ(in(Format::kCsv), "name\r\nSaturn\r\n");
  EXPECT_EQ(in(Format::kJson).front(), '{');
  EXPECT_EQ(in(Format::kMarkdown), "Word.\n\n| name   |\n| :----- |\n| Saturn |\n");
  EXPECT_THAT(in(Format::kLatex), ::testing::HasSubstr("\\label{tab:word}"));
}

}  // namespace
}  // namespace spillway::testing
