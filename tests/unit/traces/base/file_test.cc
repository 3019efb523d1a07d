#include "traces/base/file.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <string>

#include "tests/testing/files.h"

namespace spillway::testing {
namespace {

using ::spillway::testing::InputErrorOf;
using ::spillway::testing::LongText;
using ::spillway::testing::ReadRaw;
using ::spillway::testing::TemporaryDirectory;
using ::spillway::testing::WriteRaw;
using ::testing::HasSubstr;
using ::testing::StartsWith;

constexpr std::string_view kZstdMagic("\x28\xb5\x2f\xfd", 4);

TEST(FileTest, ReadsWhatWasWritten) {
  const TemporaryDirectory directory;
  // The sizes lie around multiples of the buffer size, 64 KiB.
  for (const size_t size : {0, 1, 65535, 65536, 65537, 131072, 1000000}) {
    for (const char* name : {"file", "file.zst"}) {
      const std::string text = LongText(size);
      WriteFile(directory / name, text);
      EXPECT_EQ(ReadFile(directory / name), text) << name << " " << size;
    }
  }
  EXPECT_EQ(directory.CountFiles(), 2);
}

TEST(FileTest, CompressesByNameAndDecompressesByContents) {
  const TemporaryDirectory directory;
  const std::string text(100000, 'x');
  WriteFile(directory / "a.zst", text);
  EXPECT_THAT(ReadRaw(directory / "a.zst"), StartsWith(std::string(kZstdMagic)));
  EXPECT_LT(ReadRaw(directory / "a.zst").size(), 1000);
  std::filesystem::rename(directory / "a.zst", directory / "a.json");
  EXPECT_EQ(ReadFile(directory / "a.json"), text);
  WriteFile(directory / "b.json", text);
  EXPECT_EQ(ReadRaw(directory / "b.json"), text);
}

TEST(FileTest, ReadsConcatenatedFrames) {
  const TemporaryDirectory directory;
  WriteFile(directory / "a.zst", "one ");
  WriteFile(directory / "b.zst", "two");
  WriteRaw(directory / "c", ReadRaw(directory / "a.zst") + ReadRaw(directory / "b.zst"));
  EXPECT_EQ(ReadFile(directory / "c"), "one two");
}

TEST(FileTest, ReplacesAnOldFile) {
  const TemporaryDirectory directory;
  WriteFile(directory / "a", "old and longer");
  WriteFile(directory / "a", "new");
  EXPECT_EQ(ReadRaw(directory / "a"), "new");
  EXPECT_EQ(directory.CountFiles(), 1);
}

TEST(FileTest, FollowsLinks) {
  const TemporaryDirectory directory;
  std::filesystem::create_symlink("b", directory / "a");
  std::filesystem::create_symlink(directory / "c", directory / "b");
  EXPECT_EQ(FollowLinks(directory / "a"), directory / "c");
  for (const char* text : {"new", "old"}) {
    WriteFile(directory / "a", text);
    EXPECT_EQ(ReadFile(directory / "c"), text);
  }
  EXPECT_TRUE(std::filesystem::is_symlink(directory / "b"));
  std::filesystem::create_symlink("loop", directory / "loop");
  EXPECT_THAT(InputErrorOf([&] { FollowLinks(directory / "loop"); }), HasSubstr("symbolic links"));
}

TEST(FileTest, RefusesMissingFile) {
  EXPECT_EQ(InputErrorOf([] { ReadFile("/nonexistent/vgg16.json"); }),
            "cannot read '/nonexistent/vgg16.json': No such file or directory");
}

TEST(FileTest, RefusesDirectory) {
  const TemporaryDirectory directory;
  EXPECT_THAT(InputErrorOf([&] { ReadFile(directory / ""); }), HasSubstr("it is a directory"));
  EXPECT_THAT(InputErrorOf([&] { WriteFile(directory / "", "text"); }),
              HasSubstr("it is a directory"));
}

TEST(FileTest, RefusesGzip) {
  const TemporaryDirectory directory;
  WriteRaw(directory / "trace.json.gz", std::string("\x1f\x8b\x08\x00", 4));
  EXPECT_THAT(InputErrorOf([&] { ReadFile(directory / "trace.json.gz"); }),
              HasSubstr("trace.json.gz: not valid gzip: truncated"));
}

TEST(FileTest, RefusesTruncatedZstdAtEveryLength) {
  const TemporaryDirectory directory;
  WriteFile(directory / "a.zst", LongText(200));
  const std::string whole = ReadRaw(directory / "a.zst");
  for (size_t size = kZstdMagic.size(); size < whole.size(); ++size) {
    WriteRaw(directory / "b", whole.substr(0, size));
    EXPECT_THAT(InputErrorOf([&] { ReadFile(directory / "b"); }),
                HasSubstr("b: the Zstandard data is truncated"))
        << size;
  }
}

TEST(FileTest, RefusesCorruptZstd) {
  const TemporaryDirectory directory;
  WriteFile(directory / "a.zst", LongText(5000));
  std::string bytes = ReadRaw(directory / "a.zst");
  bytes[bytes.size() / 2] ^= 0x10;
  WriteRaw(directory / "b", bytes);
  EXPECT_THAT(InputErrorOf([&] { ReadFile(directory / "b"); }),
              HasSubstr("bad Zstandard data at byte"));
}

TEST(FileTest, RefusesMoreThanTheLimit) {
  const TemporaryDirectory directory;
  const std::string text(1 << 20, ' ');
  for (const char* name : {"a", "a.zst"}) {
    WriteFile(directory / name, text);
    EXPECT_EQ(ReadFile(directory / name, Bytes::MiB(1)), text);
    EXPECT_THAT(InputErrorOf([&] { ReadFile(directory / name, Bytes(Bytes::MiB(1).count() - 1)); }),
                HasSubstr("the contents exceed"));
  }
}

// Returns a Zstandard frame of `blocks` blocks of 128 KiB in four bytes each; see RFC 8878, section
// 3.1.1.
std::string ManyBytesFromFew(size_t blocks) {
  constexpr size_t kBlock = 128 << 10;
  std::string frame = std::string(kZstdMagic) + std::string("\x00\x58", 2);  // a window of 2 MiB
  for (size_t i = 1; i <= blocks; ++i) {
    const size_t header = kBlock << 3 | 1 << 1 | (i == blocks ? 1 : 0);
    for (const int shift : {0, 8, 16}) frame += static_cast<char>(header >> shift & 0xff);
    frame += ' ';
  }
  return frame;
}

TEST(FileTest, RefusesWhatFewBytesCannotHold) {
  const TemporaryDirectory directory;
  WriteRaw(directory / "least", ManyBytesFromFew(128));
  EXPECT_EQ(ReadFile(directory / "least").size(), size_t{16} << 20);
  WriteRaw(directory / "bomb", ManyBytesFromFew(129));
  EXPECT_THAT(InputErrorOf([&] { ReadFile(directory / "bomb"); }),
              HasSubstr("bomb: the contents exceed 16 MiB, the most that 522 B of Zstandard data "
                        "may hold"));
  // Beyond 16 MiB the contents may be 1000 times as large as the file. 17 kB allow all 129 blocks.
  const std::string large(17'000, '\xa5');
  const std::string skipped = std::string("\x50\x2a\x4d\x18\x68\x42\x00\x00", 8) + large;
  const std::string frame = ManyBytesFromFew(129);
  WriteRaw(directory / "large", frame + skipped);
  EXPECT_EQ(ReadFile(directory / "large").size(), size_t{129} << 17);
}

TEST(FileTest, WritingFailsWithTheReason) {
  EXPECT_EQ(InputErrorOf([] { WriteFile("/nonexistent/out.json", "text"); }),
            "cannot write '/nonexistent/out.json': No such file or directory");
  EXPECT_EQ(InputErrorOf([] { WriteFile("/dev/null", "text"); }),
            "cannot write '/dev/null': it is not a regular file");
}

TEST(FileTest, WhatCannotBeWrittenIsToldBeforehand) {
  const TemporaryDirectory directory;
  EXPECT_EQ(InputErrorOf([] { CheckWritable("/nonexistent/out.json"); }),
            "cannot write '/nonexistent/out.json': No such file or directory");
  EXPECT_THAT(InputErrorOf([&] { CheckWritable(directory / ""); }), HasSubstr("it is a directory"));
  CheckWritable(directory / "new");
  EXPECT_EQ(directory.CountFiles(), 0);
  WriteFile(directory / "old", "text");
  CheckWritable(directory / "old");
  EXPECT_EQ(ReadFile(directory / "old"), "text");
}

TEST(FileTest, FailedWriteLeavesNothingBehind) {
  const TemporaryDirectory directory;
  // The name is as long as the file system allows, so the temporary name is too long.
  const std::string name(255, 'n');
  EXPECT_THAT(InputErrorOf([&] { WriteFile(directory / name, "text"); }),
              HasSubstr("File name too long"));
  EXPECT_EQ(directory.CountFiles(), 0);
}

}  // namespace
}  // namespace spillway::testing
