// Which ops use and write which storage of a trace, in execution order.
//
// A storage is named by the root of its alias chain. Built once per trace in time linear in its
// size; a plain index, it makes no decisions.

#ifndef SPILLWAY_TRACES_LIVENESS_H_
#define SPILLWAY_TRACES_LIVENESS_H_

#include <optional>
#include <span>
#include <vector>

#include "traces/trace.h"

namespace spillway {

class Liveness {
 public:
  explicit Liveness(const Trace& trace);

  // The storage of a tensor, in constant time.
  TensorId Root(TensorId tensor) const { return roots_[Index(tensor)]; }
  // Where the tensor begins in it.
  Bytes Offset(TensorId tensor) const { return offsets_[Index(tensor)]; }

  // The distinct storages that an op names: inputs, outputs and scratch, in order of first mention.
  std::span<const TensorId> Storages(OpId op) const { return Row(op_storages_, Index(op)); }

  // The ops that name a storage, or write it, ascending. REQUIRES: `storage` is a root.
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
  // Turns op-to-storage rows around.
  static Rows<OpId> Invert(const Rows<TensorId>& rows, size_t storages);

  std::vector<TensorId> roots_;
  std::vector<Bytes> offsets_;
  Rows<TensorId> op_storages_;
  Rows<OpId> uses_;
  Rows<OpId> writers_;
};

// Whether the ops are of one type and phase and name a storage in common: the same code on data of
// which the caches have a part, right behind one another.
bool Alike(const Trace& trace, const Liveness& liveness, OpId one, OpId other);

}  // namespace spillway

#endif  // SPILLWAY_TRACES_LIVENESS_H_
