#include "tests/testing/faults.h"

#include <fmt/format.h>

#include "traces/base/error.h"

namespace spillway::testing {

Event FaultyBackend::Enqueue(const Launch& launch, std::span<const Wait> waits) {
  if (fault_.Strikes(FaultKind::kLaunch)) throw EnvironmentError("injected: launch refused");
  return ForwardingBackend::Enqueue(launch, waits);
}

Event FaultyBackend::Copy(PoolId pool, Direction direction, const Block& device,
                          const Block& outside, Bytes size, std::span<const Wait> waits) {
  if (fault_.Strikes(FaultKind::kCopy)) throw EnvironmentError("injected: copy refused");
  return ForwardingBackend::Copy(pool, direction, device, outside, size, waits);
}

std::optional<Block> FaultyAllocator::Allocate(Bytes size, Hint hint) {
  if (fault_.Strikes(kind_)) return std::nullopt;
  return ForwardingAllocator::Allocate(size, hint);
}

void MaybeFail(const Op& op, Fault& fault) {
  if (!fault.Strikes(FaultKind::kExecution)) return;
  throw EnvironmentError(fmt::format("op '{}': injected: kernel failed", op.name));
}

}  // namespace spillway::testing
