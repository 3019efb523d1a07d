// Fuzz target: compressed data, a frame of the zero-value codec.
//
// Every path gives the same bytes or the same refusal, and what is read writes the same frame when
// it is compressed again. Whatever the bytes are, they survive being compressed themselves.

#include <string>
#include <vector>

#include "sim/compression/zero_value.h"
#include "tests/fuzz/property.h"

namespace spillway::fuzz {
namespace {

// A frame of all zeros stands for 2,048 times its size.
constexpr Bytes kMostOriginal = Bytes::MiB(32);

// What a path makes of the frame; `refusal` is empty where it takes it.
struct Read {
  std::vector<std::byte> data;
  std::string refusal;
  bool operator==(const Read&) const = default;
};

Read ReadFrame(std::span<const std::byte> frame, CodecPath path) {
  Read read;
  try {
    const Bytes size = ZeroValueCodec::OriginalSize(frame, "frame");
    if (size > kMostOriginal) return read;
    read.data.resize(static_cast<size_t>(size.count()));
    ZeroValueCodec({8, 1}, path).DecompressFrame(frame, read.data, "frame");
  } catch (const InputError& error) {
    read = {{}, error.what()};
    SPILLWAY_CHECK(read.refusal.starts_with("frame: byte "));
  }
  return read;
}

std::vector<std::byte> Compress(std::span<const std::byte> data, CodecPath path, BlockPool& pool) {
  CompressedData compressed(pool);
  ZeroValueCodec codec({8, 1}, path);
  codec.Compress(data, compressed);
  std::vector<std::byte> out(data.size());
  codec.Decompress(compressed, out);
  SPILLWAY_CHECK(std::equal(data.begin(), data.end(), out.begin()));
  return ZeroValueCodec::Frame(compressed);
}

}  // namespace
}  // namespace spillway::fuzz

int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace spillway;
  const std::span bytes(reinterpret_cast<const std::byte*>(data), size);
  BlockPool pool;
  const fuzz::Read read = fuzz::ReadFrame(bytes, CodecPath::kScalar);
  const std::vector<std::byte> own = fuzz::Compress(bytes, CodecPath::kScalar, pool);
  for (const CodecPath path : CodecPaths()) {
    SPILLWAY_CHECK(fuzz::ReadFrame(bytes, path) == read);
    SPILLWAY_CHECK(fuzz::Compress(bytes, path, pool) == own);
  }
  if (read.refusal.empty() && !read.data.empty()) {
    const std::vector<std::byte> again = fuzz::Compress(read.data, CodecPaths().back(), pool);
    SPILLWAY_CHECK(std::equal(bytes.begin(), bytes.end(), again.begin(), again.end()));
  }
  return 0;
}
