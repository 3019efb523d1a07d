// Handles the tensors that autograd saves in the steps of a plan.
//
// It takes the headers of Python. PyTorch calls `Pack` and `Unpack` with Python's lock held.

#include <slots.h>  // of this folder
#include <weights.h>

#include <torch/csrc/Exceptions.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/graph_task.h>
#include <torch/csrc/autograd/python_variable.h>
#include <torch/csrc/utils/pybind.h>

#include <algorithm>
#include <functional>
#include <limits>
#include <map>
#include <memory>
#include <mutex>
#include <numeric>
#include <optional>
#include <span>
#include <stdexcept>
#include <string>
#include <string_view>
#include <thread>
#include <tuple>
#include <typeinfo>
#include <utility>
#include <vector>

namespace spillway_torch {
namespace {

Numbers NumbersOf(const std::vector<size_t>& given) { return {given.begin(), given.end()}; }

constexpr const char* kPacked = "spillway_torch.Packed";

// Returns a number that sequences of saved tensors share if equal functions made and saved them,
// in any sizes: the one of the tensors before, and the next tensor.
uint64_t Mix(uint64_t before, const Tensor& tensor) {
  const torch::autograd::Node* made = torch::autograd::impl::grad_fn_unsafe(tensor);
  const uint64_t values[] = {static_cast<uint64_t>(tensor.dim()),
                             static_cast<uint64_t>(tensor.scalar_type()),
                             made == nullptr ? tensor.is_leaf() : typeid(*made).hash_code()};
  for (const uint64_t value : values) {
    before = (before ^ value) * 0x9e3779b97f4a7c15 + 1;
    before ^= before >> 29;
  }
  return before;
}

// Returns whether the node of autograd that runs reads a tensor for the last time: nodes that
// PyTorch generates, as the names of their types tell, read what they saved once.
//
// The node itself would keep the tensor until its gradients are summed to the sizes of its inputs.
bool IsReadForGood() {
  const std::shared_ptr<torch::autograd::Node> node = torch::autograd::get_current_node();
  return node != nullptr && !torch::autograd::get_current_graph_task_keep_graph() &&
         std::string_view(typeid(*node).name()).find("8autograd9generated") !=
             std::string_view::npos;
}

// Waits for a lock without Python's lock, which the owner may need.
class Locked {
 public:
  explicit Locked(std::recursive_mutex& mutex) : mutex_(mutex) {
    if (mutex.try_lock()) return;
    const py::gil_scoped_release others;
    mutex.lock();
  }
  ~Locked() { mutex_.unlock(); }
  Locked(const Locked&) = delete;

 private:
  std::recursive_mutex& mutex_;
};

// One step under a plan.
class Run {
 public:
  // deviate: takes the reason why the plan is not carried out for a storage.
  // verify: whether what is recomputed is compared with what was saved.
  Run(std::shared_ptr<const Table> table, py::object deviate, bool verify)
      : table_(std::move(table)),
        watch_(table_->ops, *table_->device, [this](size_t storage) { BeforeWrite(storage); }),
        verify_(verify),
        slots_(table_->recipes.size()),
        deviate_(std::move(deviate)) {
    table_->device->Begin();
    Resume();
  }

  PyObject* Pack(const Tensor& tensor) {
    auto packed = std::make_unique<Packed>(Save(tensor));
    PyObject* capsule = PyCapsule_New(packed.get(), kPacked, [](PyObject* object) {
      delete static_cast<Packed*>(PyCapsule_GetPointer(object, kPacked));
    });
    if (capsule != nullptr) packed.release();
    return capsule;
  }

  Tensor Unpack(Packed& packed) {
    const Locked lock(mutex_);
    if (!packed.counted || torch::autograd::get_current_graph_task_id() == -1)
      return Read(packed);  // or the program looks at a node's tensor
    if (!at::GradMode::is_enabled()) read = true;
    differs_ |= packs < table_->packed;
    const size_t at = BeginPosition(/*saves=*/false);
    const bool known = at < table_->positions.size();
    differs_ |= !known || table_->positions[at].reads.value_or(packed.at) != packed.at;
    Tensor tensor = Read(packed, known ? table_->positions[at].passed : Numbers());
    if (known) CarryOut(at, Move::When::kLast);
    most_ = kUnknown;  // what came back took memory
    MakeRoom(Headroom(at));
    if (packed.slot != nullptr && packed.slot->recipe == nullptr) Prefetch(*packed.slot, at);
    if (IsReadForGood()) {
      packed.slot = nullptr;
      packed.tensor.reset();
    }
    return tensor;
  }

  // Starts and ends to watch the operators that this thread runs, within the planned part.
  void Resume() {
    if (!table_->ops.all.empty() && open_) watch_.Begin();
  }
  void Pause() { watch_.End(); }

  // Ends the part of the step whose tensors are planned.
  void End() {
    Pause();
    if (open_) {
      std::erase_if(Left(), [](const auto& slot) { return slot.expired(); });
      Left().insert(Left().end(), others_.begin(), others_.end());
    }
    open_ = false;
    deviate_ = py::object();
  }

  // Returns whether a backward may still read what it saved.
  bool Waits() const { return held_.use_count() > 1; }

  size_t Alive() const {
    const auto alive = [](const auto& slot) { return !slot.expired(); };
    return std::ranges::count_if(slots_, alive) + std::ranges::count_if(others_, alive);
  }

  int64_t packs = 0;
  uint64_t signature = 0;  // what `Mix` makes of all saved tensors
  bool read = false;       // a backward has begun, and makes no graph for another one
  int64_t recomputed = 0;  // operators that ran again
  int64_t guarded = 0;     // bytes that went to the host because memory was short
  int64_t verified = 0;    // storages whose recomputed bits were compared with the saved ones

 private:
  // Carries out the moves of the next position that come first, and returns its number.
  size_t BeginPosition(bool saves) {
    const size_t at = position_++;
    watch_.Reach(position_);
    if (at >= table_->positions.size()) return at;
    CarryOut(at, Move::When::kFirst);
    if (saves_) CarryOut(at - 1, Move::When::kOnceFree);
    if (!saves) CarryOut(at, Move::When::kOnceFree);
    saves_ = saves;
    return at;
  }

  void CarryOut(size_t at, Move::When when) {
    const Move* is_short = nullptr;
    for (const auto& [move, recipe] : table_->positions[at].moves) {
      if (move->when != when || move == is_short) continue;
      const auto slot = slots_[recipe].lock();
      if (slot != nullptr && !move->carry_out(*slot)) is_short = move;
    }
  }

  // ---- Saving ----

  Packed Plain(const Tensor& tensor, bool counted) {
    return {IsOrdinary(tensor) ? Detached(tensor) : tensor.detach(), VersionOf(tensor), counted};
  }

  Packed Save(const Tensor& tensor) {
    const bool backward = torch::autograd::get_current_graph_task_id() != -1;
    if (!open_) return Plain(tensor, false);
    if (backward) return SaveInBackward(tensor);
    if (std::this_thread::get_id() != thread_) return Plain(tensor, false);
    const Unwatched unwatched;
    const size_t at = BeginPosition(/*saves=*/true);
    if (++packs > table_->packed && table_->packed > 0) Deviate("it saves more tensors");
    signature = Mix(signature, tensor);
    differs_ |= at < table_->positions.size() && table_->positions[at].signature != 0 &&
                table_->positions[at].signature != signature;
    Packed packed = SaveAt(tensor, at);
    packed.held = held_;
    packed.at = at;
    MakeRoom(Headroom(at));
    return packed;
  }

  // Saves what a backward saves that makes a graph. It is no part of the plan, but can go to the
  // host where memory is short.
  Packed SaveInBackward(const Tensor& tensor) {
    const Locked lock(mutex_);
    const bool ours = IsOrdinary(tensor) && !(tensor.requires_grad() && tensor.is_leaf());
    Packed packed = ours ? Guarded(tensor) : Plain(tensor, false);
    packed.counted = false;
    most_ = kUnknown;
    MakeRoom(0);
    return packed;
  }

  Packed SaveAt(const Tensor& tensor, size_t at) {
    if (!IsOrdinary(tensor) || tensor.requires_grad() && tensor.is_leaf())
      return Plain(tensor, true);
    std::optional<size_t> recipe;
    if (at < table_->positions.size()) recipe = table_->positions[at].recipe;
    if (recipe) {
      const std::string lack = LackOf(*recipe, tensor);
      if (lack.empty()) return {{}, 0, true, SlotOf(*recipe, tensor), PlaceOf(tensor)};
      Deviate(lack);
    }
    return Guarded(tensor);
  }

  void Deviate(const std::string& reason) {
    if (deviated_) return;
    deviated_ = true;
    deviate_(reason);
  }

  // Returns what the plan lacks to treat a storage in this step; empty if it lacks nothing.
  std::string LackOf(size_t index, const Tensor& tensor) {
    const Recipe& recipe = table_->recipes[index];
    if (!table_->device->IsCurrent())
      return "the step runs on another stream than the one on which it began";
    if (const auto slot = slots_[index].lock()) {
      if (!slot->IsIn(tensor))
        return "a tensor is saved again that lay in another storage in the recorded step";
      if (!slot->WasSavedAs(tensor))
        return "a tensor was changed between two times that it was saved";
      return {};
    }
    watch_.Note(recipe.storage, tensor, recipe.writes);
    if (!recipe.chain) return {};
    for (const size_t source : recipe.sources) {
      if (slots_[source].expired()) return "a tensor from which another one is recomputed is gone";
    }
    return watch_.Lacks(*recipe.chain, tensor);
  }

  std::shared_ptr<Slot> SlotOf(size_t index, const Tensor& tensor) {
    if (const auto slot = slots_[index].lock()) return slot;
    const Recipe& recipe = table_->recipes[index];
    const auto slot = std::make_shared<Slot>(table_, &recipe, tensor);
    if (!recipe.chain) {
      slot->Put(Detached(tensor));
      if (slot->size >= table_->smallest) Add(slot);
    }
    slots_[index] = slot;
    if (recipe.offload) {
      const Guards guards;
      slot->CopyOut();
    }
    for (const size_t source : recipe.sources) slot->sources.push_back(slots_[source].lock());
    if (verify_ && recipe.chain) {
      slot->place = PlaceOf(tensor);
      slot->original = OnHost(tensor);
    }
    return slot;
  }

  // Recomputes what is recomputed from a storage, before an operator of forward changes it.
  void BeforeWrite(size_t storage) {
    for (const auto& weak : slots_) {
      const auto slot = weak.lock();
      if (slot == nullptr || slot->tensor.defined() || slot->recipe == nullptr) continue;
      for (const auto& source : slot->sources) {
        if (source->recipe->storage != storage) continue;
        const py::gil_scoped_acquire python;
        const Locked lock(mutex_);
        Fetch(*slot);
        slot->stays = true;
        break;
      }
    }
  }

  // ---- Memory that runs short ----

  // Returns the bytes that operators take until the next position. Where the step differs from the
  // recorded one, its positions are near to those of the same operators there.
  int64_t Headroom(size_t at) const {
    const std::vector<Position>& positions = table_->positions;
    const size_t near = deviated_ || differs_ ? kNear : 0;
    int64_t most = 0;
    for (size_t i = at - std::min(at, near); i <= at + near && i < positions.size(); ++i) {
      most = std::max(most, positions[i].headroom);
    }
    return most;
  }

  // Keeps a tensor that the plan does not move in a slot, from which it can go to the host.
  Packed Guarded(const Tensor& tensor) {
    const auto size = static_cast<int64_t>(tensor.storage().nbytes());
    if (size < table_->smallest || tensor.device() != table_->device->Place())
      return Plain(tensor, true);
    const auto [known, added] =
        places_.emplace(tensor.storage().unsafeGetStorageImpl(), others_.size());
    if (!added) {
      const auto slot = others_[known->second].lock();
      if (slot != nullptr && slot->IsIn(tensor))
        return slot->WasSavedAs(tensor) ? Packed{{}, 0, true, slot, PlaceOf(tensor)}
                                        : Plain(tensor, true);
      known->second = others_.size();
    }
    const auto slot = std::make_shared<Slot>(table_, nullptr, tensor);
    slot->Put(Detached(tensor));
    Add(slot);
    return {{}, 0, true, slot, PlaceOf(tensor)};
  }

  void Add(const std::shared_ptr<Slot>& slot) {
    slot->number = others_.size();
    others_.push_back(slot);
  }

  // Gives storages to the host, the earliest ones first, which backward reads last, until so many
  // bytes of the budget are free. Those of earlier steps follow, and what was recomputed and can be
  // once more. It asks for the bytes in use only where there may be too few.
  void MakeRoom(int64_t bytes) {
    most_ += bytes;
    if (most_ <= table_->budget) return;
    most_ = table_->device->InUse() + bytes;
    int64_t over = most_ - table_->budget;
    for (size_t i = first_; i < others_.size() && over > 0; ++i) {
      const auto slot = others_[i].lock();
      if (slot != nullptr && slot->tensor.defined()) {
        over -= GivenUp(*slot);
      } else if (i == first_) {
        ++first_;
      }
    }
    for (size_t i = 0; i < Left().size() && over > 0; ++i) {
      const auto slot = Left()[i].lock();
      if (slot != nullptr && slot->tensor.defined() &&
          slot->tensor.device() == table_->device->Place())
        over -= GivenUp(*slot);
    }
    for (size_t i = 0; i < slots_.size() && over > 0 && !recomputing_; ++i) {
      const auto slot = slots_[i].lock();
      if (slot != nullptr && slot->recipe->chain) over -= GivenUp(*slot);
    }
  }

  // Gives up the tensor of a slot, which goes to the host unless it is recomputed or there already.
  // Returns the bytes that this frees.
  int64_t GivenUp(Slot& slot) {
    if (!slot.tensor.defined() || IsHeld(slot)) return 0;
    const Guards guards;
    const Unwatched unwatched;
    const bool planned = slot.recipe != nullptr && (slot.recipe->chain || slot.recipe->offload);
    if (!planned && !slot.host.defined()) slot.CopyOut();
    slot.GiveUp();
    if (slot.tensor.defined()) return 0;  // it was changed
    if (!planned) guarded += slot.size;
    return slot.size;
  }

  // Returns what was saved in steps that have ended, and is not recomputed: a backward may still
  // read it. REQUIRES: the caller has Python's lock.
  static std::vector<std::weak_ptr<Slot>>& Left() {
    static std::vector<std::weak_ptr<Slot>> left;
    return left;
  }

  // Returns whether the program holds a slot's tensor, or an operator is going to read it.
  static bool IsHeld(const Slot& slot) {
    const auto held = [](auto& impl, size_t count) {
      return count > 1 + (impl.pyobj_slot()->load_pyobj() != nullptr);
    };
    const Tensor& tensor = slot.tensor;
    return held(*tensor.unsafeGetTensorImpl(), tensor.use_count()) ||
           held(*tensor.storage().unsafeGetStorageImpl(), tensor.storage().use_count());
  }

  // Starts to bring back what backward reads next, as far as there is memory for it.
  void Prefetch(const Slot& read, size_t at) {
    size_t i = read.number;
    int64_t free = table_->budget - table_->device->InUse() - Headroom(at);
    for (size_t started = 0; i-- > 0 && started < kAhead;) {
      const auto slot = others_[i].lock();
      if (slot == nullptr || slot->tensor.defined() || !slot->host.defined()) continue;
      if (slot->recipe != nullptr && slot->recipe->offload) continue;  // the plan brings it back
      free -= slot->size;
      if (free < 0) return;
      const Guards guards;
      slot->BringBack();
      first_ = std::min(first_, i);
      ++started;
    }
  }

  // ---- Reading ----

  Tensor Read(const Packed& packed, const Numbers& passed = {}) {
    if (packed.slot == nullptr) {
      if (!packed.tensor.defined())
        throw std::runtime_error("backward has read this tensor already");
      if (VersionOf(packed.tensor) != packed.version)
        table_->changed(packed.tensor, packed.version);
      return packed.tensor;
    }
    const Tensor base = Fetch(*packed.slot, passed);
    Tensor view = View(base, *packed.place);
    if (!view.is_same(base))
      view.unsafeGetTensorImpl()->set_version_counter(
          base.unsafeGetTensorImpl()->version_counter());
    return view;
  }

  // Returns the tensor of a slot, in the order of the operators. It comes back, or is recomputed,
  // if it is absent. What is made on the way stays, except the recipes of `passed`.
  Tensor Fetch(Slot& wanted, const Numbers& passed = {}) {
    wanted.CheckUnchanged();
    if (wanted.tensor.defined() && wanted.arrived == nullptr) return wanted.tensor;
    const Guards guards;
    const Unwatched unwatched;
    const auto again = Absent(wanted);
    recomputing_ = true;
    for (size_t i = 0; i < again.size(); ++i) {
      Recompute(*again[i]);
      for (const size_t recipe : passed) {
        const auto slot = slots_[recipe].lock();
        const auto reads = [&](const Slot* later) {
          return std::ranges::find(later->sources, slot) != later->sources.end();
        };
        if (slot != nullptr && slot.get() != &wanted &&
            std::none_of(again.begin() + i + 1, again.end(), reads))
          slot->GiveUp();
      }
    }
    recomputing_ = false;
    return Bring(wanted);
  }

  // Returns the slots that have to be recomputed for one, with itself, each behind its sources.
  std::vector<Slot*> Absent(Slot& wanted) {
    std::vector<Slot*> found;
    const auto add = [&](Slot& slot) {
      if (!slot.tensor.defined() && !slot.host.defined() &&
          std::ranges::find(found, &slot) == found.end())
        found.push_back(&slot);
    };
    add(wanted);
    for (size_t i = 0; i < found.size(); ++i) {
      for (const auto& source : found[i]->sources) add(*source);
    }
    std::ranges::sort(found, {}, &Slot::recipe);  // sources are saved before
    return found;
  }

  // Returns the tensor of a slot that is on the device, or on the host.
  Tensor Bring(Slot& slot) {
    if (!slot.tensor.defined()) {
      most_ = kUnknown;
      MakeRoom(slot.size);
      slot.BringBack();
      first_ = std::min(first_, slot.number);
    }
    slot.CheckUnchanged();
    slot.Settle(Wait::kFetch);
    return slot.tensor;
  }

  void Recompute(Slot& slot) {
    const Chain& chain = *slot.recipe->chain;
    std::vector<Tensor> sources;
    sources.reserve(slot.sources.size());
    for (const auto& source : slot.sources) sources.push_back(Bring(*source));
    most_ = kUnknown;
    MakeRoom(slot.size + slot.recipe->temporary);
    Tensor made;
    {
      const py::gil_scoped_release others;
      made = watch_.Recompute(chain, sources);
    }
    slot.Put(made);
    recomputed += static_cast<int64_t>(chain.ops.size());
    if (slot.original.defined()) Verify(slot);
  }

  // Returns the bytes of a tensor, without what else is in its storage, as a copy on the host.
  static Tensor OnHost(const Tensor& tensor) {
    const Guards guards;
    const Unwatched unwatched;
    const Tensor dense = Detached(tensor).to(at::kCPU, false, true, at::MemoryFormat::Contiguous);
    return dense.reshape({-1}).view(at::kByte);
  }

  // Throws std::runtime_error if a tensor was recomputed with other bits than it was saved with.
  void Verify(const Slot& slot) {
    ++verified;
    const Tensor made = OnHost(View(slot.tensor, slot.place));
    const std::span one{made.const_data_ptr<uint8_t>(), static_cast<size_t>(made.numel())};
    const uint8_t* other = slot.original.const_data_ptr<uint8_t>();
    const int64_t differ = std::inner_product(one.begin(), one.end(), other, int64_t{0},
                                              std::plus<>(), std::not_equal_to<>());
    if (differ == 0) return;
    throw std::runtime_error(
        table_->ops.all[slot.recipe->chain->ops.back()].name +
        " made other bits than in forward (" + std::to_string(differ) + " of " +
        std::to_string(one.size()) +
        " bytes differ): either the operators that lead to it add in no fixed order, or the step "
        "changes a tensor in a way that PyTorch does not see");
  }

  static constexpr int64_t kUnknown = std::numeric_limits<int64_t>::max() / 2;
  static constexpr size_t kAhead = 2;  // storages that come back before backward reads them
  static constexpr size_t kNear = 64;  // positions

  const std::shared_ptr<const Table> table_;
  Watch watch_;
  const bool verify_;
  const std::thread::id thread_ = std::this_thread::get_id();
  const std::shared_ptr<void> held_ = std::make_shared<char>();  // by what a backward may read
  bool open_ = true;
  bool deviated_ = false;
  bool recomputing_ = false;  // what is recomputed is needed for others
  bool differs_ = false;  // other functions made, saved or read tensors than in the recorded step
  size_t position_ = 0;
  bool saves_ = false;       // the last position is one at which autograd saved a tensor
  size_t first_ = 0;         // of `others_` that may be here
  int64_t most_ = kUnknown;  // bytes that may be in use
  std::recursive_mutex mutex_;
  std::vector<std::weak_ptr<Slot>> slots_;   // by recipe
  std::vector<std::weak_ptr<Slot>> others_;  // of storages that are not recomputed, in order
  ska::flat_hash_map<c10::StorageImpl*, size_t> places_;  // theirs, if they are the same
  py::object deviate_;
};

// ---- Python ----

constexpr const char* kRun = "spillway_torch.Run";

Run& RunOf(PyObject* self) { return *static_cast<Run*>(PyCapsule_GetPointer(self, kRun)); }

PyObject* PackHook(PyObject* self, PyObject* tensor) {
  HANDLE_TH_ERRORS
  return RunOf(self).Pack(THPVariable_Unpack(tensor));
  END_HANDLE_TH_ERRORS
}

PyObject* UnpackHook(PyObject* self, PyObject* object) {
  HANDLE_TH_ERRORS
  void* packed = PyCapsule_GetPointer(object, kPacked);
  if (packed == nullptr) return nullptr;
  return THPVariable_Wrap(RunOf(self).Unpack(*static_cast<Packed*>(packed)));
  END_HANDLE_TH_ERRORS
}

PyMethodDef pack_hook = {"pack", PackHook, METH_O, nullptr};
PyMethodDef unpack_hook = {"unpack", UnpackHook, METH_O, nullptr};

// Returns the functions that autograd calls. They keep the step alive.
py::tuple HooksOf(const py::object& run) {
  const py::capsule self(&run.cast<Run&>(), kRun, [](PyObject* capsule) {
    Py_DECREF(static_cast<PyObject*>(PyCapsule_GetContext(capsule)));
  });
  PyCapsule_SetContext(self.ptr(), py::object(run).release().ptr());
  return py::make_tuple(
      py::reinterpret_steal<py::object>(PyCFunction_New(&pack_hook, self.ptr())),
      py::reinterpret_steal<py::object>(PyCFunction_New(&unpack_hook, self.ptr())));
}

std::shared_ptr<Table> MakeTable(int64_t packed, std::shared_ptr<Device> device, py::object changed,
                                 std::shared_ptr<Host> host, int64_t budget, int64_t smallest,
                                 size_t positions, size_t storages, bool compiled) {
  Table table{packed,
              std::move(device),
              std::move(changed),
              budget,
              smallest,
              {compiled,
               storages,
               {},
               std::vector<Numbers>(positions + 1),
               std::vector<Numbers>(positions + 1)},
              {},
              std::vector<Position>(positions),
              std::move(host)};
  return std::make_shared<Table>(std::move(table));
}

using Read = std::tuple<int64_t, size_t, int64_t>;  // an `Operand`

// Adds an operator that steps keep the arguments of. Autograd may save what it reads from the
// position `start` on.
void AddOp(Table& table, const std::string& name, const std::string& overload, std::string shown,
           size_t start, size_t position, size_t turn, const std::vector<Read>& reads,
           std::vector<std::pair<size_t, size_t>> made, bool random) {
  auto& dispatcher = c10::Dispatcher::singleton();
  PlannedOp op{dispatcher.findSchemaOrThrow(name.c_str(), overload.c_str()),
               dispatcher.findSchema({name + "_", overload}),
               std::move(shown),
               position,
               turn,
               {},
               std::move(made),
               random};
  for (const auto& [kind, storage, writes] : reads) {
    op.reads.push_back({Operand::Kind{kind}, storage, writes});
  }
  table.ops.at.at(position).push_back(table.ops.all.size());
  for (size_t at = start; at <= position; ++at) {
    table.ops.coming.at(at).push_back(table.ops.all.size());
  }
  table.ops.all.push_back(std::move(op));
}

// Adds a storage that the plan moves. It is recomputed if there are operators: `ops`, after each of
// which nobody reads the storages of `freed` any more, and which take `temporary` bytes besides it.
void AddRecipe(Table& table, bool offload, size_t storage, int64_t writes,
               const std::vector<size_t>& sources, std::vector<size_t> ops,
               const std::vector<std::vector<size_t>>& freed, int64_t temporary) {
  Recipe recipe{offload, std::nullopt, storage, writes, NumbersOf(sources), temporary};
  if (!ops.empty()) {
    recipe.chain = Chain{std::move(ops), {}, {}, storage, writes};
    for (const size_t source : sources) {
      recipe.chain->sources.push_back(table.recipes.at(source).storage);
    }
    for (const auto& storages : freed) recipe.chain->freed.push_back(NumbersOf(storages));
  }
  table.recipes.push_back(std::move(recipe));
}

}  // namespace

PYBIND11_MODULE(spillway_steps, module) {
  DefineDevices(module);
  DefineWeights(module);
  py::class_<Host, std::shared_ptr<Host>>(module, "Host")
      .def(py::init<py::object>())
      .def("reserve", &Host::Reserve)
      .def("close", &Host::Close);
  py::class_<Table, std::shared_ptr<Table>>(module, "Table")
      .def(py::init(&MakeTable))
      .def("add_op", &AddOp)
      .def("add", &AddRecipe)
      .def("enter",
           [](Table& table, size_t at, size_t recipe) { table.positions.at(at).recipe = recipe; })
      .def("move",
           [](Table& table, size_t at, const std::map<std::string, std::vector<size_t>>& moves,
              const std::vector<size_t>& passed, int64_t headroom, uint64_t signature,
              std::optional<size_t> reads) {
             Position& position = table.positions.at(at);
             for (const auto& [name, recipes] : moves) {
               const auto move = std::ranges::find(kMoves, name, &Move::name);
               if (move == std::end(kMoves)) throw std::invalid_argument("no move '" + name + "'");
               for (const size_t recipe : recipes) position.moves.emplace_back(move, recipe);
             }
             position.passed = NumbersOf(passed);
             position.headroom = headroom;
             position.signature = signature;
             position.reads = reads;
           });
  module.def("mix", &Mix);
  py::class_<Run>(module, "Run")
      .def(py::init<std::shared_ptr<Table>, py::object, bool>())
      .def_property_readonly("hooks", &HooksOf)
      .def("pause", &Run::Pause)
      .def("resume", &Run::Resume)
      .def("end", &Run::End)
      .def("waits", &Run::Waits)
      .def("alive", &Run::Alive)
      .def_readonly("packs", &Run::packs)
      .def_readonly("signature", &Run::signature)
      .def_readonly("read", &Run::read)
      .def_readonly("recomputed", &Run::recomputed)
      .def_readonly("guarded", &Run::guarded)
      .def_readonly("verified", &Run::verified);
}

}  // namespace spillway_torch
