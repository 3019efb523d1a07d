// An allocator places blocks in an arena of offsets [0, capacity).
//
// It handles only offsets and touches no memory, so one implementation serves the device arena and
// the pools outside the device, on every backend. Its state depends only on the sequence of calls:
// it uses no clock and no randomness and breaks ties by the lowest offset. Placements can therefore
// be compared byte for byte.

#ifndef SPILLWAY_SIM_CORE_ALLOCATOR_H_
#define SPILLWAY_SIM_CORE_ALLOCATOR_H_

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string_view>

#include "traces/base/units.h"

namespace spillway::sim {

// The half-open range [offset, offset + size) of an arena.
struct Block {
  Bytes offset;
  Bytes size;

  // The allocator's number of the block, with which `Free` finds the block without a search. Two
  // blocks with different handles may be equal.
  uint32_t handle = 0;

  Bytes end() const { return offset + size; }
  bool operator==(const Block& other) const { return offset == other.offset && size == other.size; }
};

// The memory in which a block lies: the device, or a pool outside the device. `kHost`, the pinned
// memory of the host, is the first pool outside; the kinds of the others are listed in
// `Device::pools`.
enum class PoolId : uint8_t { kDevice, kHost };

inline constexpr size_t kMaxPools = 3;  // number of pools outside the device

// Conversion between a pool outside the device and its number, which starts at 0 for the host.
constexpr PoolId OutsidePool(size_t number) { return static_cast<PoolId>(number + 1); }
constexpr size_t NumberOf(PoolId pool) { return static_cast<size_t>(pool) - 1; }
static_assert(OutsidePool(0) == PoolId::kHost);

// The end of the arena that a block should prefer. An allocator may ignore it.
enum class Hint : uint8_t { kLow, kHigh };

// A driver call by which an allocator gets memory for its addresses or gives memory back.
struct DriverCall {
  enum class Kind : uint8_t {
    kMalloc,  // cudaMalloc of a segment
    kFree,    // cudaFree of a segment: waits until every issued command has completed
    kMap,     // maps memory at addresses that were reserved before
    kUnmap,   // unmaps memory from addresses; waits as kFree does
  };

  Kind kind = Kind::kMalloc;
  Block range;  // a range of addresses
  // For kMap: the offset of the memory in the device, if the allocator chooses it. In this case the
  // same memory may be mapped at several addresses, and hazards follow the memory.
  std::optional<Bytes> physical;
  bool operator==(const DriverCall&) const = default;
};

// The memory that an executing backend must provide for an allocator's addresses.
enum class Backing : uint8_t {
  kArena,     // one piece of memory; driver calls are not performed
  kBlocks,    // each block comes from cudaMalloc and goes back by cudaFree; `driver_calls` is empty
  kSegments,  // the backend performs the driver calls kMalloc and kFree
  kPages,     // the backend performs the driver calls kMap and kUnmap
};

// Byte counts of an allocator, in PyTorch's terms.
struct MemoryStats {
  Bytes requested;  // bytes that callers asked for and still hold
  Bytes allocated;  // requested bytes, rounded up to the allocator's granularity
  Bytes reserved;  // bytes taken from the device; never shrinks for an arena with a high-water mark
  Bytes largest_free;  // the largest request that would succeed now
};

class Allocator {
 public:
  virtual ~Allocator() = default;

  virtual std::string_view Name() const = 0;

  // Returns a block of at least `size` bytes, or nullopt if none fits. A failed call changes no
  // block, but cached memory may have gone back to the driver. A request of 0 bytes takes one
  // granule. REQUIRES: size >= 0.
  virtual std::optional<Block> Allocate(Bytes size, Hint hint = Hint::kLow) = 0;

  // Selects the stream of all further requests; initially it is 0. In an allocator that caches per
  // stream, memory freed on one stream does not serve another. Other allocators ignore the stream.
  virtual void UseStream(uint64_t /*stream*/) {}

  // Gives back a block. REQUIRES: `Allocate` returned it and it has not been freed since.
  virtual void Free(const Block& block) = 0;

  virtual MemoryStats Stats() const = 0;

  // Returns the largest request with this hint that would succeed now. If the hint decides which
  // blocks fit, `Stats().largest_free` is the value for the low hint.
  virtual Bytes LargestFree(Hint /*hint*/) const { return Stats().largest_free; }

  // Returns `Stats().reserved`. It has its own function because it is logged with every block.
  virtual Bytes Reserved() const { return Stats().reserved; }

  // Returns all driver calls so far, in order. Each `Allocate` and `Free` appends its calls; a
  // failed `Allocate` may append some, too. Empty for an allocator that takes one arena at the
  // start.
  virtual std::span<const DriverCall> driver_calls() const { return {}; }

  virtual Backing backing() const { return Backing::kArena; }
};

}  // namespace spillway::sim

#endif  // SPILLWAY_SIM_CORE_ALLOCATOR_H_
