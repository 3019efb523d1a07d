// Finds the allocator's block of each storage of an execution trace, and its lifetime.
//
// The execution trace knows tensors by storage but no memory. The profiler knows when which address
// was allocated and released, but no tensors. The operators connect both: an output of a node in a
// storage that no earlier node had lies in a block of its size that was allocated while the node
// ran. The number of a storage may be used again later for another storage. A storage for which no
// block was allocated existed before the step.

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

namespace spillway::traces {

class StorageTable {
 public:
  static constexpr int64_t kAlways = std::numeric_limits<int64_t>::max();
  static constexpr int64_t kBefore = std::numeric_limits<int64_t>::min();

  // A storage, from the allocation of its block to its release.
  struct Storage {
    int64_t begin = kBefore;  // kBefore: it existed before the first record
    int64_t end = kAlways;    // kAlways: it is never released
    int64_t thread = 0;
    int64_t size = 0;    // in bytes: the end of its last tensor, or the block if not named
    int64_t block = 0;   // in bytes, as the allocator rounded it
    bool named = false;  // a node names it
  };

  // Reads the memory events of the GPU if `gpu`, otherwise of the host.
  StorageTable(std::span<const KinetoTrace::Memory> memory, bool gpu);

  // Returns the storages of a node's operands by index in `storages`. Must be called for one node
  // after another, in the order in which they end. `begin` and `end` are the node's times.
  struct Operands {
    std::vector<uint32_t> inputs, outputs;  // one for each operand; kNone: in other memory
  };
  static constexpr uint32_t kNone = std::numeric_limits<uint32_t>::max();
  Operands Join(const ExecutionTrace::Node& node, int64_t begin, int64_t end, int64_t thread);

  // Sets the end of storages that existed before the first record and were released. Must be called
  // after the last `Join`. `last_use` is the time of each storage's last use (kBefore: none).
  void EndFormer(std::span<const int64_t> last_use);

  const std::vector<Storage>& storages() const { return storages_; }
  // Returns the bytes that were allocated before the first record. `UnnamedBefore` counts only the
  // bytes that no node names and that are not released.
  int64_t held_before() const { return held_before_; }
  int64_t UnnamedBefore() const;
  // Return the peak bytes that were allocated and that were reserved.
  int64_t peak_allocated() const { return peak_allocated_; }
  int64_t peak_reserved() const { return peak_reserved_; }
  // Returns the bytes of storages that are outputs of nodes and for which no block was found.
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
  std::vector<Storage> storages_;        // storages with blocks by begin, then storages without
  size_t blocks_ = 0;                    // number of storages with blocks
  std::map<int64_t, uint32_t> current_;  // by the number in the execution trace
  std::vector<FormerFree> former_frees_;
  int64_t held_before_ = 0, peak_allocated_ = 0, peak_reserved_ = 0, unplaced_ = 0;
};

}  // namespace spillway::traces

#endif  // SPILLWAY_TRACES_IMPORT_STORAGES_H_
