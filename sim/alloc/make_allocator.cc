#include "sim/alloc/make_allocator.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <bit>
#include <charconv>
#include <optional>
#include <utility>

#include "sim/alloc/best_fit.h"
#include "sim/alloc/cnmem.h"
#include "sim/alloc/first_fit.h"
#include "sim/alloc/high_end.h"
#include "sim/alloc/native.h"
#include "sim/alloc/pytorch.h"
#include "sim/alloc/stitched.h"
#include "traces/base/error.h"

namespace spillway::sim {
namespace {

constexpr int64_t kMostDivisions = int64_t{1} << 20;

// The arena that an allocator is made for.
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

std::unique_ptr<ReplayableAllocator> MakeBestFit(const Arena& arena, Params& params) {
  return std::make_unique<BestFit>(arena.capacity, ReadGranularity(params, arena.granularity));
}

std::unique_ptr<ReplayableAllocator> MakeFirstFit(const Arena& arena, Params& params) {
  return std::make_unique<FirstFit>(arena.capacity, ReadGranularity(params, arena.granularity));
}

std::unique_ptr<ReplayableAllocator> MakeHighEnd(const Arena& arena, Params& params) {
  const Bytes granularity = ReadGranularity(params, arena.granularity);
  const bool code =
      params.Choice("reading", "code", {"code", "text"},
                    "a high hint takes the last free block, as in the authors' code, or the "
                    "highest that is large enough, as in the paper's text") == "code";
  return std::make_unique<HighEnd>(arena.capacity, granularity,
                                   code ? HighEnd::Reading::kCode : HighEnd::Reading::kText);
}

std::unique_ptr<ReplayableAllocator> MakeCnmem(const Arena& arena, Params& params) {
  const Bytes granularity = ReadGranularity(params, arena.granularity);
  const Bytes initial = params.Size("initial", Bytes(0), "size of the pool before it grows");
  return std::make_unique<Cnmem>(arena.capacity, granularity, initial);
}

// Parses PyTorch's notation: one number for all sizes, or a list of entries SIZE:DIVISIONS with
// sizes in MiB. The first entry also counts below its size; the size ">" stands for all sizes above
// the last entry.
std::array<int64_t, 16> ParseDivisions(std::string_view text) {
  std::array<int64_t, 16> divisions{};
  const std::string_view whole = text;
  const auto power = [&](std::string_view number, int64_t most) -> std::optional<int64_t> {
    int64_t value = -1;
    const auto [end, error] = std::from_chars(number.data(), number.data() + number.size(), value);
    const bool read = error == std::errc() && end == number.data() + number.size();
    const bool is_power = value >= 0 && (value & (value - 1)) == 0;
    return read && is_power && value <= most ? std::optional(value) : std::nullopt;
  };
  const auto fail = [&](std::string_view what) {
    throw UsageError(fmt::format(
        "allocator 'pytorch': roundup_power2_divisions={}: {} (valid: 0 or a power of two up to "
        "{}, or [256:1,512:2,>:4] with sizes in MiB that are powers of two from 1 to {})",
        whole, what, kMostDivisions, 1 << (divisions.size() - 1)));
  };
  const auto steps = [&](std::string_view number) {
    const auto value = power(number, kMostDivisions);
    if (!value) fail(fmt::format("'{}' is not a number of divisions", number));
    return *value;
  };
  if (!text.starts_with('[')) {
    divisions.fill(steps(text));
    return divisions;
  }
  if (!text.ends_with(']')) fail("']' is missing");
  text = text.substr(1, text.size() - 2);
  std::optional<size_t> last;
  while (!text.empty()) {
    const size_t end = std::min(text.find(','), text.size());
    const std::string_view entry = text.substr(0, end);
    text.remove_prefix(std::min(end + 1, text.size()));
    const size_t colon = entry.find(':');
    if (colon == std::string_view::npos) fail(fmt::format("'{}' is not SIZE:DIVISIONS", entry));
    const std::string_view size = entry.substr(0, colon);
    const int64_t value = steps(entry.substr(colon + 1));
    if (size == ">") {
      std::fill(divisions.begin() + (last ? static_cast<int>(*last) + 1 : 0), divisions.end(),
                value);
      continue;
    }
    const auto mebibytes = power(size, int64_t{1} << (divisions.size() - 1));
    if (!mebibytes || *mebibytes == 0) fail(fmt::format("'{}' is not a size", size));
    const auto index = static_cast<size_t>(std::countr_zero(static_cast<uint64_t>(*mebibytes)));
    if (!last) std::fill_n(divisions.begin(), index, value);
    divisions[index] = value;
    last = index;
  }
  return divisions;
}

std::unique_ptr<ReplayableAllocator> MakePyTorch(const Arena& arena, Params& params) {
  PyTorch::Options options;
  options.max_split_size =
      params.Size("max_split_size", options.max_split_size,
                  "cached blocks of at least this size are not split; at least 20MiB");
  options.expandable_segments =
      params.Flag("expandable_segments", options.expandable_segments,
                  "map memory into one range of addresses per pool instead of taking segments");
  options.roundup_power2_divisions = ParseDivisions(params.Text(
      "roundup_power2_divisions", "integer|list", "0",
      "requests are rounded up to one of this many steps between powers of two; one power of two, "
      "or a list by size in MiB as in [256:1,512:2,>:4]"));
  options.max_non_split_rounding = params.Size(
      "max_non_split_rounding", options.max_non_split_rounding,
      "a block that is not split serves only requests that are smaller by less than this; at "
      "least 20MiB");
  options.large_segment_size =
      params.Size("large_segment_size", options.large_segment_size,
                  "size of the segments that requests from 1MiB to 10MiB share; more than 10MiB");
  options.garbage_collection_threshold = params.Share(
      "garbage_collection_threshold", options.garbage_collection_threshold,
      "old cached segments are given back before a new one is taken, while more than this part of "
      "memory is reserved; less than 1, and 0 means never");
  if (options.large_segment_size <= Bytes::MiB(10)) {
    throw UsageError(fmt::format("allocator 'pytorch': large_segment_size={}B is not above 10MiB",
                                 options.large_segment_size.count()));
  }
  const auto at_least = [&](const char* name, Bytes size) {
    const Bytes least = std::min(Bytes::MiB(20), options.large_segment_size);
    if (size >= least) return;
    throw UsageError(fmt::format("allocator 'pytorch': {}={}B is less than {}MiB", name,
                                 size.count(), least.count() >> 20));
  };
  at_least("max_split_size", options.max_split_size);
  at_least("max_non_split_rounding", options.max_non_split_rounding);
  if (options.garbage_collection_threshold == 1) {
    throw UsageError("allocator 'pytorch': garbage_collection_threshold=1 is not less than 1");
  }
  return std::make_unique<PyTorch>(arena.capacity, options);
}

std::unique_ptr<ReplayableAllocator> MakeNative(const Arena& arena, Params&) {
  return std::make_unique<Native>(arena.capacity, arena.granularity);
}

std::unique_ptr<ReplayableAllocator> MakeStitched(const Arena& arena, Params& params) {
  const Bytes page =
      params.Size("page", Bytes::MiB(2), "size of the pages in which memory is mapped");
  if (page < Bytes::KiB(4) || page.count() % 4096 != 0 ||
      page.count() % arena.granularity.count() != 0) {
    throw UsageError(fmt::format(
        "allocator 'stitched': page={}B is not a multiple of 4KiB and the device's alignment",
        page.count()));
  }
  return std::make_unique<Stitched>(arena.capacity, arena.granularity, page);
}

struct Entry {
  const char* name;
  const char* description;
  std::unique_ptr<ReplayableAllocator> (*make)(const Arena& arena, Params& params);
};

const Entry kEntries[] = {
    {"best-fit", "takes the smallest free block that is large enough, of equal sizes the lowest",
     MakeBestFit},
    {"first-fit", "takes the lowest free block that is large enough", MakeFirstFit},
    {"high-end", "best fit, but tensors with the policy's high hint come from the top (vDNN++)",
     MakeHighEnd},
    {"cnmem",
     "best fit in a pool that grows by segments of the requested size, which never merge (CNMeM)",
     MakeCnmem},
    {"pytorch",
     "PyTorch's caching allocator: takes segments from the driver, splits them and keeps them",
     MakePyTorch},
    {"native", "calls cudaMalloc and cudaFree for each block: no external fragmentation, but slow",
     MakeNative},
    {"stitched", "maps pages side by side wherever they lie: no external fragmentation",
     MakeStitched},
};

// The granularity for the descriptions of parameters.
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

bool IsAllocator(std::string_view name) {
  return std::ranges::any_of(kEntries, [&](const Entry& entry) { return name == entry.name; });
}

std::unique_ptr<ReplayableAllocator> MakeAllocator(const Specification& specification,
                                                   Bytes capacity, Bytes granularity) {
  std::vector<std::string> names;
  for (const Entry& entry : kEntries) {
    names.push_back(entry.name);
    if (specification.name != entry.name) continue;
    Params params(fmt::format("allocator '{}'", entry.name), specification.values);
    auto allocator = entry.make({capacity, granularity}, params);
    params.Finish();
    return allocator;
  }
  throw UsageError(UnknownName("allocator", specification.name, names));
}

std::unique_ptr<ReplayableAllocator> MakeAllocator(std::string_view specification, Bytes capacity,
                                                   Bytes granularity) {
  return MakeAllocator(ParseSpecification("allocator", specification), capacity, granularity);
}

}  // namespace spillway::sim
