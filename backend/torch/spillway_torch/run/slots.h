// The storages that a plan moves, in one step: where each of them is, and how it leaves and comes
// back. It takes the headers of Python.

#pragma once

#include <step_library.h>  // of this folder

#include <torch/csrc/autograd/python_variable.h>
#include <torch/csrc/utils/pybind.h>

#include <algorithm>
#include <memory>
#include <optional>
#include <string_view>
#include <utility>
#include <vector>

namespace spillway_torch {

// How all steps treat a storage.
struct Recipe {
  bool offload;
  std::optional<Chain> chain;  // none unless it is recomputed
  size_t storage;
  int64_t writes;     // operators that have written to it when autograd saves it
  Numbers sources;    // recipes of the storages from which it is recomputed
  int64_t temporary;  // bytes that exist besides it while it is recomputed, in the recorded step
};

struct Move;

// A position: the storage of the tensor that autograd saves there, and those that the plan moves.
struct Position {
  std::optional<size_t> recipe;
  std::vector<std::pair<const Move*, size_t>> moves;  // with recipes
  Numbers passed;        // recipes of storages that are given up as soon as others are recomputed
  int64_t headroom = 0;  // bytes that operators take until the next position, in the recorded step
  uint64_t signature = 0;  // what `Mix` makes of the saved tensors until then; 0 if it is not known
  std::optional<size_t> reads;  // where the tensor was saved that backward reads there
};

// Memory of the host for the copies of steps. It begins anew when no step needs it any more.
class Host {
 public:
  explicit Host(py::object make) : make_(std::move(make)) {}

  Tensor Take(int64_t size) {
    ++taken_;
    const int64_t needed = (size + kPage - 1) / kPage * kPage;
    while (piece_ < pieces_.size() && end_ + needed > pieces_[piece_].numel()) {
      ++piece_;
      end_ = 0;
    }
    if (piece_ == pieces_.size()) Grow(std::max(needed, kPiece));
    end_ += needed;
    return pieces_[piece_].narrow(0, end_ - needed, size);
  }

  void GiveBack() {
    if (--taken_ == 0) piece_ = end_ = 0;
  }

  // Makes a piece of so many bytes unless there is one.
  void Reserve(int64_t size) {
    const auto is_enough = [&](const Tensor& piece) { return piece.numel() >= size; };
    if (std::ranges::none_of(pieces_, is_enough)) Grow(size);
  }

  void Close() {
    pieces_.clear();
    piece_ = end_ = 0;
  }

 private:
  void Grow(int64_t size) {
    const py::gil_scoped_acquire lock;
    pieces_.push_back(make_(size).cast<Tensor>());
  }

  static constexpr int64_t kPage = 4096;
  static constexpr int64_t kPiece = int64_t{64} << 20;  // bytes that are made at a time

  py::object make_;
  std::vector<Tensor> pieces_;
  size_t piece_ = 0;
  int64_t end_ = 0;  // bytes of the piece that are taken
  int64_t taken_ = 0;
};

struct Table {
  int64_t packed;  // tensors, in the recorded step
  std::shared_ptr<Device> device;
  py::object changed;  // raises the error about a tensor that was changed in place
  int64_t budget;      // bytes; the most that there are if the device does not count them
  int64_t smallest;    // bytes of a storage that goes to the host where memory is short
  Ops ops;
  std::vector<Recipe> recipes;
  std::vector<Position> positions;
  std::shared_ptr<Host> host;
};

// A storage in one step. It lives as long as autograd holds a tensor in it, or one that is
// recomputed from it.
class Slot {
 public:
  // recipe: none for a storage that the plan does not move.
  Slot(std::shared_ptr<const Table> table, const Recipe* recipe, const Tensor& saved)
      : recipe(recipe),
        storage(saved.storage().getWeakStorageImpl()),
        size(static_cast<int64_t>(saved.storage().nbytes())),
        table_(std::move(table)),
        counter_(saved.unsafeGetTensorImpl()->version_counter()),
        saved_(VersionOf(saved)) {}
  Slot(const Slot&) = delete;

  // Memory that a copy still writes must not go to others. So all copies from the host are over, in
  // the order of the program's operators, when a later step overwrites the memory of the host.
  ~Slot() {
    if (arrived != nullptr) {
      const py::error_scope kept;
      try {
        Settle(Wait::kEnd);
      } catch (py::error_already_set& error) {
        error.discard_as_unraisable("a slot");
      } catch (const std::exception&) {  // the device is gone
      }
    }
    if (host.defined()) table_->host->GiveBack();
  }

  bool IsIn(const Tensor& saved) const {
    return !storage.expired() &&
           storage._unsafe_get_target() == saved.storage().unsafeGetStorageImpl();
  }

  void Put(const Tensor& made) {
    tensor = made;
    version_ = VersionOf(made);
  }

  // Returns whether nothing has changed the storage since autograd saved it.
  bool IsUnchanged() const {
    return Saved() == saved_ && (!tensor.defined() || VersionOf(tensor) == version_);
  }

  void CheckUnchanged() const {
    const py::object& changed = table_->changed;
    if (Saved() != saved_) changed(py::none(), saved_, Saved());
    if (tensor.defined() && VersionOf(tensor) != version_)
      changed(py::none(), version_, VersionOf(tensor));
  }

  bool WasSavedAs(const Tensor& again) const { return VersionOf(again) == saved_; }

  // Drops the tensor if it can come back, once copies from and to it are done.
  //
  // A tensor that was changed stays, so that reading it fails, as it does without a plan.
  void GiveUp() {
    if (!tensor.defined() || stays || !IsUnchanged()) return;
    if (!host.defined() && (recipe == nullptr || !recipe->chain)) return;
    Settle(Wait::kGiveUp);
    if (left != nullptr) table_->device->WaitFor(left, Wait::kGiveUp);
    tensor.reset();
  }

  // Makes operators wait for a copy that is still writing to the tensor.
  void Settle(Wait why) {
    if (arrived == nullptr) return;
    table_->device->WaitFor(arrived, why);
    arrived.reset();
  }

  void CopyOut() {
    host = table_->host->Take(size);
    left = table_->device->CopyOut(host, View(tensor, Bytes()));
  }

  // Starts the copy from the host, once operators have waited for the one to it: `GiveUp` did.
  void BringBack() {
    const Tensor bytes = table_->device->Empty(size);
    arrived = table_->device->CopyIn(bytes, host);
    Put(bytes);
  }

  // Brings the tensor back if it is absent and has a copy. Returns false if there is no memory for
  // it.
  bool Prefetch() {
    if (tensor.defined() || !host.defined()) return true;
    if (table_->device->InUse() + size > table_->budget) return false;
    const Guards guards;
    BringBack();
    return true;
  }

  const Recipe* const recipe;
  const c10::weak_intrusive_ptr<c10::StorageImpl> storage;  // in which it was saved
  const int64_t size;                                       // bytes
  Tensor tensor;                                            // in it, or in one that came back
  Tensor host;                                              // its copy
  Event left;                                               // the copy to the host is done
  Event arrived;  // the copy from the host is done, and operators have not waited for it
  bool stays = false;
  size_t number = 0;  // among those that are not recomputed
  c10::SmallVector<std::shared_ptr<Slot>, 2> sources;
  Tensor original;  // on the host, of a tensor that is verified
  Place place;      // where it lies in the storage

 private:
  uint32_t Saved() const { return counter_.enabled() ? counter_.current_version() : 0; }
  Place Bytes() const { return {{size}, {1}, 0, caffe2::TypeMeta::Make<uint8_t>()}; }

  std::shared_ptr<const Table> table_;
  const c10::VariableVersion counter_;  // of the tensor that was saved
  const uint32_t saved_;
  uint32_t version_ = 0;  // of `tensor`
};

// A kind of moves, at positions that the plan says. Its function returns false where memory is
// short for it, and then for the rest of its kind at that position.
struct Move {
  // Moves of kOnceFree wait for the next position where autograd saves a tensor: the function that
  // the program calls still holds its own ones.
  enum class When { kFirst, kOnceFree, kLast };
  std::string_view name;  // in files of plans
  When when;
  bool (*carry_out)(Slot& slot);
};

inline constexpr Move kMoves[] = {
    {"release", Move::When::kFirst, [](Slot& slot) { return slot.GiveUp(), true; }},
    {"prefetches", Move::When::kOnceFree, [](Slot& slot) { return slot.Prefetch(); }},
    {"drops", Move::When::kLast, [](Slot& slot) { return slot.GiveUp(), true; }},
};

// The object that autograd holds in the place of a tensor.
struct Packed {
  Tensor tensor;  // undefined if it has a slot
  uint32_t version = 0;
  bool counted = true;
  std::shared_ptr<Slot> slot = nullptr;
  std::optional<Place> place = {};  // of the tensor in the slot
  std::shared_ptr<void> held = {};  // by as many as a backward may still read
  size_t at = 0;                    // the position at which it was saved
};

}  // namespace spillway_torch
