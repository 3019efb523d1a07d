// An allocator places blocks in an arena of offsets [0, capacity).
//
// It deals in offsets only and touches no memory, so one implementation serves the device arena and
// the pools outside the device, on every backend. Its state is a function of the sequence of calls:
// no clock, no randomness, ties by the lowest offset. That makes placements comparable byte for
// byte.

#ifndef SPILLWAY_SIM_CORE_ALLOCATOR_H_
#define SPILLWAY_SIM_CORE_ALLOCATOR_H_

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string_view>

#include "traces/base/units.h"

namespace spillway {

// The half-open range [offset, offset + size) of an arena.
struct Block {
  Bytes offset;
  Bytes size;

  // The allocator's own number of the block, so that it need not search for it when the block is
  // given back. No part of where the block is.
  uint32_t handle = 0;

  Bytes end() const { return offset + size; }
  bool operator==(const Block& other) const { return offset == other.offset && size == other.size; }
};

// Where a block lies: on the device, or in a pool of memory outside it. Those are numbered from
// `kHost` on, pinned memory of the host; what the others are says `Device::pools`.
enum class PoolId : uint8_t { kDevice, kHost };

inline constexpr size_t kMaxPools = 3;  // outside the device

// A pool outside by its number, from 0, and its number.
constexpr PoolId OutsidePool(size_t number) { return static_cast<PoolId>(number + 1); }
constexpr size_t NumberOf(PoolId pool) { return static_cast<size_t>(pool) - 1; }
static_assert(OutsidePool(0) == PoolId::kHost);

// Which end of the arena a block should prefer. An allocator is free to ignore it.
enum class Hint : uint8_t { kLow, kHigh };

// A call of the driver that an allocator makes to get memory behind its addresses, or to give it
// back.
struct DriverCall {
  enum class Kind : uint8_t {
    kMalloc,  // cudaMalloc of a segment
    kFree,    // cudaFree of one: waits until everything issued has completed
    kMap,     // memory is mapped at addresses that were reserved before
    kUnmap,   // and taken away from them: waits likewise
  };

  Kind kind = Kind::kMalloc;
  Block range;  // of addresses
  // kMap: where in the device's memory, if that is the allocator's to say: the same memory may then
  // be mapped at several addresses, and hazards follow the memory.
  std::optional<Bytes> physical;
  bool operator==(const DriverCall&) const = default;
};

// What an executing backend has to provide behind an allocator's addresses.
enum class Backing : uint8_t {
  kArena,   // one piece of memory; driver calls, if any, are not performed
  kBlocks,  // each block is a cudaMalloc, and a cudaFree when it is given back: no calls are listed
  kSegments,  // what the driver calls kMalloc and kFree say
  kPages,     // what the driver calls kMap and kUnmap say
};

// PyTorch's meanings of the words.
struct MemoryStats {
  Bytes requested;  // bytes that callers asked for and still hold
  Bytes allocated;  // the same, rounded to the allocator's granularity
  Bytes reserved;  // bytes taken from the device: never shrinks for an arena with a high-water mark
  Bytes largest_free;  // the largest request that would succeed now
};

class Allocator {
 public:
  virtual ~Allocator() = default;

  virtual std::string_view Name() const = 0;

  // A block of at least `size` bytes, or nullopt if none fits, in which case nothing has changed
  // but that cached memory may have gone back to the driver. A request of 0 bytes takes one
  // granule. REQUIRES: size >= 0.
  virtual std::optional<Block> Allocate(Bytes size, Hint hint = Hint::kLow) = 0;

  // Gives back a block that `Allocate` returned and that has not been freed since.
  virtual void Free(const Block& block) = 0;

  virtual MemoryStats Stats() const = 0;

  // The largest request with this hint that would succeed now. Of an allocator whose hints decide
  // what fits, `Stats().largest_free` is that of the low hint.
  virtual Bytes LargestFree(Hint /*hint*/) const { return Stats().largest_free; }

  // `Stats().reserved` alone, which is logged with every block.
  virtual Bytes Reserved() const { return Stats().reserved; }

  // The calls of the driver made so far, in order: those of one `Allocate` or `Free` are appended
  // by it. A request that fails may make calls too. Empty for one arena, taken before everything.
  virtual std::span<const DriverCall> driver_calls() const { return {}; }

  virtual Backing backing() const { return Backing::kArena; }
};

}  // namespace spillway

#endif  // SPILLWAY_SIM_CORE_ALLOCATOR_H_
