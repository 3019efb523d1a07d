// Handles the tensors that autograd saves in the steps of a plan, as slots.py does in Python.
//
// It takes the headers of Python. PyTorch calls `Pack` and `Unpack` with Python's lock held.

#include <devices.h>  // of this folder
#include <step_library.h>

#include <c10/util/SmallVector.h>
#include <torch/csrc/Exceptions.h>
#include <torch/csrc/autograd/graph_task.h>
#include <torch/csrc/autograd/python_variable.h>
#include <torch/csrc/utils/pybind.h>

#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <sstream>
#include <string>
#include <thread>
#include <utility>
#include <vector>

namespace spillway_torch {
namespace {

using at::Tensor;

// ---- Plans ----

// An operator that draws random numbers, of a chain.
struct Draw {
  size_t at;
  int64_t mark;  // position after it; the numbers were drawn since the position before
  std::optional<int64_t> drawn;
};

using Indices = c10::SmallVector<size_t, 2>;

Indices IndicesOf(const std::vector<size_t>& given) { return {given.begin(), given.end()}; }

// How all steps treat a storage; see slots.py.
struct Recipe {
  bool offload;
  const Program* chain;            // none unless it is recomputed
  std::vector<std::string> names;  // of the operators of the chain
  bool shared;
  Tensor place;  // as it is saved first
  Tensor bytes;  // a placeholder of all its bytes
  Tensor region;
  Indices sources;     // recipes
  Indices parameters;  // among those of the step
  std::vector<Draw> draws;
};

// A tensor that autograd saves, as recorded.
struct Entry {
  size_t recipe;
  Tensor place;
  bool first;
  Saved kind;
};

// A position: the tensor that autograd saves there, and the recipes that the plan moves there.
struct Position {
  std::optional<Entry> entry;
  Indices releases;  // recipes
  Indices prefetches;
  Indices drops;
  bool mark = false;
};

// Functions and types of Python.
struct Python {
  py::object error;    // SpillwayError
  py::object changed;  // raises the error about a tensor that was changed in place
  py::object owners;   // of the hashes and of the chains
};

struct Table {
  int64_t packed;  // tensors, in the recorded step
  Hashes* hashes;
  std::shared_ptr<Device> device;
  Python python;
  std::vector<Recipe> recipes;
  std::vector<Position> positions;
  bool mark_start = false;
};

// ---- Steps ----

struct Parameter {
  Tensor tensor;
  uint32_t version;
  Tensor detached;
};

uint32_t VersionOf(const Tensor& tensor) {
  return tensor.unsafeGetTensorImpl()->version_counter().current_version();
}

[[noreturn]] void Raise(const py::object& type, const std::string& message) {
  PyErr_SetString(type.ptr(), message.c_str());
  throw py::error_already_set();
}

// A storage in one step. It lives as long as autograd holds a tensor in it, or one that is
// recomputed from it.
class Slot {
 public:
  // The tensor that is saved has this version.
  Slot(std::shared_ptr<const Table> table, const Recipe& recipe, uint32_t version)
      : recipe(recipe), version(version), table_(std::move(table)) {}
  Slot(const Slot&) = delete;

  // Memory that a copy still writes must not go to others. So all copies from the host are over, in
  // the order of the program's operators, when the next step overwrites the memory of the host.
  ~Slot() {
    if (arrived == nullptr) return;
    const py::error_scope kept;
    try {
      Settle(Wait::kEnd);
    } catch (py::error_already_set& error) {
      error.discard_as_unraisable("a slot");
    } catch (const std::exception&) {  // the device is gone
    }
  }

  void Put(const Tensor& made) {
    tensor = made;
    version = VersionOf(made);
  }

  bool IsUnchanged() const { return VersionOf(tensor) == version; }

  // Drops the tensor if it can come back, once copies from and to it are done.
  //
  // A tensor that was changed stays, so that reading it fails, as it does without a plan.
  void GiveUp() {
    if (!tensor.defined() || !IsUnchanged() || !(recipe.offload || recipe.chain != nullptr)) return;
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
    host = recipe.region;
    left = table_->device->CopyOut(host, View(tensor, recipe.bytes));
  }

  // Starts the copy from the host, once operators have waited for the one to it: `GiveUp` did.
  void BringBack() {
    const Tensor bytes = table_->device->Empty(recipe.bytes.numel());
    arrived = table_->device->CopyIn(bytes, host);
    Put(View(bytes, recipe.place));
  }

  const Recipe& recipe;
  Tensor tensor;
  uint32_t version;
  std::optional<c10::weak_intrusive_ptr<c10::StorageImpl>> storage;  // unless hashes tell it
  Tensor host;                                                       // its copy
  Event left;                                                        // the copy to the host is done
  Event arrived;  // the copy from the host is done, and operators have not waited for it
  c10::SmallVector<std::shared_ptr<Slot>, 2> sources;

 private:
  std::shared_ptr<const Table> table_;
};

// The object that autograd holds in the place of a tensor.
struct Packed {
  Tensor tensor;  // undefined if it has a slot
  uint32_t version = 0;
  bool counted = true;
  std::shared_ptr<Slot> slot = nullptr;
  const Tensor* place = nullptr;  // of the tensor in the slot
};

constexpr const char* kPacked = "spillway_torch.Packed";

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

// Returns the tensor without its graph.
Tensor Keep(const Tensor& tensor) {
  static constexpr c10::DispatchKeySet kWrapped(
      {c10::DispatchKey::Python, c10::DispatchKey::Functionalize,
       c10::DispatchKey::FuncTorchBatched, c10::DispatchKey::FuncTorchGradWrapper,
       c10::DispatchKey::BatchedNestedTensor});
  return tensor.key_set().has_any(kWrapped) ? tensor.detach() : Detached(tensor);
}

// One step under a plan.
class Run {
 public:
  // known: whether the hashes are; otherwise Python compares the step.
  // compare: returns how a saved tensor, at a position, differs from the recorded one; None if it
  // does not.
  // deviate: takes the reason.
  Run(std::shared_ptr<const Table> table, bool known, std::vector<std::optional<Tensor>> parameters,
      py::object compare, py::object deviate)
      : table_(std::move(table)),
        known_(known),
        given_(std::move(parameters)),
        noted_(given_.size()),
        slots_(table_->recipes.size()),
        compare_(std::move(compare)),
        deviate_(std::move(deviate)) {
    table_->device->Begin();
    if (table_->mark_start) marks_[-1] = table_->device->Random();
  }

  PyObject* Pack(const Tensor& tensor) {
    auto packed = std::make_unique<Packed>(Save(tensor));
    PyObject* capsule = PyCapsule_New(packed.get(), kPacked, [](PyObject* object) {
      delete static_cast<Packed*>(PyCapsule_GetPointer(object, kPacked));
    });
    if (capsule != nullptr) packed.release();
    return capsule;
  }

  Tensor Unpack(const Packed& packed) {
    const Locked lock(mutex_);
    if (!packed.counted || torch::autograd::get_current_graph_task_id() == -1)
      return Read(packed);  // or the program looks at a node's tensor
    const size_t at = BeginPosition();
    Tensor tensor = Read(packed);
    if (at < table_->positions.size()) {
      for (const size_t recipe : table_->positions[at].drops) {
        if (const auto slot = slots_[recipe].lock()) slot->GiveUp();
      }
    }
    return tensor;
  }

  // Ends the part of the step whose tensors are planned.
  void End() {
    open_ = false;
    compare_ = deviate_ = py::object();
    given_.clear();
  }

  // Drops the storages that can come back.
  void GiveUp() {
    for (const auto& weak : slots_) {
      if (const auto slot = weak.lock()) slot->GiveUp();
    }
  }

  // Returns whether it writes memory of the host, or a backward may still read it.
  bool HoldsHost() const {
    for (const auto& weak : slots_) {
      const auto slot = weak.lock();
      if (slot != nullptr && slot->host.defined()) return true;
    }
    return open_;
  }

  size_t Alive() const {
    return std::count_if(slots_.begin(), slots_.end(), [](const auto& s) { return !s.expired(); });
  }

  bool deviated = false;
  int64_t packs = 0;
  int64_t recomputed = 0;  // operators that ran again

 private:
  // Carries out the releases and prefetches of the next position, and returns its number.
  size_t BeginPosition() {
    const size_t at = position_++;
    if (deviated || at >= table_->positions.size()) return at;
    const Position& position = table_->positions[at];
    for (const size_t recipe : position.releases) {
      if (const auto slot = slots_[recipe].lock()) slot->GiveUp();
    }
    for (const size_t recipe : position.prefetches) {
      const auto slot = slots_[recipe].lock();
      if (slot != nullptr && !slot->tensor.defined() && slot->host.defined()) {
        const Guards guards;
        slot->BringBack();
      }
    }
    return at;
  }

  // ---- Saving ----

  static Packed Plain(const Tensor& tensor, bool counted) {
    return {Keep(tensor), VersionOf(tensor), counted};
  }

  Packed Save(const Tensor& tensor) {
    if (torch::autograd::get_current_graph_task_id() != -1 ||
        std::this_thread::get_id() != thread_ || !open_)
      return Plain(tensor, false);  // backward saves it, or another thread
    const size_t at = BeginPosition();
    ++packs;
    const bool planned = at < table_->positions.size() && !deviated;
    if (planned && table_->positions[at].mark) marks_[at] = table_->device->Random();
    const Entry* entry =
        planned && table_->positions[at].entry ? &*table_->positions[at].entry : nullptr;
    if (entry == nullptr) {
      if (packs > table_->packed) Deviate("it saves more tensors");
      return Plain(tensor, true);
    }
    const std::optional<std::string> difference = Difference(*entry, tensor, at);
    if (difference) {
      Deviate(*difference);
      return Plain(tensor, true);
    }
    const auto slot = entry->first ? OpenSlot(entry->recipe, tensor) : slots_[entry->recipe].lock();
    return {{}, 0, true, slot, &entry->place};
  }

  void Deviate(const std::string& reason) {
    if (deviated) return;
    deviated = true;
    deviate_(reason);
  }

  // Returns how a saved tensor differs from the recorded one, or what the plan lacks to treat it.
  std::optional<std::string> Difference(const Entry& entry, const Tensor& tensor, size_t at) {
    if (!known_ || !IsAsLearned(*table_->hashes, tensor, at, entry.kind)) {
      if (!known_) LearnSaved(*table_->hashes, tensor, at, entry.kind);
      auto difference = compare_(tensor, at).cast<std::optional<std::string>>();
      if (difference) return difference;
    }
    const Recipe& recipe = table_->recipes[entry.recipe];
    if (!table_->device->IsCurrent())
      return "the step runs on another stream than the one on which it began";
    if (!entry.first) {
      const auto slot = slots_[entry.recipe].lock();
      if (slot == nullptr ||
          (!known_ && (!slot->storage || slot->storage->_unsafe_get_target() !=
                                             tensor.storage().unsafeGetStorageImpl())))
        return "a tensor is saved again that lay in another storage in the recorded step";
      if (VersionOf(tensor) != slot->version)
        return "a tensor was changed between two times that it was saved";
      return std::nullopt;
    }
    for (const size_t source : recipe.sources) {
      if (slots_[source].expired()) return "a tensor from which another one is recomputed is gone";
    }
    for (const size_t parameter : recipe.parameters) {
      if (!Note(parameter)) return "a parameter from which a tensor is recomputed is gone";
    }
    for (const Draw& draw : recipe.draws) {
      const auto drawn = table_->device->Drawn(marks_.at(draw.mark - 1), marks_.at(draw.mark));
      if (drawn && drawn != draw.drawn) return "other random numbers are drawn";
    }
    return std::nullopt;
  }

  // Notes a parameter as it is now, from which tensors are recomputed; returns false if it is gone.
  bool Note(size_t index) {
    const std::optional<Tensor>& given = given_.at(index);
    if (!noted_[index] && given) noted_[index] = {*given, VersionOf(*given), Detached(*given)};
    return noted_[index].has_value();
  }

  std::shared_ptr<Slot> OpenSlot(size_t index, const Tensor& tensor) {
    const Recipe& recipe = table_->recipes[index];
    const auto slot = std::make_shared<Slot>(table_, recipe, VersionOf(tensor));
    if (recipe.chain == nullptr) slot->Put(Detached(tensor));
    slots_[index] = slot;
    if (recipe.shared && !known_) slot->storage = tensor.storage().getWeakStorageImpl();
    if (recipe.offload) {
      const Guards guards;
      const Unwatched unwatched;
      slot->CopyOut();
    }
    for (const size_t source : recipe.sources) slot->sources.push_back(slots_[source].lock());
    return slot;
  }

  // ---- Reading ----

  Tensor Read(const Packed& packed) {
    if (packed.slot == nullptr) {
      if (VersionOf(packed.tensor) != packed.version)
        table_->python.changed(packed.tensor, packed.version);
      return packed.tensor;
    }
    const Tensor base = Fetch(*packed.slot);
    Tensor view = View(base, *packed.place);
    if (!view.is_same(base))
      view.unsafeGetTensorImpl()->set_version_counter(
          base.unsafeGetTensorImpl()->version_counter());
    return view;
  }

  // Returns the tensor of a slot, in the order of the operators. It comes back, or is recomputed,
  // if it is absent.
  Tensor Fetch(Slot& wanted) {
    if (wanted.tensor.defined() && wanted.arrived == nullptr && wanted.IsUnchanged())
      return wanted.tensor;
    const Guards guards;
    c10::SmallVector<Slot*, 8> waiting{&wanted};
    while (!waiting.empty()) {
      Slot& slot = *waiting.back();
      if (!slot.tensor.defined() && slot.host.defined()) slot.BringBack();
      if (!slot.tensor.defined()) {
        const size_t before = waiting.size();
        for (const auto& source : slot.sources) {
          if (!source->tensor.defined()) waiting.push_back(source.get());
        }
        if (waiting.size() > before) continue;
        Recompute(slot);
      }
      if (!slot.IsUnchanged())
        table_->python.changed(py::none(), slot.version, VersionOf(slot.tensor));
      slot.Settle(Wait::kFetch);
      waiting.pop_back();
    }
    return wanted.tensor;
  }

  void Recompute(Slot& slot) {
    const Program& chain = *slot.recipe.chain;
    std::vector<Tensor> reads;
    reads.reserve(StoragesOf(chain));
    for (const auto& source : slot.sources) reads.push_back(Fetch(*source));
    for (const size_t index : slot.recipe.parameters) {
      const Parameter& parameter = *noted_[index];
      if (VersionOf(parameter.tensor) != parameter.version) {
        std::ostringstream message;
        message << "a parameter of shape " << parameter.tensor.sizes()
                << " was changed in place between forward and backward, and the plan recomputes a "
                   "tensor from it: change it after backward";
        Raise(py::reinterpret_borrow<py::object>(PyExc_RuntimeError), message.str());
      }
      reads.push_back(parameter.detached);
    }
    ChainRun run(chain, std::move(reads));
    for (const Draw& draw : slot.recipe.draws) {
      Advance(slot, run, draw.at);
      RunDraw(slot, run, draw);
    }
    Advance(slot, run, slot.recipe.names.size());
    slot.Put(run.Value());
    recomputed += slot.recipe.names.size();
  }

  void Advance(const Slot& slot, ChainRun& run, size_t end) {
    bool good = false;
    {
      const py::gil_scoped_release others;
      good = run.Advance(end);
    }
    if (!good)
      Raise(table_->python.error,
            slot.recipe.names.at(run.Done()) +
                " made another layout of its result than in the recorded step");
  }

  // Runs an operator with the random numbers that it drew in forward.
  void RunDraw(const Slot& slot, ChainRun& run, const Draw& draw) {
    Device& device = *table_->device;
    const RandomState before = device.Random();
    device.SetRandom(marks_.at(draw.mark - 1));
    bool same = false;
    try {
      Advance(slot, run, draw.at + 1);
      same = device.IsSameRandom(device.Random(), marks_.at(draw.mark));
    } catch (...) {
      device.SetRandom(before);
      throw;
    }
    device.SetRandom(before);
    if (!same)
      Raise(table_->python.error, slot.recipe.names.at(draw.at) +
                                      ": random numbers were drawn in another order than in the "
                                      "recorded step, and the tensor that it made is gone");
  }

  const std::shared_ptr<const Table> table_;
  const bool known_;
  const std::thread::id thread_ = std::this_thread::get_id();
  bool open_ = true;
  size_t position_ = 0;
  std::recursive_mutex mutex_;
  std::vector<std::optional<Tensor>> given_;  // parameters
  std::vector<std::optional<Parameter>> noted_;
  std::vector<std::weak_ptr<Slot>> slots_;  // by recipe
  std::map<int64_t, RandomState> marks_;
  py::object compare_;
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
  const void* packed = PyCapsule_GetPointer(object, kPacked);
  if (packed == nullptr) return nullptr;
  return THPVariable_Wrap(RunOf(self).Unpack(*static_cast<const Packed*>(packed)));
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

std::shared_ptr<Table> MakeTable(int64_t packed, int64_t hashes, std::shared_ptr<Device> device,
                                 py::object error, py::object changed, py::object owners,
                                 size_t positions) {
  Table table{packed,
              reinterpret_cast<Hashes*>(hashes),
              std::move(device),
              {std::move(error), std::move(changed), std::move(owners)},
              {},
              std::vector<Position>(positions)};
  return std::make_shared<Table>(std::move(table));
}

using DrawIds = std::tuple<size_t, int64_t, std::optional<int64_t>>;

void AddRecipe(Table& table, bool offload, int64_t chain, std::vector<std::string> names,
               bool shared, const Tensor& place, const Tensor& bytes,
               const std::optional<Tensor>& region, const std::vector<size_t>& sources,
               const std::vector<size_t>& parameters, const std::vector<DrawIds>& draws) {
  Recipe recipe{offload,
                reinterpret_cast<const Program*>(chain),
                std::move(names),
                shared,
                place,
                bytes,
                region.value_or(Tensor()),
                IndicesOf(sources),
                IndicesOf(parameters),
                {}};
  for (const auto& [at, mark, drawn] : draws) recipe.draws.push_back({at, mark, drawn});
  table.recipes.push_back(std::move(recipe));
}

}  // namespace

PYBIND11_MODULE(spillway_steps, module) {
  DefineDevices(module);
  py::class_<Table, std::shared_ptr<Table>>(module, "Table")
      .def(py::init(&MakeTable))
      .def("add", &AddRecipe)
      .def("enter",
           [](Table& table, size_t at, size_t recipe, const Tensor& place, bool first,
              int64_t kind) {
             table.positions.at(at).entry = Entry{recipe, place, first, Saved{kind}};
           })
      .def("move",
           [](Table& table, size_t at, const std::vector<size_t>& releases,
              const std::vector<size_t>& prefetches, const std::vector<size_t>& drops) {
             Position& position = table.positions.at(at);
             position.releases = IndicesOf(releases);
             position.prefetches = IndicesOf(prefetches);
             position.drops = IndicesOf(drops);
           })
      .def("mark",
           [](Table& table, int64_t at) {
             if (at < 0) {
               table.mark_start = true;
             } else {
               table.positions.at(at).mark = true;
             }
           })
      .def("close", [](Table& table) {
        for (Recipe& recipe : table.recipes) recipe.region.reset();
      });
  py::class_<Run>(module, "Run")
      .def(py::init<std::shared_ptr<Table>, bool, std::vector<std::optional<Tensor>>, py::object,
                    py::object>())
      .def_property_readonly("hooks", &HooksOf)
      .def("end", &Run::End)
      .def("give_up", &Run::GiveUp)
      .def("holds_host", &Run::HoldsHost)
      .def("alive", &Run::Alive)
      .def_readwrite("deviated", &Run::deviated)
      .def_readonly("packs", &Run::packs)
      .def_readonly("recomputed", &Run::recomputed);
}

}  // namespace spillway_torch
