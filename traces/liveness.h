// An index of the ops that use and write each storage of a trace, in execution order.
//
// A storage is named by the root of its alias chain. The index is built once per trace, in time
// linear in the trace's size.

#ifndef SPILLWAY_TRACES_LIVENESS_H_
#define SPILLWAY_TRACES_LIVENESS_H_

#include <optional>
#include <span>
#include <vector>

#include "traces/trace.h"

namespace spillway::traces {

class Liveness {
 public:
  explicit Liveness(const Trace& trace);

  // Returns the storage of a tensor in constant time.
  TensorId Root(TensorId tensor) const { return roots_[Index(tensor)]; }
  // Returns the byte of its storage at which the tensor begins.
  Bytes Offset(TensorId tensor) const { return offsets_[Index(tensor)]; }

  // Returns the distinct storages of an op's inputs, outputs and scratch, in order of first
  // mention.
  std::span<const TensorId> Storages(OpId op) const { return Row(op_storages_, Index(op)); }

  // Return the ops that name a storage or that write it, in ascending order. REQUIRES: `storage` is
  // a root.
  std::span<const OpId> Uses(TensorId storage) const { return Row(uses_, Index(storage)); }
  std::span<const OpId> Writers(TensorId storage) const { return Row(writers_, Index(storage)); }

  std::optional<OpId> FirstUse(TensorId storage) const;
  std::optional<OpId> LastUse(TensorId storage) const;

 private:
  // Rows of different lengths in one vector: row i is values[begin[i], begin[i + 1]).
  template <typename T>
  struct Rows {
    std::vector<uint32_t> begin;
    std::vector<T> values;
  };
  template <typename T>
  static std::span<const T> Row(const Rows<T>& rows, size_t i) {
    return std::span(rows.values).subspan(rows.begin[i], rows.begin[i + 1] - rows.begin[i]);
  }
  void FindRoots(const Trace& trace);
  // Returns storage-to-op rows for op-to-storage rows.
  static Rows<OpId> Invert(const Rows<TensorId>& rows, size_t storages);

  std::vector<TensorId> roots_;
  std::vector<Bytes> offsets_;
  Rows<TensorId> op_storages_;
  Rows<OpId> uses_;
  Rows<OpId> writers_;
};

// Returns true iff the two ops have the same type and phase and name a common storage. If they run
// back to back, the second finds its code and part of its data in the caches.
bool Alike(const Trace& trace, const Liveness& liveness, OpId one, OpId other);

}  // namespace spillway::traces

#endif  // SPILLWAY_TRACES_LIVENESS_H_
