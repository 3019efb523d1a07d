#include "traces/logs/pickle_writer.h"

#include <bit>

namespace spillway::traces {
namespace {

// Appends the low `count` bytes of `value` in little-endian order.
void AppendInteger(std::string& bytes, uint64_t value, int count) {
  for (int i = 0; i < count; ++i) bytes += static_cast<char>(value >> (8 * i) & 0xff);
}

}  // namespace

PickleWriter& PickleWriter::PutInteger(int64_t value) {
  const auto bits = static_cast<uint64_t>(value);
  if (value >= 0 && value < 256) {
    bytes_ += 'K';
    AppendInteger(bytes_, bits, 1);
  } else if (value == static_cast<int32_t>(value)) {
    bytes_ += 'J';
    AppendInteger(bytes_, bits, 4);
  } else {
    bytes_ += "\x8a\x08";
    AppendInteger(bytes_, bits, 8);
  }
  return *this;
}

PickleWriter& PickleWriter::PutReal(double value) {
  bytes_ += 'G';
  AppendInteger(bytes_, __builtin_bswap64(std::bit_cast<uint64_t>(value)), 8);
  return *this;
}

PickleWriter& PickleWriter::PutString(std::string_view text) {
  const auto found = memo_.find(text);
  if (found != memo_.end()) {
    bytes_ += found->second < 256 ? 'h' : 'j';
    AppendInteger(bytes_, found->second, found->second < 256 ? 1 : 4);
    return *this;
  }
  if (text.size() < 256) {
    bytes_ += '\x8c';
    AppendInteger(bytes_, text.size(), 1);
  } else {
    bytes_ += 'X';
    AppendInteger(bytes_, text.size(), 4);
  }
  bytes_ += text;
  bytes_ += '\x94';
  memo_.emplace(text, static_cast<uint32_t>(memo_.size()));
  return *this;
}

}  // namespace spillway::traces
