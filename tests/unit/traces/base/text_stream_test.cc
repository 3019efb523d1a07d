#include "traces/base/text_stream.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <zlib.h>

#include <string>

#include "tests/testing/files.h"
#include "traces/base/file.h"

namespace spillway::testing {
namespace {

using ::spillway::testing::InputErrorOf;
using ::spillway::testing::LongText;
using ::spillway::testing::ReadRaw;
using ::spillway::testing::TemporaryDirectory;
using ::spillway::testing::WriteRaw;
using ::testing::HasSubstr;

std::string ReadAll(TextStream& stream) {
  std::string text;
  while (stream.Read(text)) {
  }
  return text;
}

std::string ReadAll(const std::filesystem::path& path) {
  TextStream stream(path);
  return ReadAll(stream);
}

void WriteGzip(const std::filesystem::path& path, const std::string& text) {
  const gzFile file = gzopen(path.c_str(), "wb");
  gzwrite(file, text.data(), static_cast<unsigned>(text.size()));
  gzclose(file);
}

// The first bytes of a file decide its format, not its name. The sizes lie around multiples of the
// piece size, 1 MiB.
TEST(TextStreamTest, ReadsPlainGzipAndZstandard) {
  const TemporaryDirectory directory;
  for (const size_t size : {0, 1, 3, 1048575, 1048576, 1048577, 3000000}) {
    const std::string text = LongText(size);
    WriteRaw(directory / "plain", text);
    WriteGzip(directory / "gzip", text);
    WriteFile(directory / "zstd.zst", text);
    for (const char* name : {"plain", "gzip", "zstd.zst"}) {
      EXPECT_EQ(ReadAll(directory / name), text) << name << " " << size;
    }
  }
}

TEST(TextStreamTest, ReadsConcatenatedFrames) {
  const TemporaryDirectory directory;
  WriteFile(directory / "a.zst", "one ");
  WriteFile(directory / "b.zst", "two");
  WriteRaw(directory / "c", ReadRaw(directory / "a.zst") + ReadRaw(directory / "b.zst"));
  EXPECT_EQ(ReadAll(directory / "c"), "one two");
}

TEST(TextStreamTest, AppendsThePieces) {
  const TemporaryDirectory directory;
  WriteRaw(directory / "a", LongText(1500000));
  TextStream stream(directory / "a");
  EXPECT_EQ(stream.origin(), (directory / "a").string());
  std::string text = "before ";
  EXPECT_TRUE(stream.Read(text));
  EXPECT_EQ(text, "before " + LongText(1048576));
}

TEST(TextStreamTest, GivenText) {
  TextStream stream("text", "origin");
  EXPECT_EQ(stream.origin(), "origin");
  EXPECT_EQ(ReadAll(stream), "text");
}

TEST(TextStreamTest, RefusesTruncatedGzipAtEveryLength) {
  const TemporaryDirectory directory;
  WriteGzip(directory / "a.gz", LongText(200));
  const std::string whole = ReadRaw(directory / "a.gz");
  // zlib takes fewer bytes than its header for plain text.
  for (size_t size = 10; size < whole.size(); ++size) {
    WriteRaw(directory / "b", whole.substr(0, size));
    EXPECT_THAT(InputErrorOf([&] { ReadAll(directory / "b"); }),
                HasSubstr("b: the gzip data end too early: was the file cut off?"))
        << size;
  }
}

TEST(TextStreamTest, RefusesTruncatedZstandardAtEveryLength) {
  const TemporaryDirectory directory;
  WriteFile(directory / "a.zst", LongText(200));
  const std::string whole = ReadRaw(directory / "a.zst");
  for (size_t size = 4; size < whole.size(); ++size) {
    WriteRaw(directory / "b", whole.substr(0, size));
    EXPECT_THAT(InputErrorOf([&] { ReadAll(directory / "b"); }),
                HasSubstr("b: the Zstandard data end too early: was the file cut off?"))
        << size;
  }
}

TEST(TextStreamTest, RefusesDamage) {
  const TemporaryDirectory directory;
  WriteGzip(directory / "a", LongText(5000));
  WriteFile(directory / "b.zst", LongText(5000));
  for (const auto& [name, reason] : {std::pair("a", "a: not valid gzip: "),
                                     std::pair("b.zst", "b.zst: not valid Zstandard: ")}) {
    std::string bytes = ReadRaw(directory / name);
    for (size_t i = bytes.size() / 2; i < bytes.size() / 2 + 32; ++i) bytes[i] = '\xff';
    WriteRaw(directory / name, bytes);
    EXPECT_THAT(InputErrorOf([&, file = name] { ReadAll(directory / file); }), HasSubstr(reason));
  }
}

TEST(TextStreamTest, RefusesMissingFilesAndDirectories) {
  const TemporaryDirectory directory;
  EXPECT_EQ(InputErrorOf([] { TextStream("/nonexistent/trace.json"); }),
            "cannot read '/nonexistent/trace.json': No such file or directory");
  EXPECT_EQ(InputErrorOf([&] { TextStream(directory / ""); }),
            "cannot read '" + (directory / "").string() + "': Is a directory");
}

}  // namespace
}  // namespace spillway::testing
