// Tests of allocation logs: snapshots with their pickles, RMM logs, static problems and decisions.

#include "traces/logs/open_log.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <fstream>
#include <map>
#include <random>

#include "tests/testing/files.h"
#include "tests/testing/snapshots.h"
#include "traces/base/error.h"
#include "traces/logs/address_table.h"

namespace spillway::testing {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using Kind = MemoryEvent::Kind;

constexpr int64_t kMiB = 1 << 20;
constexpr int64_t kBase = int64_t{0x7f00} << 32;

std::vector<MemoryEvent> EventsOf(const MemoryLog& log) {
  std::vector<MemoryEvent> events;
  log.Walk([&](const MemoryEvent& event) {
    events.push_back(event);
    return true;
  });
  return events;
}

// Returns a short text for each event. "a0:512" allocates block 0 and "f0" frees it. "!" is a
// failed request, "e" an emptied cache, "+" and "-" a segment that is taken and given back.
std::vector<std::string> Short(const MemoryLog& log) {
  std::vector<std::string> texts;
  for (const MemoryEvent& event : EventsOf(log)) {
    const int64_t size = event.size.count();
    switch (event.kind) {
      case Kind::kAllocate:
        texts.push_back(fmt::format("a{}:{}", event.block, size));
        break;
      case Kind::kFree:
        texts.push_back(fmt::format("f{}", event.block));
        break;
      case Kind::kFailed:
        texts.push_back(fmt::format("!{}", size));
        break;
      case Kind::kEmptyCache:
        texts.push_back("e");
        break;
      case Kind::kSegmentAllocate:
        texts.push_back(fmt::format("+{}", size));
        break;
      case Kind::kSegmentFree:
        texts.push_back(fmt::format("-{}", size));
        break;
    }
  }
  return texts;
}

std::string ErrorOf(const std::string& contents) {
  try {
    ParseMemoryLog(contents, "log")->Walk([](const MemoryEvent&) { return true; });
  } catch (const InputError& error) {
    return error.what();
  }
  return "no error";
}

// Returns a snapshot with two segments: one of 2 MiB whose first block is live throughout, and one
// that is taken and given back.
std::string Example() {
  return MakeSnapshot({{kBase,
                        "small",
                        {{512, 400, "active_allocated"},
                         {1024, 1000, "active_pending_free"},
                         {2 * kMiB - 1536, 3 * kMiB, "inactive"}}}},
                      {{"free_requested", kBase + 4096, 700},
                       {"free_completed", kBase + 4096, 700},
                       {"alloc", kBase + 512, 1000},
                       {"segment_alloc", kBase + 64 * kMiB, 20 * kMiB},
                       {"alloc", kBase + 64 * kMiB, 3 * kMiB, 7},
                       {"free_completed", kBase + 64 * kMiB, 3 * kMiB, 7},
                       {"segment_free", kBase + 64 * kMiB, 20 * kMiB, 7},
                       {"segment_free", kBase + 128 * kMiB, 2 * kMiB},
                       {"oom", 0, 5 * kMiB}},
                      {.max_split_size = 200 * kMiB});
}

TEST(PyTorchSnapshotTest, FindsWhatWasLiveAtTheStartByGoingBackwards) {
  const auto log = ParseMemoryLog(Example(), "log");
  const MemoryLogStart& start = log->start();
  EXPECT_EQ(log->Format(), "pytorch");
  EXPECT_TRUE(start.records_segments);
  EXPECT_THAT(start.blocks, ElementsAre(StartBlock{0, Bytes(400), kBase, 0, Bytes(512)},
                                        StartBlock{1, Bytes(700), kBase + 4096, 0}));
  EXPECT_THAT(start.segments,
              ElementsAre(StartSegment{kBase, Bytes::MiB(2), 0, true},
                          StartSegment{kBase + 128 * kMiB, Bytes::MiB(2), 0, true}));
  ASSERT_TRUE(start.pytorch);
  EXPECT_EQ(start.pytorch->max_split_size, Bytes::MiB(200));
  EXPECT_THAT(start.pytorch->roundup_power2_divisions, ElementsAre(std::pair(256, 4)));
}

TEST(PyTorchSnapshotTest, NumbersBlocksAndJoinsRunsOfFreedSegments) {
  const auto log = ParseMemoryLog(Example(), "log");
  const std::vector<std::string> expected{"f1",
                                          "a1:1000",
                                          fmt::format("+{}", 20 * kMiB),
                                          fmt::format("a2:{}", 3 * kMiB),
                                          "f2",
                                          fmt::format("-{}", 20 * kMiB),
                                          fmt::format("-{}", 2 * kMiB),
                                          "e",
                                          fmt::format("!{}", 5 * kMiB)};
  EXPECT_EQ(Short(*log), expected);
  EXPECT_EQ(Short(*log), expected) << "a log can be walked again";
  EXPECT_EQ(EventsOf(*log)[3].stream, 7u);
  EXPECT_EQ(EventsOf(*log).back().index, 8u);
}

TEST(PyTorchSnapshotTest, ReadsTheSettings) {
  const auto settings = [](const testing::SnapshotSettingsText& text) {
    return *ParseMemoryLog(MakeSnapshot({}, {}, text), "log")->start().pytorch;
  };
  EXPECT_EQ(settings({}).max_split_size, std::nullopt);
  EXPECT_EQ(settings({}).max_non_split_rounding, std::nullopt);
  EXPECT_EQ(settings({}).garbage_collection_threshold, 0);
  EXPECT_EQ(settings({.garbage_collection_threshold = 0.75}).garbage_collection_threshold, 0.75);
  const std::string longer(100, 'x');  // longer than any name
  EXPECT_EQ(settings({.configuration = longer + ",max_non_split_rounding_mb:64,y:1"})
                .max_non_split_rounding,
            Bytes::MiB(64));
  EXPECT_EQ(settings({.configuration = "max_split_size_mb:64"}).max_non_split_rounding,
            std::nullopt);
  EXPECT_EQ(settings({}).large_segment_size, std::nullopt);
  EXPECT_EQ(settings({.configuration = "large_segment_size_mb : 12"}).large_segment_size,
            Bytes::MiB(12));
  EXPECT_THAT(settings({.configuration = "max_split_size_mb:64,expandable_segments:True,"
                                         "roundup_power2_divisions:[256:1,512:2,>:4],"
                                         "garbage_collection_threshold:0.5,backend:native,"
                                         "pinned_use_cuda_host_register:False"})
                  .not_modelled,
              ElementsAre());
  EXPECT_THAT(settings({.configuration = "backend:cudaMallocAsync, new_setting : [1:2,3], x,"
                                         "per_process_memory_fraction:0.5"})
                  .not_modelled,
              ElementsAre("backend:cudaMallocAsync", "new_setting:[1:2,3]",
                          "x:", "per_process_memory_fraction:0.5"));

  const auto error = [](const testing::SnapshotSettingsText& text) {
    return ErrorOf(MakeSnapshot({}, {}, text));
  };
  for (const double threshold : {-0.5, 1.0, 7.0, std::nan("")}) {
    EXPECT_THAT(error({.garbage_collection_threshold = threshold}),
                HasSubstr("'garbage_collection_threshold': expected a number from 0"));
  }
  for (const int64_t divisions : {int64_t{3}, int64_t{-4}, int64_t{1} << 21}) {
    EXPECT_THAT(error({.divisions = divisions}),
                HasSubstr("'roundup_power2_divisions': expected 0 or a power of two"));
  }
  for (const char* text : {"max_non_split_rounding_mb:", "max_non_split_rounding_mb:19",
                           "max_non_split_rounding_mb:99999999999999999999"}) {
    EXPECT_THAT(error({.configuration = text}), HasSubstr("expected a whole number from 20 to"));
  }
}

TEST(PyTorchSnapshotTest, NamesSettingsThatAreRecordedOneByOne) {
  const auto not_modelled = [](std::string_view configuration, const auto& put) {
    PickleWriter w;
    w.BeginDict().PutString("segments").BeginList().EndList().PutString("device_traces");
    w.BeginList().EndList().PutString("allocator_settings").BeginDict();
    w.PutString("PYTORCH_CUDA_ALLOC_CONF").PutString(configuration);
    put(w);
    return ParseMemoryLog(w.EndDict().EndDict().Take(), "log")->start().pytorch->not_modelled;
  };
  EXPECT_THAT(not_modelled("",
                           [](PickleWriter& w) {
                             w.PutString("pinned_num_register_threads").PutInteger(1);
                             w.PutString("pinned_use_cuda_host_register").PutBool(false);
                             w.PutString("per_process_memory_fraction").PutReal(1);
                           }),
              ElementsAre());
  EXPECT_THAT(not_modelled("pinned_num_register_threads:8",
                           [](PickleWriter& w) {
                             w.PutString("release_lock_on_cudamalloc").PutBool(true);
                             w.PutString("pinned_num_register_threads").PutInteger(8);
                             w.PutString("per_process_memory_fraction").PutReal(0.5);
                           }),
              ElementsAre("pinned_num_register_threads:8", "per_process_memory_fraction:0.5",
                          "release_lock_on_cudamalloc:True"));
}

// Returns a value of a random kind and size, as a pickle.
std::string DrawnValue(std::mt19937& random, int depth = 0) {
  const auto bytes = [&](size_t count) {
    std::string text(count, '\0');
    for (char& c : text) c = static_cast<char>(random());
    return text;
  };
  const auto size = [](size_t count, size_t width) {  // little-endian
    std::string text;
    for (size_t i = 0; i < width; ++i) text += static_cast<char>(count >> (8 * i) & 0xff);
    return text;
  };
  const size_t length = random() % 2 == 0 ? random() % 20 : random() % 3000;
  switch (random() % (depth < 3 ? 12 : 8)) {
    case 0:
      return "\x8a" + size(length % 256, 1) + bytes(length % 256);
    case 1:
      return "\x8b" + size(length, 4) + bytes(length);
    case 2:
      return "G" + bytes(8);
    case 3:
      return "X" + size(length, 4) + std::string(length, 'x');
    case 4:
      return "B" + size(length, 4) + bytes(length);
    case 5:
      return "\x96" + size(length, 8) + bytes(length);
    case 6:
      return random() % 2 == 0 ? "N" : "\x88";
    case 7:
      return "J" + bytes(4);
    case 8:
      return "](" + DrawnValue(random, depth + 1) + DrawnValue(random, depth + 1) + "e";
    case 9:
      return "}(X" + size(3, 4) + "key" + DrawnValue(random, depth + 1) + "u";
    case 10:
      return "\x8f(" + DrawnValue(random, depth + 1) + "\x90";
    default:
      return "(" + DrawnValue(random, depth + 1) + DrawnValue(random, depth + 1) +
             (random() % 2 == 0 ? "t" : "\x91");
  }
}

// Fields without information about memory may hold anything.
TEST(PyTorchSnapshotTest, SkipsWhatItDoesNotUse) {
  std::mt19937 random(5);
  for (int round = 0; round < 300; ++round) {
    PickleWriter w;
    const auto unused = [&] {
      for (size_t i = random() % 3; i > 0; --i) {
        w.PutString(fmt::format("unused_{}", random() % 4)).Raw(DrawnValue(random));
      }
    };
    const auto put = [&](std::string_view key, int64_t value) {
      unused();
      w.PutString(key).PutInteger(value);
    };
    const auto frames = [&] {
      w.PutString("frames").BeginList().BeginDict();
      unused();
      w.PutString("line").Raw(DrawnValue(random)).PutString("filename").PutString("a.py").EndDict();
      w.EndList();
    };
    w.BeginDict().PutString("segments").BeginList().BeginDict();
    put("address", kBase);
    put("total_size", 2 * kMiB);
    w.PutString("blocks").BeginList().BeginDict();
    put("size", 2 * kMiB);
    w.PutString("requested_size").Raw(DrawnValue(random));
    w.PutString("state").PutString("inactive");
    frames();
    w.EndDict().EndList();
    frames();
    w.EndDict().EndList().PutString("device_traces").BeginList().BeginList();
    for (const char* action : {"alloc", "free_completed"}) {
      w.BeginDict().PutString("action").PutString(action);
      put("addr", kBase);
      put("size", 700);
      w.PutString("time_us").Raw(DrawnValue(random));
      frames();
      w.EndDict();
    }
    w.EndList().EndList();
    unused();
    const std::string contents = w.EndDict().Take();
    const auto log = ParseMemoryLog(contents, "log");
    EXPECT_THAT(Short(*log), ElementsAre("a0:700", "f0")) << round;
    EXPECT_NE(log->StackOf(0), 0U) << round;
  }
}

TEST(PyTorchSnapshotTest, ReadsUnsignedIntegers) {
  PickleWriter w;
  w.BeginDict().PutString("segments").BeginList().EndList().PutString("device_traces").BeginList();
  w.BeginList().BeginDict().PutString("action").PutString("alloc").PutString("addr");
  w.PutInteger(kBase).PutString("size").PutInteger(512).PutString("stream");
  w.Raw(std::string_view("\x8a\x09\xfe\xff\xff\xff\xff\xff\xff\xff\x00", 11));
  const std::string contents = w.EndDict().EndList().EndList().EndDict().Take();
  EXPECT_EQ(EventsOf(*ParseMemoryLog(contents, "log"))[0].stream, UINT64_MAX - 1);
}

// With garbage collection, the allocator itself freed the segments that are freed right before a
// segment is taken or before memory runs out. Other segments are freed by emptying the cache.
TEST(PyTorchSnapshotTest, TellsCollectionsOfGarbageFromEmptiedCaches) {
  std::vector<testing::SnapshotEventText> events;
  for (int64_t i = 0; i < 4; ++i) events.push_back({"segment_alloc", kBase + i * 64 * kMiB, kMiB});
  for (int64_t i = 0; i < 2; ++i) events.push_back({"segment_free", kBase + i * 64 * kMiB, kMiB});
  events.push_back({"segment_alloc", kBase, kMiB});
  events.push_back({"segment_free", kBase, kMiB});
  events.push_back({"oom", 0, kMiB});
  events.push_back({"segment_free", kBase + 2 * 64 * kMiB, kMiB});
  events.push_back({"alloc", kBase + 512, 512});
  events.push_back({"segment_free", kBase + 3 * 64 * kMiB, kMiB});
  const auto emptied = [&](double threshold) {
    const auto log = ParseMemoryLog(
        MakeSnapshot({}, events, {.garbage_collection_threshold = threshold}), "log");
    std::vector<uint64_t> behind;
    for (const MemoryEvent& event : EventsOf(*log)) {
      if (event.kind == MemoryEvent::Kind::kEmptyCache) behind.push_back(event.index);
    }
    return behind;
  };
  EXPECT_THAT(emptied(0), ElementsAre(5, 7, 9, 11));
  EXPECT_THAT(emptied(0.5), ElementsAre(9, 11));
}

TEST(PyTorchSnapshotTest, ReadsAFileLikeItsContents) {
  const testing::TemporaryDirectory directory;
  const auto path = directory / "snapshot.pickle";
  // The contents exceed one window of the reader.
  std::vector<testing::SnapshotEventText> events;
  for (int i = 0; i < 20'000; ++i) {
    events.push_back({"alloc", kBase + 512 * (i % 7), 100 + i});
    events.push_back({"free_completed", kBase + 512 * (i % 7), 100 + i});
  }
  const std::string contents = MakeSnapshot({}, events);
  ASSERT_GT(contents.size(), 1u << 20);
  std::ofstream(path, std::ios::binary) << contents;
  EXPECT_EQ(EventsOf(*OpenMemoryLog(path)), EventsOf(*ParseMemoryLog(contents, "log")));
  std::ofstream(path, std::ios::binary) << contents.substr(0, contents.size() / 2);
  EXPECT_THROW(OpenMemoryLog(path), InputError);
}

TEST(PyTorchSnapshotTest, RefusesEveryTruncation) {
  const std::string contents = Example();
  for (size_t size = 0; size < contents.size(); ++size) {
    const std::string error = ErrorOf(contents.substr(0, size));
    EXPECT_THAT(error, HasSubstr(size == 0 ? "log: unknown format" : "log: byte ")) << size;
  }
  EXPECT_EQ(ErrorOf(contents), "no error");
  EXPECT_THAT(ErrorOf(contents + "."), HasSubstr("data follow the end"));
}

TEST(PyTorchSnapshotTest, RefusesOpcodesBeyondPlainDataByNameAndPlace) {
  const std::string global =
      "\x80\x04"
      "cposix\nsystem\n\x8c\x02id\x85R.";
  EXPECT_EQ(
      ErrorOf(global),
      "log: byte 2: opcode GLOBAL is refused: only plain data is read, such as a memory snapshot");
  const std::vector<std::pair<int, std::string>> cases{
      {'R', "REDUCE"},       {'b', "BUILD"},      {'i', "INST"},          {'o', "OBJ"},
      {0x81, "NEWOBJ"},      {0x92, "NEWOBJ_EX"}, {0x93, "STACK_GLOBAL"}, {0x82, "EXT1"},
      {0x83, "EXT2"},        {0x84, "EXT4"},      {'P', "PERSID"},        {'Q', "BINPERSID"},
      {0x97, "NEXT_BUFFER"}, {'0', "POP"},        {'2', "DUP"},           {'I', "INT"}};
  for (const auto& [opcode, name] : cases) {
    const std::string pickle = std::string("\x80\x02N", 3) + static_cast<char>(opcode);
    EXPECT_EQ(
        ErrorOf(pickle),
        fmt::format(
            "log: byte 3: opcode {} is refused: only plain data is read, such as a memory snapshot",
            name));
  }
  EXPECT_EQ(ErrorOf("\x80\x04\xff"), "log: byte 2: 0xff is not an opcode of a pickle");
  EXPECT_EQ(ErrorOf("\x80\x01N."), "log: byte 1: pickle protocol 1 (valid: 2 to 5)");
  EXPECT_EQ(ErrorOf("\x80\x06N."), "log: byte 1: pickle protocol 6 (valid: 2 to 5)");
}

TEST(PyTorchSnapshotTest, RefusesHostileStructure) {
  const std::vector<std::pair<std::string, std::string>> cases{
      {"N.", "not a memory snapshot"},
      {"}.", "not a memory snapshot"},
      {".", "values left over"},
      {"NN.", "values left over"},
      {"(.", "values left over"},
      {"h\x01.", "refers to value 1, which is not stored yet"},
      {"Nq\x05.", "stores value 5 before value 0"},
      {"\x94", "no value to store"},
      {"(\x94", "no value to store"},
      {"a", "no value to take"},
      {"Na", "no value to take"},
      {"NNa", "not a list"},
      {"](a", "appends a mark"},
      {"e", "no mark"},
      {"(e", "not a list"},
      {"}(NNe", "not a list"},
      {"](NNu", "not a dictionary"},
      {"}(Nu", "a key without a value"},
      {"}N(s", "a key without a value"},
      {"\x86", "no value to take"},
      {"(\x85", "no value to take"},
      {"t", "no mark"},
      {"}(u}(u\x86", "no error so far"},
      {"}(u(NNu", "not a dictionary"},
      {"\x90", "no mark"},
      {"\x91", "no mark"},
      {"(\x90", "adds to a value that is no set"},
      {"](N\x90", "adds to a value that is no set"},
      {std::string("\x8a\x09"
                   "12345678"),
       "ends in the middle"},
      {std::string("\x8b\xff\xff\xff\x7f", 5), "ends in the middle"},
      {std::string("\x96\xff\xff\xff\xff\xff\xff\xff\xff", 9), "ends in the middle"},
      {std::string("X\xff\xff\xff\xff", 5), "ends in the middle"},
      {std::string("\x8d\xff\xff\xff\xff\xff\xff\xff\xff", 9), "ends in the middle"},
      {std::string("\x8e\xff\xff\xff\xff\xff\xff\xff\xff", 9), "ends in the middle"},
      {std::string("\x95\xff\xff\xff\xff\xff\xff\xff\xff", 9), "a frame of"},
  };
  for (const auto& [pickle, message] : cases) {
    const std::string error = ErrorOf(std::string("\x80\x04") + pickle);
    EXPECT_THAT(error, HasSubstr(message == "no error so far" ? "ends in the middle" : message))
        << ::testing::PrintToString(pickle);
  }
}

TEST(PyTorchSnapshotTest, BoundsDepthAndBreadth) {
  const auto repeat = [](std::string_view text, size_t count) {
    std::string all("\x80\x04");
    for (size_t i = 0; i < count; ++i) all += text;
    return all;
  };
  EXPECT_THAT(ErrorOf(repeat("(", 3'000'000)), HasSubstr("too deeply nested"));
  EXPECT_THAT(ErrorOf(repeat("](", 3'000'000)), HasSubstr("too deeply nested"));
  EXPECT_THAT(ErrorOf(repeat("N", 3'000'000)), HasSubstr("too deeply nested"));
  EXPECT_THAT(ErrorOf(repeat("}\x94(h\x00", 3'000'000)), HasSubstr("log: byte "));
  // A list that contains itself is read as a value that is referenced twice.
  EXPECT_THAT(ErrorOf(std::string("\x80\x04]\x94(h\x00"
                                  "e.",
                                  9)),
              HasSubstr("not a memory snapshot"));
}

TEST(PyTorchSnapshotTest, TakesTracesInOnePieceAndOfSeveralDevices) {
  const auto event = [](PickleWriter& w, std::string_view action, int64_t address) {
    w.BeginDict().PutString("action").PutString(action).PutString("addr").PutInteger(address);
    w.PutString("size").PutInteger(512).EndDict();
  };
  const auto make = [&](int with_events) {
    PickleWriter w;
    w.BeginDict().PutString("device_traces").BeginList();
    for (int device = 0; device < 4; ++device) {
      w.BeginList();
      for (int i = 0; (with_events >> device & 1) != 0 && i < 3000; ++i) {
        event(w, "alloc", 1024 * (device + 1));
        event(w, "free_completed", 1024 * (device + 1));
      }
      w.EndList();
    }
    w.EndList().PutString("segments").BeginList().EndList().EndDict();
    return w.Take();
  };
  for (const int with_events : {1, 2, 4, 8}) {
    const auto events = EventsOf(*ParseMemoryLog(make(with_events), "log"));
    ASSERT_EQ(events.size(), 6000u);
    EXPECT_EQ(events.back().address,
              1024u * (1 + static_cast<uint64_t>(std::countr_zero(unsigned(with_events)))));
  }
  EXPECT_EQ(ErrorOf(make(0b1010)),
            "log: 2 devices have events: choose one with --trace-device (valid: 1, 3)");
  const auto events = EventsOf(*ParseMemoryLog(make(0b1010), "log", 3));
  ASSERT_EQ(events.size(), 6000u);
  EXPECT_EQ(events[0].address, 4096u);
  try {
    ParseMemoryLog(make(0b1010), "log", 0);
    ADD_FAILURE() << "a device without events was taken";
  } catch (const InputError& error) {
    EXPECT_THAT(error.what(), HasSubstr("device 0 has no events (devices with events: 1, 3)"));
  }
}

TEST(PyTorchSnapshotTest, RefusesRecordsThatContradictEachOther) {
  const auto error = [](const std::vector<testing::SnapshotEventText>& events) {
    return ErrorOf(MakeSnapshot({}, events));
  };
  EXPECT_THAT(error({{"alloc", 512, 1}, {"alloc", 512, 1}}),
              HasSubstr("event 1 allocates a block that is live: 0x200"));
  EXPECT_THAT(error({{"free_completed", 512, 1}, {"free_completed", 512, 1}}),
              HasSubstr("event 1 frees a block that is not live: 0x200"));
  EXPECT_THAT(error({{"segment_alloc", 512, 1}, {"segment_alloc", 512, 1}}),
              HasSubstr("allocates a segment that exists"));
  EXPECT_THAT(error({{"bake", 512, 1}}),
              HasSubstr("unknown action of an event (valid: alloc, free_requested"));
  EXPECT_THAT(error({{"alloc", 512, -1}}), HasSubstr("'size': expected an integer from 0"));
  EXPECT_THAT(ErrorOf(MakeSnapshot({{512, "medium", {}}}, {})), HasSubstr("(valid: small, large)"));
  EXPECT_THAT(ErrorOf(MakeSnapshot({{512, "small", {{512, 600, "active_allocated"}}}}, {})),
              HasSubstr("do not lie one after the other"));
  EXPECT_THAT(ErrorOf(MakeSnapshot({{512, "small", {{512, 1, "lost"}}}}, {})),
              HasSubstr("unknown state of a block"));
}

// Compares with std::map, using addresses that collide.
TEST(AddressTableTest, AgreesWithAMap) {
  AddressTable<int> table;
  std::map<uint64_t, int> model;
  std::mt19937_64 random(1);
  for (int i = 0; i < 200'000; ++i) {
    const uint64_t address = 512 * (random() % (i < 100'000 ? 60 : 3000));
    if (random() % 2 == 0) {
      EXPECT_EQ(table.Insert(address, i), model.emplace(address, i).second);
    } else if (model.erase(address) == 1) {
      table.Erase(address);
    }
    const uint64_t other = 512 * (random() % 3000);
    const auto found = model.find(other);
    const int* const value = table.Find(other);
    ASSERT_EQ(value != nullptr, found != model.end()) << i;
    EXPECT_TRUE(value == nullptr || *value == found->second) << i;
    ASSERT_EQ(table.size(), model.size());
  }
}

TEST(RmmLogTest, ReadsEventsAndRefusesNonsenseWithItsLine) {
  const std::string header = "Thread,Time,Action,Pointer,Size,Stream\n";
  const auto log = ParseMemoryLog(header +
                                      "1,12:00:00.000001,allocate,0x7f00,1000,0\r\n"
                                      "1,12:00:00.000002,allocate,0x8f00,2000,0x2\n"
                                      "1,12:00:00.000003,free,0x7f00,1000,0\n"
                                      "1,12:00:00.000004,allocate failure,(nil),99,0\n"
                                      "1,12:00:00.000005,free,(nil),0,0\n"
                                      "1,12:00:00.000006,allocate,0x7f00,5,0\n",
                                  "log");
  EXPECT_EQ(log->Format(), "rmm");
  EXPECT_THAT(Short(*log), ElementsAre("a0:1000", "a1:2000", "f0", "!99", "a0:5"));
  EXPECT_EQ(EventsOf(*log)[1].stream, 2u);
  EXPECT_EQ(ErrorOf(header + "1,t,free,0x7f00,1,0\n"), "log:2:10: frees 0x7f00, which is not live");
  EXPECT_EQ(ErrorOf(header + "1,t,allocate,0x1,1,0\n1,t,allocate,0x1,1,0\n"),
            "log:3:14: allocates 0x1, which is live");
  EXPECT_EQ(ErrorOf(header + "1,t,grab,0x1,1,0\n"),
            "log:2:5: Action: \"grab\" (valid: allocate, free, allocate failure)");
  EXPECT_EQ(ErrorOf(header + "1,t,free,0x1,x,0\n"),
            "log:2:14: Size: expected an integer from 0 to 4398046511104, got \"x\"");
  EXPECT_EQ(ErrorOf(header + "1,t,free,0x1\n"), "log:2:1: 4 columns, but the header has 6");
}

TEST(StaticProblemTest, FreesBeforeItAllocates) {
  const auto log = ParseMemoryLog("id,lower,upper,size\nb,3,9,200\na,0,3,100\nc,2,4,300\n", "log");
  EXPECT_EQ(log->Format(), "static");
  EXPECT_THAT(Short(*log), ElementsAre("a0:100", "a1:300", "f0", "a0:200", "f1", "f0"));
  EXPECT_EQ(ErrorOf("id,lower,upper,size\na,3,3,1\n"), "log:2:5: lower 3 is not below upper 3");
  EXPECT_EQ(ErrorOf("id,lower,upper,size\na,3,x,1\n"),
            "log:2:5: upper: expected an integer from -1152921504606846976 to 1152921504606846976, "
            "got \"x\"");
}

TEST(DecisionsLogTest, RefusesWhatIsNearlyNull) {
  EXPECT_THAT(ErrorOf(R"({"format": "spillway-decisions", "version": 1, "workload": "w",
 "decisions": [], "placements": [
  {"op": "a", "kind": "allocate", "arena": "device", "tensor": nul, "requested": 5}]})"),
              HasSubstr("log:3:64: placements[0].tensor: "));
}

TEST(DecisionsLogTest, TakesTheDevicePlacements) {
  const auto log = ParseMemoryLog(
      R"({"format": "spillway-decisions", "version": 1, "workload": "w", "decisions": [],
 "placements": [
  {"op": "a", "kind": "allocate", "arena": "device", "tensor": "x", "requested": 5, "offset": 0, "size": 512},
  {"op": "a", "kind": "allocate", "arena": "host", "tensor": "x", "requested": 5, "offset": 0, "size": 512},
  {"op": "a", "kind": "enter", "arena": "device", "tensor": "y", "requested": 5, "offset": 0, "size": 512},
  {"op": "b", "kind": "free", "arena": "device", "tensor": "x", "requested": 5, "offset": 0, "size": 512}]})",
      "log");
  EXPECT_EQ(log->Format(), "decisions");
  EXPECT_THAT(Short(*log), ElementsAre("a0:5", "f0"));
  EXPECT_EQ(log->Describe(0), "x at a");
  EXPECT_EQ(log->Describe(2), "");
  EXPECT_THAT(
      ErrorOf(
          R"({"format": "spillway-decisions", "version": 1, "workload": "w", "decisions": [],
 "placements": [
  {"op": "b", "kind": "free", "arena": "device", "tensor": "x", "requested": 5, "offset": 0, "size": 512}]})"),
      HasSubstr("log:3:"));
}

TEST(MemoryLogTest, NamesItselfWhereAQuoteOpensTheFile) {
  EXPECT_THAT(testing::InputErrorOf([] { ParseMemoryLog("\"segment", "my.log"); }),
              ::testing::StartsWith("my.log: "));
}

TEST(MemoryLogTest, NamesTheFormatsThatItKnows) {
  EXPECT_THAT(ErrorOf("hello"), HasSubstr("log: unknown format (valid: a PyTorch memory snapshot"));
  EXPECT_THAT(ErrorOf(""), HasSubstr("log: unknown format"));
  EXPECT_THROW(OpenMemoryLog("/nowhere/log"), InputError);
}

}  // namespace
}  // namespace spillway::testing
