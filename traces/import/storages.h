// Finds out which block of the allocator each storage of an execution trace had, and from when to
// when.
//
// The execution trace knows tensors by storage but no memory; the profiler knows when which address
// was given out and given back but no tensors. They meet in the operators: what a node puts out and
// no earlier one had lies in a block of that size that was given out while it ran. A storage's
// number is used again later: then it names another one. Storages that nothing was given out for
// were there before.

#ifndef SPILLWAY_TRACES_IMPORT_STORAGES_H_
#define SPILLWAY_TRACES_IMPORT_STORAGES_H_

#include <cstdint>
#include <limits>
#include <map>
#include <optional>
#include <span>
#include <vector>

#include "traces/import/execution_trace.h"
#include "traces/import/kineto.h"

namespace spillway {

class StorageTable {
 public:
  static constexpr int64_t kAlways = std::numeric_limits<int64_t>::max();
  static constexpr int64_t kBefore = std::numeric_limits<int64_t>::min();

  // A storage, from the moment at which its block was given out to that at which it was given back.
  struct Storage {
    int64_t begin = kBefore;  // kBefore: it was there
    int64_t end = kAlways;    // kAlways: it stays
    int64_t thread = 0;
    int64_t size = 0;    // in bytes: what tensors reach, or else the block
    int64_t block = 0;   // in bytes, as the allocator rounded it
    bool named = false;  // a node names it
  };

  // Memory of the GPU, or without one the host's.
  StorageTable(std::span<const KinetoTrace::Memory> memory, bool gpu);

  // The storages of a node's operands, by number in `storages`; to be called node by node in the
  // order in which they end. `begin` and `end` are the node's.
  struct Operands {
    std::vector<uint32_t> inputs, outputs;  // as in the node; kNone for what is elsewhere
  };
  static constexpr uint32_t kNone = std::numeric_limits<uint32_t>::max();
  Operands Join(const ExecutionTrace::Node& node, int64_t begin, int64_t end, int64_t thread);

  // Gives what was there before and was given back its end. To be called after the last `Join`,
  // with the last use of each storage in time (kBefore: none).
  void EndFormer(std::span<const int64_t> last_use);

  const std::vector<Storage>& storages() const { return storages_; }
  // Bytes that were given out before the first record, and of them those that no node names.
  int64_t held_before() const { return held_before_; }
  int64_t UnnamedBefore() const;
  // The most that was given out at once, and reserved.
  int64_t peak_allocated() const { return peak_allocated_; }
  int64_t peak_reserved() const { return peak_reserved_; }
  // Bytes of storages that nodes put out and for which no block was found.
  int64_t unplaced() const { return unplaced_; }

 private:
  struct FormerFree {
    int64_t time, bytes;
    bool taken = false;
  };

  bool IsHere(const ExecutionTrace::TensorRef& ref) const { return ref.on_gpu == gpu_; }
  uint32_t Resolve(const ExecutionTrace::TensorRef& ref, int64_t begin, int64_t end, int64_t thread,
                   bool fresh, bool output);
  std::optional<uint32_t> FindBlock(int64_t size, int64_t from, int64_t to, int64_t alive,
                                    std::optional<int64_t> thread) const;
  uint32_t Name(uint32_t storage, const ExecutionTrace::TensorRef& ref);

  const bool gpu_;
  std::vector<Storage> storages_;        // those with blocks by begin, then those from before
  size_t blocks_ = 0;                    // of the first kind
  std::map<int64_t, uint32_t> current_;  // by the execution trace's number
  std::vector<FormerFree> former_frees_;
  int64_t held_before_ = 0, peak_allocated_ = 0, peak_reserved_ = 0, unplaced_ = 0;
};

}  // namespace spillway

#endif  // SPILLWAY_TRACES_IMPORT_STORAGES_H_
