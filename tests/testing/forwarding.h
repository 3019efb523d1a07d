// Backend and allocator that pass everything on to another one: what wrappers derive from, to
// change one thing.

#ifndef SPILLWAY_TESTS_TESTING_FORWARDING_H_
#define SPILLWAY_TESTS_TESTING_FORWARDING_H_

#include "sim/core/allocator.h"
#include "sim/core/backend.h"

namespace spillway::testing {

class ForwardingBackend : public Backend {
 public:
  // `backend` outlives the wrapper.
  explicit ForwardingBackend(Backend& backend) : backend_(backend) {}

  std::string_view Name() const override { return backend_.Name(); }
  Event Enqueue(const Launch& launch, std::span<const Wait> waits) override {
    return backend_.Enqueue(launch, waits);
  }
  Event Copy(Direction direction, const Block& device, const Block& host, Bytes size,
             std::span<const Wait> waits) override {
    return backend_.Copy(direction, device, host, size, waits);
  }
  void Synchronize() override { backend_.Synchronize(); }
  StreamTimes TakeTimeline() override { return backend_.TakeTimeline(); }
  void OnAllocate(const Block& block) override { backend_.OnAllocate(block); }
  void OnFree(const Block& block) override { backend_.OnFree(block); }
  void OnDriverCall(const DriverCall& call) override { backend_.OnDriverCall(call); }
  void OnAbandon(const Block& block, bool host) override { backend_.OnAbandon(block, host); }
  void OnHostBlock(TensorId tensor, const Block& block) override {
    backend_.OnHostBlock(tensor, block);
  }
  void OnArrive(TensorId tensor, const Block& block, bool host) override {
    backend_.OnArrive(tensor, block, host);
  }

 private:
  Backend& backend_;
};

class ForwardingAllocator : public Allocator {
 public:
  // `allocator` outlives the wrapper.
  explicit ForwardingAllocator(Allocator& allocator) : allocator_(allocator) {}

  std::string_view Name() const override { return allocator_.Name(); }
  std::optional<Block> Allocate(Bytes size, Hint hint) override {
    return allocator_.Allocate(size, hint);
  }
  void Free(const Block& block) override { allocator_.Free(block); }
  void UseStream(uint64_t stream) override { allocator_.UseStream(stream); }
  void EmptyCache() override { allocator_.EmptyCache(); }
  std::optional<std::vector<Block>> Adopt(const HeldSegment& segment) override {
    return allocator_.Adopt(segment);
  }
  MemoryStats Stats() const override { return allocator_.Stats(); }
  Bytes LargestFree(Hint hint) const override { return allocator_.LargestFree(hint); }
  Bytes Reserved() const override { return allocator_.Reserved(); }
  std::span<const DriverCall> driver_calls() const override { return allocator_.driver_calls(); }
  Backing backing() const override { return allocator_.backing(); }

 private:
  Allocator& allocator_;
};

}  // namespace spillway::testing

#endif  // SPILLWAY_TESTS_TESTING_FORWARDING_H_
