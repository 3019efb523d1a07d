// Device memory that is mapped page by page into one range of reserved addresses, by CUDA's virtual
// memory management. The same page can be mapped at several addresses. The header includes no CUDA.

#ifndef SPILLWAY_BACKEND_CUDA_PAGE_MEMORY_H_
#define SPILLWAY_BACKEND_CUDA_PAGE_MEMORY_H_

#include <cstddef>
#include <map>
#include <memory>
#include <optional>

#include "sim/core/allocator.h"
#include "traces/base/units.h"

namespace spillway::cuda {

class PageMemory {
 public:
  // Reserves addresses for the current device; `Map` allocates memory. Throws `EnvironmentError` if
  // the device or its driver cannot map pages.
  PageMemory();
  ~PageMemory();
  PageMemory(const PageMemory&) = delete;
  PageMemory& operator=(const PageMemory&) = delete;

  // Maps memory at `range`. Without `memory`, new memory is mapped. Otherwise `memory` names an
  // offset in a second space, whose pages are created when first named and are the same from then
  // on. Throws `InputError` if an offset or size is not a multiple of the device's page size (2 MiB
  // so far), and `Error` if no memory is left. REQUIRES: nothing is mapped at `range`.
  void Map(const Block& range, std::optional<Bytes> memory);
  // Waits for the device, then unmaps `range` and frees its memory. REQUIRES: the range was mapped
  // without `memory`.
  void Unmap(const Block& range);

  // Returns the address of the block. REQUIRES: the whole block is mapped.
  std::byte* At(const Block& block) const;

 private:
  struct Driver;  // the driver's functions
  using Handle = unsigned long long;

  Handle Create();

  std::unique_ptr<const Driver> driver_;
  int device_ = 0;
  Bytes page_;
  unsigned long long base_ = 0;
  std::map<Bytes, Handle> named_;      // pages by the offset in `memory` that names them
  std::map<Bytes, Handle> anonymous_;  // all other pages, by offset
  std::map<Bytes, Bytes> mapped_;      // sizes of all mapped pages, by offset
};

}  // namespace spillway::cuda

#endif  // SPILLWAY_BACKEND_CUDA_PAGE_MEMORY_H_
