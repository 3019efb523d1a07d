#include "sim/alloc/make_allocator.h"

#include <fmt/format.h>

#include <utility>

#include "sim/alloc/best_fit.h"
#include "sim/alloc/first_fit.h"
#include "sim/alloc/high_end.h"
#include "sim/alloc/native.h"
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

std::unique_ptr<Allocator> MakeNative(const Arena& arena, Params&) {
  return std::make_unique<Native>(arena.capacity, arena.granularity);
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
    {"native", "cudaMalloc and cudaFree for each block: no external fragmentation, but slow",
     MakeNative},
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

}  // namespace spillway
