#include "traces/base/safetensors.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <fstream>
#include <random>
#include <string>

#include "tests/testing/files.h"
#include "traces/base/error.h"

namespace spillway::testing {
namespace {

using ::spillway::testing::InputErrorOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::StartsWith;

std::string FileOf(const std::string& header, size_t data) {
  const uint64_t length = header.size();
  std::string file(sizeof(length), '\0');
  std::memcpy(file.data(), &length, sizeof(length));
  file += header;
  for (size_t i = 0; i < data; ++i) file += static_cast<char>(i);
  return file;
}

StoredTensors Parse(const std::string& file) {
  return ParseSafetensors(std::as_bytes(std::span(file)), "w.safetensors");
}

const std::string kHeader =
    R"({"__metadata__": {"format": "pt"}, "b": {"dtype": "F32", "shape": [], "data_offsets": [12, 16]},)"
    R"( "a": {"dtype": "F16", "shape": [2, 3], "data_offsets": [0, 12]}} )";

TEST(SafetensorsTest, TensorsLieInTheData) {
  const std::string file = FileOf(kHeader, 16);
  const StoredTensors tensors = Parse(file);
  ASSERT_EQ(tensors.size(), 2);
  const StoredTensor& a = tensors.at("a");
  EXPECT_EQ(a.type, "F16");
  EXPECT_THAT(a.shape, ElementsAre(2, 3));
  EXPECT_EQ(a.bytes.size(), 12);
  EXPECT_EQ(static_cast<int>(tensors.at("b").bytes[3]), 15);

  const testing::TemporaryDirectory directory;
  const auto path = directory / "w.safetensors";
  std::ofstream(path, std::ios::binary) << file;
  const SafetensorsFile mapped(path);
  EXPECT_EQ(static_cast<int>(mapped.tensors().at("a").bytes[11]), 11);
  EXPECT_THAT(InputErrorOf([&] { SafetensorsFile{directory / "none"}; }),
              HasSubstr("cannot open it"));
  EXPECT_THAT(InputErrorOf([&] { SafetensorsFile{directory / "."}; }), HasSubstr("regular file"));
}

TEST(SafetensorsTest, WrittenTensorsAreReadBack) {
  const std::string file = FileOf(kHeader, 16);
  const StoredTensors tensors = Parse(file);
  const std::string written = FormatSafetensors(tensors);
  const StoredTensors read = Parse(written);
  ASSERT_EQ(read.size(), tensors.size());
  for (const auto& [name, tensor] : tensors) {
    EXPECT_EQ(read.at(name).type, tensor.type);
    EXPECT_EQ(read.at(name).shape, tensor.shape);
    EXPECT_TRUE(std::ranges::equal(read.at(name).bytes, tensor.bytes));
  }
  EXPECT_EQ((written.size() - 16) % 8, 0);  // the data are aligned
  EXPECT_TRUE(Parse(FormatSafetensors({})).empty());
}

TEST(SafetensorsTest, WhatTheHeaderSaysIsChecked) {
  struct Case {
    const char* from;
    const char* to;
    const char* error;
  };
  for (const Case& test : {
           Case{"F16", "F17", "tensor 'a': unknown dtype 'F17'"},
           Case{"\"F16\"", "16", "tensor 'a': expected a string 'dtype'"},
           Case{"[2, 3]", "[2, 4]", "tensor 'a': has 12 bytes, but its shape needs 16"},
           Case{"[2, 3]", "[2, -3]", "tensor 'a': a negative extent"},
           Case{"[2, 3]", "[4294967296, 4294967296]", "tensor 'a': the shape is too large"},
           Case{"[0, 12]", "[12, 0]",
                "tensor 'a': expected data_offsets [begin, end] in the file's 16"},
           Case{"[0, 12]", "[8, 20]", "tensor 'a': expected data_offsets"},
           Case{"[0, 12]", "[0, 18446744073709551615]", "tensor 'a': expected data_offsets"},
           Case{"[0, 12]", "[-4, 8]", "tensor 'a': expected integers from 0"},
           Case{"[0, 12]", "[0, 12, 3]", "tensor 'a': expected data_offsets"},
           Case{"[0, 12]", "[2, 14]", "its data overlap another tensor's or leave a gap"},
           Case{"[12, 16]", "[0, 4]", "its data overlap another tensor's or leave a gap"},
           Case{"\"b\"", "\"a\"", "tensor 'a': occurs twice in the header"},
           Case{"}} ", "}", "bad header"},
           Case{"{\"__", "[{\"__", "bad header"},
       }) {
    std::string header = kHeader;
    header.replace(header.find(test.from), std::strlen(test.from), test.to);
    const std::string error = InputErrorOf([&] { Parse(FileOf(header, 16)); });
    EXPECT_THAT(error, StartsWith("w.safetensors: "));
    EXPECT_THAT(error, HasSubstr(test.error)) << header;
  }
  EXPECT_THAT(InputErrorOf([&] { Parse(FileOf(kHeader, 20)); }),
              HasSubstr("4 bytes at the end belong to no tensor"));
  EXPECT_THAT(InputErrorOf([&] { Parse(std::string(8, '\xff')); }), HasSubstr("it was cut off"));
}

// Damaged files give an `InputError` or tensors within the file, never anything else.
TEST(SafetensorsTest, DamageNeverEscapes) {
  const std::string good = FileOf(kHeader, 16);
  for (size_t size = 0; size < good.size(); ++size) {
    EXPECT_THAT(InputErrorOf([&] { Parse(good.substr(0, size)); }), StartsWith("w.safetensors: "));
  }
  std::mt19937 random(1);
  for (int i = 0; i < 20'000; ++i) {
    std::string file = good;
    for (size_t edits = 1 + random() % 3; edits > 0; --edits) {
      file[random() % file.size()] = "0123456789[]{},\"-e\xff\x00"[random() % 20];
    }
    try {
      for (const auto& [name, tensor] : Parse(file)) {
        const auto* begin = reinterpret_cast<const char*>(tensor.bytes.data());
        EXPECT_GE(begin, file.data());
        EXPECT_LE(begin + tensor.bytes.size(), file.data() + file.size());
      }
    } catch (const InputError& error) {
      EXPECT_THAT(error.what(), StartsWith("w.safetensors: "));
    }
  }
}

}  // namespace
}  // namespace spillway::testing
