// PyTorch's caching allocator with all of its sizes divided by 128.
//
// PyTorch's segments of 2 and 20 MiB are larger than all tensors of a random trace together. Here
// segments have 16 and 160 KiB, requests of 80 KiB or more get their own segment, and blocks are
// multiples of 4 bytes. A test can thus fill enough memory to exercise every rule.

#ifndef SPILLWAY_TESTS_TESTING_SMALL_PYTORCH_H_
#define SPILLWAY_TESTS_TESTING_SMALL_PYTORCH_H_

#include <map>
#include <vector>

#include "sim/alloc/pytorch.h"

namespace spillway::testing {

class SmallPyTorch final : public Allocator {
 public:
  static constexpr int64_t kScale = 128;
  static constexpr Bytes kPage = Bytes::KiB(16);  // segments are multiples of a page

  // Blocks are multiples of `alignment`. REQUIRES: `alignment` divides `kPage`.
  SmallPyTorch(Bytes capacity, Bytes alignment, const PyTorch::Options& options)
      : alignment_(alignment), options_(options), allocator_(capacity * kScale, options) {}

  std::string_view Name() const override { return allocator_.Name(); }

  std::optional<Block> Allocate(Bytes size, Hint hint) override {
    const auto block =
        allocator_.Allocate(RoundUp(std::max(size, Bytes(1)), alignment_) * kScale, hint);
    NoteCalls();
    if (!block) return std::nullopt;
    requested_ += size;
    sizes_[block->offset] = size;
    return Small(*block);
  }

  void Free(const Block& block) override {
    const Block large{block.offset * kScale, block.size * kScale, block.handle};
    allocator_.Free(large);
    NoteCalls();
    requested_ -= sizes_.at(large.offset);
    sizes_.erase(large.offset);
  }

  MemoryStats Stats() const override {
    const MemoryStats large = allocator_.Stats();
    return {requested_, Small(large.allocated), Small(large.reserved), Small(large.largest_free)};
  }
  Bytes Reserved() const override { return Small(allocator_.Reserved()); }
  std::span<const DriverCall> driver_calls() const override { return calls_; }
  Backing backing() const override { return allocator_.backing(); }

  // Returns the bytes that must be free in the device to serve a request when nothing is cached.
  // They follow from the documented sizes of segments, or of pages if segments expand.
  Bytes MemoryFor(Bytes size) const {
    if (size <= Bytes::KiB(8)) return kPage;
    if (options_.expandable_segments) return RoundUp(size, kPage * 10);
    return size < Bytes::KiB(80) ? kPage * 10 : RoundUp(size, kPage);
  }

 private:
  static Bytes Small(Bytes size) { return Bytes(size.count() / kScale); }
  static Block Small(const Block& block) {
    return {Small(block.offset), Small(block.size), block.handle};
  }
  void NoteCalls() {
    const auto calls = allocator_.driver_calls();
    for (size_t i = calls_.size(); i < calls.size(); ++i) {
      calls_.push_back({calls[i].kind, Small(calls[i].range), std::nullopt});
    }
  }

  const Bytes alignment_;
  const PyTorch::Options options_;
  PyTorch allocator_;
  std::vector<DriverCall> calls_;
  Bytes requested_;
  std::map<Bytes, Bytes> sizes_;  // block offset in `allocator_` -> requested bytes
};

}  // namespace spillway::testing

#endif  // SPILLWAY_TESTS_TESTING_SMALL_PYTORCH_H_
