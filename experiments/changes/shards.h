// The parts of tensors that the processes of a step share out among themselves.

#ifndef SPILLWAY_EXPERIMENTS_CHANGES_SHARDS_H_
#define SPILLWAY_EXPERIMENTS_CHANGES_SHARDS_H_

#include <cstdint>
#include <string_view>
#include <vector>

#include "traces/liveness.h"
#include "traces/trace.h"

namespace spillway::lab {

// Returns the attribute as a whole number; 0 if the op does not have it.
int64_t Number(const Op& op, std::string_view attribute);

// Returns the number of processes of which the step is one: the largest product of the ranks and
// the stride of a group. Returns 1 if the step has no collectives.
int64_t WorldOf(const Trace& trace);

// Returns the sizes of the dimensions of the mesh, the outermost first: {8, 4} if groups of 4
// processes are side by side, and others have a stride of 4 in 32. Returns {1} for one process.
std::vector<int64_t> MeshOf(const Trace& trace);

// What the groups of one dimension of the mesh shard: those that reach over `reach` processes, as
// the product of their ranks and their stride says.
class Shards {
 public:
  // The trace outlives this object.
  Shards(const Trace& trace, int64_t reach);

  // Returns true iff the op is a collective of such a group.
  bool Grows(const Op& op) const {
    return op.IsCollective() && Number(op, "ranks") * Number(op, "stride") == reach_;
  }
  const Liveness& liveness() const { return liveness_; }
  // Returns true iff the whole storage of the tensor is that of shards.
  bool IsSharded(TensorId id) const { return sharded_[Index(liveness_.Root(id))]; }
  // Returns true iff the tensor is this process's part of a tensor that a growing group gathers.
  bool IsPiece(TensorId id) const { return pieces_[Index(id)]; }
  bool Shrinks(TensorId id) const { return IsSharded(id) || IsPiece(id); }
  // Returns the number of shards that are side by side in the storage; 0 if it holds none.
  int64_t ShardsIn(TensorId id) const { return groups_[Index(liveness_.Root(id))]; }
  // Returns true iff the op copies the shards of all processes out of a gathered tensor, one tensor
  // for each parameter.
  bool CopiesOut(const Op& op) const;
  // Returns true iff the op is an all-gather of such a group, whose shards come from tensors that
  // live across iterations.
  bool GathersParameters(const Op& op) const;

 private:
  // Marks the shards of a collective, and the tensors that are made of the shards of all processes.
  void Begin(const Op& op);
  int64_t ElementsOf(const std::vector<TensorId>& ids) const;
  // Marks what ops compute element by element from shards, or shards from. Returns true if there
  // was something to mark.
  bool Follow();

  const Trace& trace_;
  const Liveness liveness_;
  const int64_t reach_;
  std::vector<bool> sharded_;    // by storage
  std::vector<bool> pieces_;     // by tensor
  std::vector<int64_t> groups_;  // by storage
};

// Returns the largest reach of groups that gather parameters in forward; 0 if there are none.
int64_t ReachOfShards(const Trace& trace);

}  // namespace spillway::lab

#endif  // SPILLWAY_EXPERIMENTS_CHANGES_SHARDS_H_
