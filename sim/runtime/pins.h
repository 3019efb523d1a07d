// Pins for the duration of a scope. The policy's verbs return false on a storage that is pinned.

#ifndef SPILLWAY_SIM_RUNTIME_PINS_H_
#define SPILLWAY_SIM_RUNTIME_PINS_H_

#include <cstdint>
#include <span>

#include "sim/runtime/memory_table.h"

namespace spillway::sim {

template <int kPins>
class PinScope {
 public:
  // The table and the list outlive the scope.
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

// Pins the storages: they must stay where they are.
using ScopedPins = PinScope<1>;
// Removes one pin of each storage for a while, on behalf of the owner of the pin.
using ScopedUnpins = PinScope<-1>;

}  // namespace spillway::sim

#endif  // SPILLWAY_SIM_RUNTIME_PINS_H_
