// Device memory mapped page by page into one range of reserved addresses: CUDA's virtual memory
// management. The same page can be mapped at several addresses. Includes no CUDA.

#ifndef SPILLWAY_BACKEND_CUDA_PAGE_MEMORY_H_
#define SPILLWAY_BACKEND_CUDA_PAGE_MEMORY_H_

#include <cstddef>
#include <map>
#include <memory>
#include <optional>

#include "sim/core/allocator.h"
#include "traces/base/units.h"

namespace spillway {

class PageMemory {
 public:
  // Addresses for the current device; memory is taken by `Map`. Throws `EnvironmentError` if the
  // device or its driver cannot map pages.
  PageMemory();
  ~PageMemory();
  PageMemory(const PageMemory&) = delete;
  PageMemory& operator=(const PageMemory&) = delete;

  // Maps memory at offsets of the range: new memory, or that which `memory` stands for, which is
  // new the first time that it is named and then the same. Throws `InputError` unless all are
  // multiples of the device's page, 2 MiB so far, and `Error` if there is no memory left. REQUIRES:
  // nothing is mapped there.
  void Map(const Block& range, std::optional<Bytes> memory);
  // Waits for the device. REQUIRES: the range was mapped without naming memory.
  void Unmap(const Block& range);

  // REQUIRES: the whole block is mapped.
  std::byte* At(const Block& block) const;

 private:
  struct Driver;  // the entry points
  using Handle = unsigned long long;

  Handle Create();

  std::unique_ptr<const Driver> driver_;
  int device_ = 0;
  Bytes page_;
  unsigned long long base_ = 0;
  std::map<Bytes, Handle> named_;      // pages, by the memory that they stand for
  std::map<Bytes, Handle> anonymous_;  // the others, by address
  std::map<Bytes, Bytes> mapped_;      // all pages: offset, size
};

}  // namespace spillway

#endif  // SPILLWAY_BACKEND_CUDA_PAGE_MEMORY_H_
