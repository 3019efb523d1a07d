#include "sim/alloc/make_allocator.h"

#include <fmt/format.h>

#include <utility>

#include "sim/alloc/best_fit.h"
#include "sim/alloc/cnmem.h"
#include "sim/alloc/first_fit.h"
#include "sim/alloc/high_end.h"
#include "sim/alloc/native.h"
#include "sim/alloc/planned.h"
#include "sim/alloc/pytorch.h"
#include "sim/alloc/stitched.h"
#include "sim/core/error.h"

namespace spillway {
namespace {

// What an allocator is made for.
struct Arena {
  Bytes capacity;
  Bytes granularity;
};

Bytes ReadGranularity(Params& params, Bytes initial) {
  const Bytes granularity =
      params.Size("granularity", initial, "requests are rounded up to a multiple of it");
  if (granularity <= Bytes(0) || granularity.count() % initial.count() != 0) {
    throw UsageError(fmt::format("granularity {}B is not a multiple of the device's alignment, {}B",
                                 granularity.count(), initial.count()));
  }
  return granularity;
}

std::unique_ptr<Allocator> MakeBestFit(const Arena& arena, Params& params) {
  return std::make_unique<BestFit>(arena.capacity, ReadGranularity(params, arena.granularity));
}

std::unique_ptr<Allocator> MakeFirstFit(const Arena& arena, Params& params) {
  return std::make_unique<FirstFit>(arena.capacity, ReadGranularity(params, arena.granularity));
}

std::unique_ptr<Allocator> MakeHighEnd(const Arena& arena, Params& params) {
  const Bytes granularity = ReadGranularity(params, arena.granularity);
  const bool code = params.Choice("reading", "code", {"code", "text"},
                                  "a high hint means the last free block, as in the authors' code, "
                                  "or the highest that suffices, as in the paper's text") == "code";
  return std::make_unique<HighEnd>(arena.capacity, granularity,
                                   code ? HighEnd::Reading::kCode : HighEnd::Reading::kText);
}

std::unique_ptr<Allocator> MakeCnmem(const Arena& arena, Params& params) {
  const Bytes granularity = ReadGranularity(params, arena.granularity);
  const Bytes initial = params.Size("initial", Bytes(0), "size of the pool before it grows");
  return std::make_unique<Cnmem>(arena.capacity, granularity, initial);
}

std::unique_ptr<Allocator> MakePyTorch(const Arena& arena, Params& params) {
  PyTorch::Options options;
  options.max_split_size = params.Size("max_split_size", options.max_split_size,
                                       "larger cached blocks are not split; at least 20MiB");
  options.expandable_segments =
      params.Flag("expandable_segments", options.expandable_segments,
                  "map memory into one range of addresses per pool instead of taking segments");
  options.roundup_power2_divisions =
      params.Integer("roundup_power2_divisions", options.roundup_power2_divisions, 0, 1 << 20,
                     "round up to one of so many steps between powers of two; a power of two");
  if ((options.roundup_power2_divisions & (options.roundup_power2_divisions - 1)) != 0) {
    throw UsageError(
        fmt::format("allocator 'pytorch': roundup_power2_divisions={} is no power of two",
                    options.roundup_power2_divisions));
  }
  if (options.max_split_size < Bytes::MiB(20)) {
    throw UsageError(fmt::format("allocator 'pytorch': max_split_size={}B is less than 20MiB",
                                 options.max_split_size.count()));
  }
  return std::make_unique<PyTorch>(arena.capacity, options);
}

std::unique_ptr<Allocator> MakeNative(const Arena& arena, Params&) {
  return std::make_unique<Native>(arena.capacity, arena.granularity);
}

std::unique_ptr<Allocator> MakeStitched(const Arena& arena, Params& params) {
  const Bytes page = params.Size("page", Bytes::MiB(2), "what is mapped at a time");
  if (page < Bytes::KiB(4) || page.count() % 4096 != 0 ||
      page.count() % arena.granularity.count() != 0) {
    throw UsageError(fmt::format(
        "allocator 'stitched': page={}B is not a multiple of 4KiB and the device's alignment",
        page.count()));
  }
  return std::make_unique<Stitched>(arena.capacity, arena.granularity, page);
}

std::unique_ptr<Allocator> MakePlanned(const Arena& arena, Params&) {
  return std::make_unique<Planned>(arena.capacity, arena.granularity);
}

bool ReadByTime(Params& params) {
  return params.Choice("by", "memory", {"memory", "time"}, "what is to be least") == "time";
}

std::unique_ptr<Allocator> MakeAuto(const Arena& arena, Params& params) {
  ReadByTime(params);
  return std::make_unique<BestFit>(arena.capacity, arena.granularity);
}

struct Entry {
  const char* name;
  const char* description;
  std::unique_ptr<Allocator> (*make)(const Arena& arena, Params& params);
};

const Entry kEntries[] = {
    {"best-fit", "smallest free block that suffices, ties to the lowest offset", MakeBestFit},
    {"first-fit", "lowest free block that suffices", MakeFirstFit},
    {"high-end", "best fit, but what the policy hints at comes from the top (vDNN++)", MakeHighEnd},
    {"cnmem", "best fit in a pool that grows by segments of the size wanted, never merged (CNMeM)",
     MakeCnmem},
    {"pytorch", "PyTorch's caching allocator: segments from the driver, split and kept",
     MakePyTorch},
    {"native", "cudaMalloc and cudaFree for each block: no external fragmentation, but slow",
     MakeNative},
    {"stitched", "pages mapped side by side wherever they lie: no external fragmentation",
     MakeStitched},
    {"planned", "offsets computed ahead of time for the blocks that the policy asks for",
     MakePlanned},
    {"auto", "the one of all these, and of the policy's orders, that needs the least", MakeAuto},
};

// The granularity that parameters are described with.
constexpr Arena kNominal{Bytes(0), Bytes(512)};

}  // namespace

std::vector<AllocatorInfo> Allocators() {
  std::vector<AllocatorInfo> infos;
  for (const Entry& entry : kEntries) {
    Params params(entry.name, {});
    entry.make(kNominal, params);
    infos.push_back({entry.name, entry.description, params.declared()});
  }
  return infos;
}

std::unique_ptr<Allocator> MakeAllocator(std::string_view specification, Bytes capacity,
                                         Bytes granularity) {
  Specification parsed = ParseSpecification("allocator", specification);
  std::vector<std::string> names;
  for (const Entry& entry : kEntries) {
    names.push_back(entry.name);
    if (parsed.name != entry.name) continue;
    Params params(fmt::format("allocator '{}'", entry.name), std::move(parsed.values));
    auto allocator = entry.make({capacity, granularity}, params);
    params.Finish();
    return allocator;
  }
  throw UsageError(UnknownName("allocator", parsed.name, names));
}

bool AutoByTime(const Specification& specification) {
  Params params("allocator 'auto'", specification.values);
  const bool by_time = ReadByTime(params);
  params.Finish();
  return by_time;
}

}  // namespace spillway
