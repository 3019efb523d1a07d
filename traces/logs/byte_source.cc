#include "traces/logs/byte_source.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <bit>
#include <cerrno>

#include "traces/base/error.h"

namespace spillway::traces {
namespace {

static_assert(std::endian::native == std::endian::little);
constexpr size_t kWindow = size_t{1} << 18;

[[noreturn]] void FailSystem(const std::string& origin, int error) {
  throw InputError(fmt::format("{}: {}", origin, std::strerror(error)));
}

}  // namespace

ByteSource::ByteSource(const std::filesystem::path& path) : origin_(path.string()) {
  fd_ = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (fd_ < 0) FailSystem(origin_, errno);
  struct stat status {};
  const int error = ::fstat(fd_, &status) != 0 ? errno : S_ISDIR(status.st_mode) ? EISDIR : 0;
  if (error == 0 && S_ISREG(status.st_mode)) {
    size_ = static_cast<uint64_t>(status.st_size);
    window_.resize(kWindow);
    begin_ = at_ = end_ = window_.data();
    return;
  }
  ::close(fd_);
  if (error != 0) FailSystem(origin_, error);
  throw InputError(origin_ + ": this is not a regular file, but it must be read more than once");
}

ByteSource::ByteSource(std::string_view contents, std::string origin)
    : origin_(std::move(origin)),
      begin_(reinterpret_cast<const uint8_t*>(contents.data())),
      at_(begin_),
      end_(begin_ + contents.size()),
      size_(contents.size()) {}

ByteSource::~ByteSource() {
  if (fd_ >= 0) ::close(fd_);
}

void ByteSource::Fill(size_t count) {
  if (remaining() < count || fd_ < 0) FailTruncated();
  window_offset_ = offset();
  const auto kept = static_cast<size_t>(end_ - at_);
  std::memmove(window_.data(), at_, kept);
  size_t filled = kept;
  while (filled < count) {
    const ssize_t got = ::pread(fd_, window_.data() + filled, window_.size() - filled,
                                static_cast<off_t>(window_offset_ + filled));
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) FailSystem(origin_, errno);
    if (got == 0) throw InputError(origin_ + ": the file became shorter while it was read");
    filled += static_cast<size_t>(got);
  }
  begin_ = at_ = window_.data();
  end_ = begin_ + filled;
}

void ByteSource::Skip(uint64_t count) {
  if (count > remaining()) FailTruncated();
  if (count <= static_cast<uint64_t>(end_ - at_)) {
    at_ += count;
    return;
  }
  window_offset_ = offset() + count;
  begin_ = at_ = end_ = window_.data();
}

void ByteSource::FailTruncated() const { Fail(size_, "the file ends in the middle of its data"); }

void ByteSource::Fail(uint64_t offset, std::string_view message) const {
  throw InputError(fmt::format("{}: byte {}: {}", origin_, offset, message));
}

}  // namespace spillway::traces
