// Faults on demand: a backend and an allocator that work except for the n-th request of one kind.

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
  kHostAllocation,  // the host pool has no block
  kLaunch,          // the device refuses a kernel
  kCopy,            // the device refuses a copy
  kExecution,       // a kernel fails as it runs, long after it was issued
};

// A fault that strikes once, at occasion number `at` of its kind. The first occasion is number 0.
class Fault {
 public:
  Fault(FaultKind kind, int64_t at) : kind_(kind), left_(at) {}

  // Counts an occasion of this kind. Returns true iff it is the one that must fail.
  bool Strikes(FaultKind kind) { return kind == kind_ && left_-- == 0; }
  // Returns true iff the fault has struck.
  bool struck() const { return left_ < 0; }

 private:
  const FaultKind kind_;
  int64_t left_;
};

// A backend that throws `EnvironmentError` when the fault strikes, like a backend that lost its
// device.
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
  // Each request to this allocator counts as one occasion of `kind`.
  FaultyAllocator(Allocator& allocator, FaultKind kind, Fault& fault)
      : ForwardingAllocator(allocator), kind_(kind), fault_(fault) {}

  std::optional<Block> Allocate(Bytes size, Hint hint) override;

 private:
  const FaultKind kind_;
  Fault& fault_;
};

// Throws `EnvironmentError` that names the op if the fault strikes. Op executors call it.
void MaybeFail(const Op& op, Fault& fault);

}  // namespace spillway::testing

#endif  // SPILLWAY_TESTS_TESTING_FAULTS_H_
