// Pins for a scope: verbs of the policy on a storage that is pinned say false.

#ifndef SPILLWAY_SIM_RUNTIME_PINS_H_
#define SPILLWAY_SIM_RUNTIME_PINS_H_

#include <cstdint>
#include <span>

#include "sim/runtime/memory_table.h"

namespace spillway {

template <int kPins>
class PinScope {
 public:
  // Table and list outlive the scope.
  PinScope(MemoryTable& memory, std::span<const TensorId> storages)
      : memory_(memory), storages_(storages) {
    Add(kPins);
  }
  ~PinScope() { Add(-kPins); }
  PinScope(const PinScope&) = delete;
  PinScope& operator=(const PinScope&) = delete;

 private:
  void Add(int pins) {
    for (const TensorId id : storages_) memory_.At(id).pins += static_cast<uint32_t>(pins);
  }

  MemoryTable& memory_;
  const std::span<const TensorId> storages_;
};

// Something needs the storages where they are.
using ScopedPins = PinScope<1>;
// One of those that do lets go of them for a while.
using ScopedUnpins = PinScope<-1>;

}  // namespace spillway

#endif  // SPILLWAY_SIM_RUNTIME_PINS_H_
