#include "backend/cuda/page_memory.h"

#include <cuda.h>
#include <cuda_runtime_api.h>
#include <fmt/format.h>

#include <iterator>

#include "backend/cuda/cuda_error.h"
#include "backend/cuda/driver_entry.h"
#include "traces/base/error.h"

namespace spillway::cuda {
namespace {

// More than the total of all stitched addresses of a run. Reserved addresses cost nothing.
constexpr Bytes kAddressSpace = Bytes::GiB(4096);

void Check(CUresult code, const char* call) {
  if (code == CUDA_SUCCESS) return;
  if (code == CUDA_ERROR_OUT_OF_MEMORY) {
    throw Error(fmt::format("out of device memory: {} for a page", call));
  }
  throw Error(fmt::format("{}: CUDA driver error {}", call, static_cast<int>(code)));
}

CUmemAllocationProp PageProperties(int device) {
  CUmemAllocationProp properties{};
  properties.type = CU_MEM_ALLOCATION_TYPE_PINNED;
  properties.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
  properties.location.id = device;
  return properties;
}

}  // namespace

struct PageMemory::Driver {
  decltype(&cuMemGetAllocationGranularity) granularity =
      DriverEntry<decltype(&cuMemGetAllocationGranularity)>("cuMemGetAllocationGranularity");
  decltype(&cuMemAddressReserve) reserve =
      DriverEntry<decltype(&cuMemAddressReserve)>("cuMemAddressReserve");
  decltype(&cuMemAddressFree) free = DriverEntry<decltype(&cuMemAddressFree)>("cuMemAddressFree");
  decltype(&cuMemCreate) create = DriverEntry<decltype(&cuMemCreate)>("cuMemCreate");
  decltype(&cuMemRelease) release = DriverEntry<decltype(&cuMemRelease)>("cuMemRelease");
  decltype(&cuMemMap) map = DriverEntry<decltype(&cuMemMap)>("cuMemMap");
  decltype(&cuMemUnmap) unmap = DriverEntry<decltype(&cuMemUnmap)>("cuMemUnmap");
  decltype(&cuMemSetAccess) set_access = DriverEntry<decltype(&cuMemSetAccess)>("cuMemSetAccess");
};

PageMemory::PageMemory() : driver_(std::make_unique<const Driver>()) {
  SPILLWAY_CUDA_CALL(cudaGetDevice(&device_));
  const CUmemAllocationProp properties = PageProperties(device_);
  size_t page = 0;
  Check(driver_->granularity(&page, &properties, CU_MEM_ALLOC_GRANULARITY_MINIMUM),
        "cuMemGetAllocationGranularity");
  page_ = Bytes(static_cast<int64_t>(page));
  CUdeviceptr base = 0;
  Check(driver_->reserve(&base, static_cast<size_t>(kAddressSpace.count()), 0, 0, 0),
        "cuMemAddressReserve");
  base_ = base;
}

PageMemory::~PageMemory() {
  // A failure is ignored: it is either sticky, and the next call reports it, or the process is
  // ending.
  for (const auto& [offset, size] : mapped_) {
    static_cast<void>(driver_->unmap(base_ + static_cast<CUdeviceptr>(offset.count()),
                                     static_cast<size_t>(size.count())));
  }
  for (const auto* pages : {&named_, &anonymous_}) {
    for (const auto& [offset, handle] : *pages) static_cast<void>(driver_->release(handle));
  }
  static_cast<void>(driver_->free(base_, static_cast<size_t>(kAddressSpace.count())));
}

PageMemory::Handle PageMemory::Create() {
  const CUmemAllocationProp properties = PageProperties(device_);
  CUmemGenericAllocationHandle handle = 0;
  Check(driver_->create(&handle, static_cast<size_t>(page_.count()), &properties, 0),
        "cuMemCreate");
  return handle;
}

void PageMemory::Map(const Block& range, std::optional<Bytes> memory) {
  const auto whole = [&](Bytes size) { return size.count() % page_.count() == 0; };
  if (!whole(range.offset) || !whole(range.size) || !whole(memory.value_or(Bytes(0)))) {
    throw InputError(
        fmt::format("the GPU maps pages of {}, but the allocator asks for {} at offset {}",
                    FormatBytes(page_), FormatBytes(range.size), range.offset.count()));
  }
  if (range.end() > kAddressSpace) {
    throw Error(fmt::format("the run needs more than {} of addresses", FormatBytes(kAddressSpace)));
  }
  for (Bytes at; at < range.size; at += page_) {
    Handle handle = 0;
    if (memory) {
      const auto [found, is_new] = named_.try_emplace(*memory + at, Handle{});
      if (is_new) found->second = Create();
      handle = found->second;
    } else {
      handle = Create();
      anonymous_[range.offset + at] = handle;
    }
    Check(driver_->map(base_ + static_cast<CUdeviceptr>((range.offset + at).count()),
                       static_cast<size_t>(page_.count()), 0, handle, 0),
          "cuMemMap");
    mapped_[range.offset + at] = page_;
  }
  CUmemAccessDesc access{};
  access.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
  access.location.id = device_;
  access.flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
  Check(driver_->set_access(base_ + static_cast<CUdeviceptr>(range.offset.count()),
                            static_cast<size_t>(range.size.count()), &access, 1),
        "cuMemSetAccess");
}

void PageMemory::Unmap(const Block& range) {
  SPILLWAY_CUDA_CALL(cudaDeviceSynchronize());
  for (Bytes at = range.offset; at < range.end(); at += page_) {
    const auto page = anonymous_.find(at);
    SPILLWAY_CHECK(page != anonymous_.end());
    Check(driver_->unmap(base_ + static_cast<CUdeviceptr>(at.count()),
                         static_cast<size_t>(page_.count())),
          "cuMemUnmap");
    Check(driver_->release(page->second), "cuMemRelease");
    anonymous_.erase(page);
    mapped_.erase(at);
  }
}

std::byte* PageMemory::At(const Block& block) const {
  const auto first = mapped_.upper_bound(block.offset);
  SPILLWAY_CHECK(first != mapped_.begin());
  SPILLWAY_CHECK(block.offset < std::prev(first)->first + page_);
  return reinterpret_cast<std::byte*>(base_ + static_cast<CUdeviceptr>(block.offset.count()));
}

}  // namespace spillway::cuda
