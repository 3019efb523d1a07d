// Faults on demand: a backend and an allocator that work but for the n-th time something is asked
// of them.

#ifndef SPILLWAY_TESTS_TESTING_FAULTS_H_
#define SPILLWAY_TESTS_TESTING_FAULTS_H_

#include <cstdint>
#include <optional>

#include "sim/core/forwarding_allocator.h"
#include "sim/core/forwarding_backend.h"
#include "traces/trace.h"

namespace spillway::testing {

enum class FaultKind : uint8_t {
  kAllocation,      // the arena has no block
  kHostAllocation,  // the host pool has none
  kLaunch,          // the device refuses a kernel
  kCopy,            // or a copy
  kExecution,       // a kernel fails as it runs, long after it was issued
};

// Fails once, at the `at`-th occasion from 0 on of its kind.
class Fault {
 public:
  Fault(FaultKind kind, int64_t at) : kind_(kind), left_(at) {}

  // Counts an occasion. True if it is the one to fail.
  bool Strikes(FaultKind kind) { return kind == kind_ && left_-- == 0; }
  // Whether it has struck.
  bool struck() const { return left_ < 0; }

 private:
  const FaultKind kind_;
  int64_t left_;
};

// Throws `EnvironmentError`, as a backend that lost its device does.
class FaultyBackend final : public ForwardingBackend {
 public:
  FaultyBackend(Backend& backend, Fault& fault) : ForwardingBackend(backend), fault_(fault) {}

  Event Enqueue(const Launch& launch, std::span<const Wait> waits) override;
  Event Copy(PoolId pool, Direction direction, const Block& device, const Block& outside,
             Bytes size, std::span<const Wait> waits) override;

 private:
  Fault& fault_;
};

class FaultyAllocator final : public ForwardingAllocator {
 public:
  // `kind` is what this allocator's requests count as.
  FaultyAllocator(Allocator& allocator, FaultKind kind, Fault& fault)
      : ForwardingAllocator(allocator), kind_(kind), fault_(fault) {}

  std::optional<Block> Allocate(Bytes size, Hint hint) override;

 private:
  const FaultKind kind_;
  Fault& fault_;
};

// For an op executor: throws `EnvironmentError` naming the op if the fault strikes.
void MaybeFail(const Op& op, Fault& fault);

}  // namespace spillway::testing

#endif  // SPILLWAY_TESTS_TESTING_FAULTS_H_
