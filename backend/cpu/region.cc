#include "backend/cpu/region.h"

#include <fmt/format.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "traces/base/error.h"

namespace spillway::cpu {

Region::Region(Bytes size) : size_(std::min(size, Bytes::GiB(1024))) {
  if (size_ <= Bytes(0)) return;
  void* const data = mmap(nullptr, static_cast<size_t>(size_.count()), PROT_READ | PROT_WRITE,
                          MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (data == MAP_FAILED) {
    throw EnvironmentError(fmt::format("cannot reserve {} of address space: {}", FormatBytes(size_),
                                       std::strerror(errno)));
  }
  data_ = static_cast<std::byte*>(data);
}

Region::~Region() {
  if (data_ != nullptr) munmap(data_, static_cast<size_t>(size_.count()));
  if (memory_ >= 0) close(memory_);
}

void Region::Map(const Block& addresses, Bytes memory) {
  const auto fail = [](const char* call) {
    throw EnvironmentError(
        fmt::format("cannot map pages, {} failed: {}", call, std::strerror(errno)));
  };
  const std::span<std::byte> window = At(addresses);
  if (memory_ < 0) {
    memory_ = memfd_create("spillway", MFD_CLOEXEC);
    if (memory_ < 0) fail("memfd_create");
  }
  if (const Bytes end = memory + addresses.size; end > memory_size_) {
    if (ftruncate(memory_, end.count()) != 0) fail("ftruncate");
    memory_size_ = end;
  }
  if (mmap(window.data(), window.size(), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, memory_,
           memory.count()) == MAP_FAILED) {
    fail("mmap");
  }
}

std::span<std::byte> Region::At(const Block& block) const {
  if (block.offset < Bytes(0) || block.end() > size_) {
    throw InputError(fmt::format("the range [{}, {}) lies beyond the {} that the CPU backend has",
                                 block.offset.count(), block.end().count(), FormatBytes(size_)));
  }
  return {data_ + block.offset.count(), static_cast<size_t>(block.size.count())};
}

}  // namespace spillway::cpu
