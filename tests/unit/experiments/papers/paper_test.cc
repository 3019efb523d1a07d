#include "experiments/papers/paper.h"

#include <gtest/gtest.h>

#include <set>

#include "tests/testing/papers.h"
#include "traces/base/error.h"

namespace spillway::testing {
namespace {

const PaperNames kNames{{{"AlexNet", "alexnet-227", 200},
                         {"VGG-16", "vgg19"},
                         {"Inception v4", "inception-v4"},
                         {"InceptionV4", "inception-v4"}},
                        32,
                        "-"};

TEST(PaperNamesTest, ReadsWhatThePaperAndTheZooWrite) {
  for (const auto& [text, workload] : std::vector<std::pair<const char*, const char*>>{
           {"VGG-16(256)", "vgg19:256"},
           {"vgg16", "vgg19:32"},
           {"AlexNet", "alexnet-227:200"},
           {"ALEXNET(8)", "alexnet-227:8"},
           {"Inception v4", "inception-v4:32"},
           {"resnet(3,4,6,3)", "resnet(3,4,6,3):32"},
           {"resnet(3,4,6,3)(16)", "resnet(3,4,6,3):16"},
           {"vgg16@64(2)", "vgg16@64:2"}}) {
    const auto read = kNames.Read(text);
    ASSERT_TRUE(read) << text;
    EXPECT_EQ(read->Name(), workload) << text;
  }
  for (const char* text : {"", "VGG-17", "VGG-16(0)", "VGG-16(2.5)", "VGG-16(99999)", "VGG-16(-1)",
                           "VGG-16()", "VGG-16 (2)", "(2)", "VGG-16(256) MB"}) {
    EXPECT_FALSE(kNames.Read(text)) << text;
  }
  EXPECT_FALSE((PaperNames{{{"VGG-16", "vgg16"}}}.Read("VGG-16")));  // there is no usual batch
}

TEST(PaperNamesTest, WritesTheFirstNameAndAnUnusualBatch) {
  EXPECT_EQ(kNames.Write({"alexnet-227", 200}), "AlexNet");
  EXPECT_EQ(kNames.Write({"alexnet-227", 32}), "AlexNet(32)");
  EXPECT_EQ(kNames.Write({"inception-v4", 32}), "Inception v4");
  EXPECT_EQ(kNames.Write({"resnet50", 64}), "resnet50(64)");
}

TEST(PaperTableTest, APatternNamesItsRowsAndRecognisesOthers) {
  const auto compute = [](const PaperRow& row) { return row.number; };
  PaperRow printed;
  printed.workload = {"alexnet-227", 200};
  printed.number = 3;
  printed.layer = "conv1";
  printed.step = 4;
  const auto shared = std::make_shared<const PaperTable>(
      PaperTable{"Tab9",
                 kNames,
                 {printed},
                 {{"Tab9 {workload} {number}GB {layer}.f", "MB", compute, false, "",
                   [](const PaperRow& row) { return row.number < 10; }},
                  {"Tab9 {workload} B={batch} all", "MB", compute},
                  {"Tab9 all", "MB", compute},
                  {"Tab9 step {step}", "MB", compute}}});
  const PaperTable& table = *shared;
  const auto name = [&](size_t column) {
    return PaperKey{"paper", shared, &table.columns[column], table.rows[0]}.Format();
  };
  EXPECT_EQ(name(0), "Tab9 AlexNet 3GB conv1.f");
  EXPECT_EQ(name(1), "Tab9 AlexNet B=200 all");
  EXPECT_EQ(name(2), "Tab9 all");
  EXPECT_EQ(name(3), "Tab9 step 4");
  const auto other = RowOf(table, table.columns[0], "Tab9 Inception v4(8) 2.5GB conv1.a.f");
  ASSERT_TRUE(other);
  EXPECT_EQ(other->workload.Name(), "inception-v4:8");
  EXPECT_EQ(other->number, 2.5);
  EXPECT_EQ(other->layer, "conv1.a");
  EXPECT_EQ(RowOf(table, table.columns[1], "Tab9 AlexNet B=7 all")->workload.batch, 7);
  EXPECT_EQ(RowOf(table, table.columns[2], "Tab9 all")->layer, "conv1");
  EXPECT_EQ(RowOf(table, table.columns[3], "Tab9 step 46")->step, 46);
  for (const char* item :
       {"Tab9 AlexNet 3GB conv1.b", "Tab9 AlexNet 10GB conv1.f", "Tab9 AlexNet xGB conv1.f",
        "Tab9 AlexNet 3GB .f", "Tab9 LexNet 3GB conv1.f", "Tab9 AlexNet 3GB conv 1.f",
        "Tab9 AlexNet B=0 all", "Tab9 AlexNet B=99999 all", "Tab9 AlexNet B=1.5 all",
        "Tab9 AlexNet B=7 alls", "Tab9 step 0", "Tab9 step 1.5", "Tab9 step x", "Tab9 ", ""}) {
    for (const PaperColumn& column : table.columns) {
      EXPECT_FALSE(RowOf(table, column, item)) << column.pattern << ": " << item;
    }
  }
}

// Selecting an item by its name finds its table, its cell and its printed value.
TEST(PapersTest, ItemsHaveNamesOfTheirOwn) {
  for (const Paper& paper : Papers()) {
    std::set<std::string> names;
    for (const PaperTable& made : paper.tables(testing::Printed())) {
      const auto table = std::make_shared<const PaperTable>(made);
      for (PaperRow row : table->rows) {
        row.device = table->device;
        for (const PaperColumn& column : table->columns) {
          const std::string name = PaperKey{paper.name, table, &column, row}.Format();
          EXPECT_TRUE(names.insert(name).second) << name;
          const auto found = RowOf(*table, column, name);
          ASSERT_TRUE(found) << name;
          if (column.pattern.find("{workload}") != std::string::npos) {
            EXPECT_EQ(found->workload.Name(), row.workload.Name()) << name;
          }
          if (names.size() % 8 != 1) continue;  // the next line reads all papers
          EXPECT_EQ(testing::Select(name).size(), 1u) << name;
        }
      }
    }
    for (const PaperItem& item : testing::Select(std::string(paper.name))) {
      EXPECT_TRUE(item.key) << item.value.item;
    }
  }
}

TEST(PapersTest, TablesAreAskedForByNameAndListedWhereAnItemIsUnknown) {
  const auto count = [](const std::string& request) { return testing::Select(request).size(); };
  // vDNN++ has a Tab2 too, which only its full name selects.
  EXPECT_EQ(count("Tab2"), count("superneurons-Tab2"));
  EXPECT_EQ(count("vdnnpp-Tab2"), 2 * 7 * 2u);
  EXPECT_EQ(count("Fig10"), count("vdnnpp-Fig10") + count("superneurons-Fig10"));
  try {
    testing::Select("superneurons-Tab6");
    FAIL();
  } catch (const UsageError& error) {
    for (const char* part : {"did you mean 'superneurons-Tab", "vdnnpp-Tab5", "superneurons-Fig13",
                             "superneurons-Tab5", "superneurons-Tab1", "vdnn,", "mmcnn"}) {
      EXPECT_NE(std::string(error.what()).find(part), std::string::npos) << part;
    }
  }
}

// On another GPU no printed value exists, items that do not depend on the GPU are left out,
// and tables that differ only in the GPU become one.
TEST(PapersTest, ItemsCanBeOfAnotherGpu) {
  const Case h200{.workload = "", .device = "h200", .cost = "roofline"};
  const auto select = [&](const std::string& request) {
    return SelectItems(testing::Printed(), request, h200);
  };
  for (const PaperItem& item : select("all")) {
    EXPECT_EQ(item.key->row.asked.device, "h200") << item.value.item;
    EXPECT_FALSE(item.value.printed) << item.value.item;
    EXPECT_FALSE(item.key->OnPapersGpu()) << item.value.item;
  }
  EXPECT_EQ(testing::Select("ucudnn-Fig10").size(), 3u * (2 + 2 + 1));
  EXPECT_EQ(select("ucudnn-Fig10").size(), 3u * (2 + 1));
  EXPECT_THROW(select("mmcnn-Tab6"), UsageError);
  EXPECT_THROW(select("vdnn-Fig99"), UsageError);
  const std::string item = "Fig14 VGG-16(64) conv(m) performance";
  const double titan = testing::ReproduceOne(item).ours.value();
  EXPECT_EQ(testing::Select(item).at(0).key->row.asked.device, "titan_x_maxwell");
  EXPECT_NE(Reproduce(select(item).at(0)).ours.value(), titan);
}

}  // namespace
}  // namespace spillway::testing
