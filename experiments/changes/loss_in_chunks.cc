#include "experiments/changes/loss_in_chunks.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "experiments/changes/changed_op.h"
#include "policies/recorded/pytorch_plans.h"
#include "traces/liveness.h"

namespace spillway::lab {
namespace {

class ChunkedLoss {
 public:
  ChunkedLoss(const Trace& trace, const Device& device, int64_t chunks)
      : from_(trace),
        device_(device),
        chunks_(chunks),
        liveness_(trace),
        wide_(trace.tensors.size()),
        role_(trace.ops.size()),
        to_(trace) {
    for (const Tensor& tensor : trace.tensors) names_.insert(tensor.name);
    for (const Op& op : trace.ops) names_.insert(op.name);
  }

  std::optional<Trace> Build() {
    if (!from_.training || !FindLogits() || !FindOps() || !FindLaterOps()) return std::nullopt;
    to_.ops.clear();
    std::vector<OpId> places(from_.ops.size());
    const auto write = [&](size_t i) {
      to_.ops.push_back(from_.ops[i]);
      if (i >= first_ && i <= last_ && ReadsShapesOnly(from_.ops[i])) to_.ops.back().inputs.clear();
      places[i] = Here();
    };
    for (size_t i = 0; i < from_.ops.size(); ++i) {
      if (role_[i] == Role::kBeside) write(i);
      if (i != last_) continue;
      for (int64_t chunk = 0; chunk < chunks_; ++chunk) AddChunk(chunk);
      for (size_t of = first_; of <= last_; ++of) {
        if (role_[of] == Role::kOfLoss) places[of] = Here();
      }
      for (size_t later = first_; later <= last_; ++later) {
        if (role_[later] == Role::kLater) write(later);
      }
    }
    for (size_t i = 0; i < from_.tensors.size(); ++i) {
      Tensor& tensor = to_.tensors[i];
      if (tensor.held_until) tensor.held_until = places[Index(*tensor.held_until)];
      if (!wide_[Index(liveness_.Root(static_cast<TensorId>(i)))]) continue;
      // The chunks have tensors of their own.
      tensor.kind = TensorKind::kScratch;
      tensor.size = tensor.offset = Bytes();
      tensor.held_until.reset();
    }
    MoveWaits(places, to_);
    MovePositions(places, to_);
    ForgetRecorded(to_);
    to_.Validate();
    return std::move(to_);
  }

 private:
  enum class Role : uint8_t {
    kBeside,  // stays where it is
    kOfLoss,  // computes logits, the loss or gradients of them
    kLater,   // stands between ops of the loss, and needs what they compute
  };

  OpId Here() const { return static_cast<OpId>(to_.ops.size() - 1); }
  TensorId Storage(TensorId id) const { return liveness_.Root(id); }
  bool IsWide(TensorId id) const { return wide_[Index(Storage(id))]; }

  // Returns true for an operator such as aten::ones_like, which does not wait for its input.
  static bool ReadsShapesOnly(const Op& op) { return OperatorOf(op).ends_with("_like"); }

  // Finds the storages that are as large as the logits, and computed from them.
  bool FindLogits() {
    const Op* loss = nullptr;
    for (const Op& op : from_.ops) {
      if (OperatorOf(op) != "aten::_log_softmax" || op.phase != Phase::kForward) continue;
      if (loss != nullptr) return false;
      loss = &op;
    }
    if (loss == nullptr || loss->inputs.empty() || loss->outputs.empty()) return false;
    const Tensor& logits = from_.tensor(loss->outputs[0]);
    if (logits.shape.size() < 2 || logits.shape.back() < 1) return false;
    rows_ = Elements(logits) / logits.shape.back();
    if (rows_ <= from_.batch || rows_ < chunks_) return false;
    wide_[Index(Storage(loss->inputs[0]))] = wide_[Index(Storage(loss->outputs[0]))] = true;
    // A part of the tokens may have no label, such as the last one of each sample.
    const auto is_large = [&](TensorId id) {
      const TensorKind kind = from_.tensor(Storage(id)).kind;
      return (kind == TensorKind::kActivation || kind == TensorKind::kGradient) &&
             2 * Elements(from_.tensor(Storage(id))) >= Elements(logits);
    };
    for (bool found = true; found;) {
      found = false;
      for (const Op& op : from_.ops) {
        if (!Uses(op) || IsCostly(op)) continue;
        for (const auto* operands : {&op.inputs, &op.outputs, &op.scratch}) {
          for (const TensorId id : *operands) {
            if (IsWide(id) || !is_large(id)) continue;
            wide_[Index(Storage(id))] = found = true;
          }
        }
      }
    }
    return true;
  }

  bool Uses(const Op& op) const {
    const auto is_wide = [&](TensorId id) { return IsWide(id); };
    return std::ranges::any_of(op.inputs, is_wide) || std::ranges::any_of(op.outputs, is_wide) ||
           std::ranges::any_of(op.scratch, is_wide);
  }

  // Finds the ops of the loss. Returns false if they are not one product, a loss, and gradients.
  bool FindOps() {
    bool any = false, any_gradient = false;
    for (size_t i = 0; i < role_.size(); ++i) {
      const Op& op = from_.ops[i];
      if (!Uses(op)) continue;
      if (op.phase == Phase::kUpdate) return false;
      if (op.phase == Phase::kForward && IsCostly(op)) {
        if (!rows_of_product_.empty()) return false;
        rows_of_product_.insert(Storage(op.inputs[op.inputs.size() > 2 ? 1 : 0]));
      }
      any_gradient |= op.phase == Phase::kBackward && IsCostly(op);
      if (!any) first_ = i;
      any = true;
      last_ = i;
      role_[i] = Role::kOfLoss;
    }
    return !rows_of_product_.empty() && any_gradient;
  }

  // Finds the ops that have to follow those of the loss. Returns false if one of the loss needs
  // one of them.
  bool FindLaterOps() {
    std::set<TensorId> made;  // by the loss, and by ops that follow it
    for (size_t i = first_; i <= last_; ++i) {
      const Op& op = from_.ops[i];
      const auto is_made = [&](TensorId id) { return made.contains(Storage(id)); };
      const bool reads = !ReadsShapesOnly(op) && std::ranges::any_of(op.inputs, is_made);
      if (role_[i] == Role::kBeside) {
        if (!reads && std::ranges::none_of(op.outputs, is_made)) continue;
        role_[i] = Role::kLater;
        for (const TensorId id : op.outputs) later_.insert(Storage(id));
      } else {
        const auto is_later = [&](TensorId id) { return later_.contains(Storage(id)); };
        if (std::ranges::any_of(op.inputs, is_later)) return false;
      }
      for (const TensorId id : op.outputs) {
        if (!IsWide(id)) made.insert(Storage(id));
      }
    }
    return true;
  }

  std::string NewName(const std::string& name, int64_t chunk) {
    std::string wanted = fmt::format("{}.chunk{}", name, chunk);
    while (!names_.insert(wanted).second) wanted += "'";
    return wanted;
  }

  // Returns the part of a number that belongs to the chunk.
  int64_t Share(int64_t number, int64_t chunk) const {
    const auto until = [&](int64_t end) {
      return static_cast<int64_t>(Int128{number} * (rows_ * end / chunks_) / rows_);
    };
    return until(chunk + 1) - until(chunk);
  }

  // Returns a tensor of the chunk: its part of one that has rows, or another one of the same size.
  TensorId CopyOf(TensorId id, int64_t chunk, bool has_rows) {
    const auto known = copies_.find(id);
    if (known != copies_.end()) return known->second;
    Tensor copy = from_.tensor(id);
    copy.name = NewName(copy.name, chunk);
    copy.request.reset();
    copy.held_until.reset();
    if (copy.kind == TensorKind::kParameterGradient) copy.kind = TensorKind::kGradient;
    if (has_rows) {
      const int64_t elements = Elements(copy), size = copy.size.count();
      const int64_t part = Share(elements, chunk);
      const bool dense = elements > 0 && size % elements == 0;
      copy.size = Bytes(dense ? size / elements * part : Share(size, chunk));
      copy.offset = Bytes(Share(copy.offset.count(), chunk));
      copy.shape = {part};
    }
    if (copy.alias_of) copy.alias_of = CopyOf(*copy.alias_of, chunk, has_rows);
    if (copy.alias_of) {  // rounding
      const Bytes room = to_.tensor(*copy.alias_of).size;
      copy.offset = std::min(copy.offset, room);
      copy.size = std::min(copy.size, room - copy.offset);
    }
    const auto made = static_cast<TensorId>(to_.tensors.size());
    to_.tensors.push_back(std::move(copy));
    copies_.emplace(id, made);
    return made;
  }

  void AddChunk(int64_t chunk) {
    copies_.clear();
    std::vector<std::pair<TensorId, bool>> results;  // of the step, whether it has rows
    for (size_t i = first_; i <= last_; ++i) {
      if (role_[i] != Role::kOfLoss) continue;
      Op op = from_.ops[i];
      op.name = NewName(op.name, chunk);
      // The gradient of what the product reads has its rows; all others are sums over rows.
      const bool reads_rows = std::ranges::any_of(
          op.inputs, [&](TensorId id) { return rows_of_product_.contains(Storage(id)); });
      const bool has_rows = op.phase == Phase::kBackward && IsCostly(op) && !reads_rows;
      results.clear();
      for (TensorId& id : op.outputs) {
        if (!IsWide(id)) results.emplace_back(id, has_rows);
      }
      for (auto* operands : {&op.inputs, &op.outputs, &op.scratch}) {
        const bool written = operands != &op.inputs;
        for (TensorId& id : *operands) {
          if (IsWide(id)) {
            id = CopyOf(id, chunk, true);
          } else if (written && (has_rows || chunk > 0)) {
            id = CopyOf(id, chunk, has_rows);
          } else if (const auto copy = copies_.find(id); copy != copies_.end()) {
            id = copy->second;
          }
        }
      }
      for (Slot& slot : op.slots) {
        slot.flops = Share(slot.flops, chunk);
        slot.traffic = Bytes(Share(slot.traffic.count(), chunk));
      }
      RecordedCost& cost = *op.recorded;
      cost.time = Duration::Picoseconds(Share(cost.time.picoseconds(), chunk));
      cost.workspace = Bytes(Share(cost.workspace.count(), chunk));
      to_.ops.push_back(std::move(op));
      for (const auto& [result, in_rows] : results) AddResult(result, chunk, in_rows, i);
    }
  }

  // Adds what a chunk computed to the tensor of the step, or copies it to its place there.
  void AddResult(TensorId result, int64_t chunk, bool has_rows, size_t near) {
    if (!has_rows && chunk == 0) return;
    const TensorId part = copies_.at(result);
    const Tensor& tensor = to_.tensor(part);
    Op op = NewOp(NewName(from_.tensor(result).name + (has_rows ? ".copy_" : ".add_"), chunk),
                  has_rows ? "aten::copy_" : "aten::add_", from_.ops[near],
                  TransferTime((has_rows ? 2 : 3) * tensor.size, device_.dram));
    op.inputs = {part};
    if (chunk > 0) op.inputs.push_back(result);
    op.outputs = {result};
    to_.ops.push_back(std::move(op));
  }

  const Trace& from_;
  const Device& device_;
  const int64_t chunks_;
  const Liveness liveness_;
  std::vector<bool> wide_;              // by storage: as large as the logits
  std::vector<Role> role_;              // by op
  int64_t rows_ = 0;                    // of the logits
  std::set<TensorId> rows_of_product_;  // the storage whose rows the product reads
  std::set<TensorId> later_;            // storages that ops of `Role::kLater` write
  size_t first_ = 0, last_ = 0;         // ops of the loss
  Trace to_;
  std::set<std::string> names_;
  std::map<TensorId, TensorId> copies_;  // the tensors of the chunk that is being added
};

}  // namespace

std::optional<Trace> WithLossInChunks(const Trace& trace, const Device& device, int64_t chunks) {
  return ChunkedLoss(trace, device, chunks).Build();
}

}  // namespace spillway::lab
