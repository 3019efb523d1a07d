// Reads the bytes of a file or of a string from front to back through a window of fixed size.

#ifndef SPILLWAY_TRACES_LOGS_BYTE_SOURCE_H_
#define SPILLWAY_TRACES_LOGS_BYTE_SOURCE_H_

#include <cstdint>
#include <cstring>
#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

namespace spillway::traces {

class ByteSource {
 public:
  // Opens a file. Throws `InputError` with the path and the system's reason.
  explicit ByteSource(const std::filesystem::path& path);
  // REQUIRES: `contents` outlives the source.
  ByteSource(std::string_view contents, std::string origin);
  ByteSource(const ByteSource&) = delete;
  ByteSource& operator=(const ByteSource&) = delete;
  ~ByteSource();

  const std::string& origin() const { return origin_; }
  uint64_t offset() const { return window_offset_ + static_cast<uint64_t>(at_ - begin_); }
  uint64_t remaining() const { return size_ - offset(); }

  // Returns the next `count` bytes, which stay valid until the next call. Throws `InputError` if
  // fewer bytes are left. REQUIRES: count <= kLargestTake.
  const uint8_t* Take(size_t count) {
    if (static_cast<size_t>(end_ - at_) < count) Fill(count);
    const uint8_t* const taken = at_;
    at_ += count;
    return taken;
  }
  // Returns an unsigned little-endian integer of `count` bytes, at most 8.
  template <size_t count>
  uint64_t TakeInteger() {
    static_assert(count <= 8);
    uint64_t value = 0;
    std::memcpy(&value, Take(count), count);  // the project's machines are little-endian
    return value;
  }
  // Returns an integer whose length is known only at run time. REQUIRES: 1 <= count <= 8.
  uint64_t TakeInteger(size_t count) {
    if (end_ - at_ < 8) {
      uint64_t value = 0;
      std::memcpy(&value, Take(count), count);
      return value;
    }
    uint64_t value = 0;
    std::memcpy(&value, at_, 8);  // one load; a copy of `count` bytes would be a call
    at_ += count;
    return value & ~uint64_t{0} >> (64 - 8 * count);
  }
  // Throws `InputError` if fewer than `count` bytes are left.
  void Skip(uint64_t count);

  // Throws `InputError` with the message "origin: byte OFFSET: message".
  [[noreturn]] void Fail(uint64_t offset, std::string_view message) const;

  static constexpr size_t kLargestTake = 4096;

 private:
  void Fill(size_t count);
  [[noreturn]] void FailTruncated() const;

  std::string origin_;
  int fd_ = -1;
  std::vector<uint8_t> window_;
  const uint8_t* begin_ = nullptr;
  const uint8_t* at_ = nullptr;
  const uint8_t* end_ = nullptr;
  uint64_t window_offset_ = 0;  // offset of `begin_` in the source
  uint64_t size_ = 0;
};

}  // namespace spillway::traces

#endif  // SPILLWAY_TRACES_LOGS_BYTE_SOURCE_H_
