#include "experiments/run/pool_search.h"

#include "sim/alloc/make_allocator.h"

namespace spillway::lab {

std::optional<Bytes> SearchPool(Bytes start,
                                const std::function<std::optional<Bytes>(Bytes size)>& lacking) {
  for (Bytes size = start;;) {
    const std::optional<Bytes> lacked = lacking(size);
    if (!lacked) return std::nullopt;
    if (*lacked == Bytes(0)) return size;
    size += *lacked;
  }
}

std::optional<Bytes> SearchPool(const AllocationLog& log, const std::string& allocator,
                                Bytes alignment, Bytes start) {
  // `enough` is twice the sum of all requests. The space of that size that blocks and the gaps
  // between them leave free is larger than any request, so more space changes no decision.
  Bytes enough;
  for (const AllocationStep& step : log.steps()) {
    if (!step.free) enough += RoundUp(step.size, alignment) * 2;
  }
  return SearchPool(start, [&](Bytes size) -> std::optional<Bytes> {
    const auto failure = Replay(log, *MakeAllocator(allocator, size, alignment));
    if (!failure) return Bytes(0);
    if (size > enough) return std::nullopt;
    return RoundUp(failure->wanted, alignment) - failure->largest_free;
  });
}

}  // namespace spillway::lab
