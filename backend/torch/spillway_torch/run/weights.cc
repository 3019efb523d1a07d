#include <weights.h>  // of this folder

#include <torch/library.h>

#include <algorithm>
#include <atomic>
#include <mutex>
#include <utility>

namespace spillway_torch {
namespace {

constexpr c10::DispatchKey kMark = c10::DispatchKey::Fake;

// The key set of a tensor, which PyTorch lets its subclasses change.
struct Keys : c10::TensorImpl {
  static c10::DispatchKeySet& Of(const Tensor& tensor) {
    return tensor.unsafeGetTensorImpl()->*(&Keys::key_set_);
  }
};

struct Known {
  std::weak_ptr<Weights> owner;
  size_t number;
  c10::weak_intrusive_ptr<c10::StorageImpl> storage;  // nothing else gets its address
};

// All weights of this process that operators tell.
struct Registry {
  std::mutex mutex;
  ska::flat_hash_map<c10::StorageImpl*, Known> known;
  std::atomic<size_t> size = 0;  // of `known`
};

Registry& All() {
  static Registry all;
  return all;
}

c10::StorageImpl* StorageOf(const Tensor& tensor) {
  return tensor.storage().unsafeGetStorageImpl();
}

// The weights of one owner that an operator is given.
struct Used {
  std::shared_ptr<Weights> owner;
  std::vector<size_t> numbers, written;
};

void AddUsed(const Tensor& tensor, bool writes, std::vector<Used>& used) {
  if (!tensor.defined() || !tensor.key_set().has(kMark) || !tensor.has_storage()) return;
  std::shared_ptr<Weights> owner;
  size_t number = 0;
  {
    Registry& all = All();
    const std::lock_guard lock(all.mutex);
    const auto found = all.known.find(StorageOf(tensor));
    if (found == all.known.end()) return;
    owner = found->second.owner.lock();
    number = found->second.number;
  }
  if (owner == nullptr) return;
  auto of = std::ranges::find(used, owner, &Used::owner);
  if (of == used.end()) of = used.insert(of, Used{std::move(owner), {}, {}});
  for (auto* numbers : {&of->numbers, &of->written}) {
    if ((numbers == &of->numbers || writes) &&
        std::ranges::find(*numbers, number) == numbers->end())
      numbers->push_back(number);
  }
}

void AddUsed(const c10::IValue& argument, bool writes, std::vector<Used>& used) {
  if (argument.isTensor()) {
    AddUsed(argument.toTensor(), writes, used);
  } else if (argument.isList()) {
    for (const c10::IValue& item : argument.toListRef()) AddUsed(item, writes, used);
  }
}

}  // namespace

void Weights::Mark(const Tensor& tensor) {
  c10::DispatchKeySet& keys = Keys::Of(tensor);
  keys = keys.add(kMark);
}

void Weights::Add(const Tensor& tensor, size_t number) {
  Registry& all = All();
  const std::lock_guard lock(all.mutex);
  all.known.insert_or_assign(
      StorageOf(tensor), Known{weak_from_this(), number, tensor.storage().getWeakStorageImpl()});
  all.size = all.known.size();
}

void Weights::Remove(uintptr_t storage) {
  Registry& all = All();
  const std::lock_guard lock(all.mutex);
  all.known.erase(reinterpret_cast<c10::StorageImpl*>(storage));
  all.size = all.known.size();
}

void Weights::Close() {
  Registry& all = All();
  const std::lock_guard lock(all.mutex);
  for (auto at = all.known.begin(); at != all.known.end();) {
    const auto owner = at->second.owner.lock();
    at = owner == nullptr || owner.get() == this ? all.known.erase(at) : std::next(at);
  }
  all.size = all.known.size();
}

Tensor Weights::GiveUp(const Tensor& tensor) {
  c10::StorageImpl* storage = StorageOf(tensor);
  c10::Storage memory(c10::Storage::use_byte_size_t(), storage->nbytes(),
                      storage->set_data_ptr(c10::DataPtr(nullptr, storage->device())),
                      /*allocator=*/nullptr, /*resizable=*/false);
  const auto size = static_cast<int64_t>(memory.nbytes());
  Tensor taken = at::detail::make_tensor<c10::TensorImpl>(
      std::move(memory),
      c10::DispatchKeySet(c10::computeDispatchKey(c10::kByte, c10::kStrided, storage->device())),
      caffe2::TypeMeta::Make<uint8_t>());
  taken.unsafeGetTensorImpl()->set_sizes_contiguous({size});
  return taken;
}

void Weights::Put(const Tensor& tensor, const Tensor& memory) {
  TORCH_CHECK(memory.storage().nbytes() >= tensor.storage().nbytes() &&
              memory.device() == tensor.device());
  auto held = std::make_unique<c10::Storage>(memory.storage());
  void* data = held->mutable_data();
  StorageOf(tensor)->set_data_ptr_noswap(c10::DataPtr(
      data, held.release(), [](void* other) { delete static_cast<c10::Storage*>(other); },
      memory.device()));
}

size_t Weights::Holders(const Tensor& tensor) {
  const bool shown = StorageOf(tensor)->pyobj_slot()->load_pyobj() != nullptr;
  return tensor.storage().use_count() - shown;
}

void WithWeights(const c10::FunctionSchema& schema, const torch::jit::Stack& stack,
                 const std::function<void()>& run) {
  if (All().size == 0) return run();
  std::vector<Used> used;
  const auto& arguments = schema.arguments();
  for (size_t i = 0; i < arguments.size(); ++i) {
    const c10::AliasInfo* alias = arguments[i].alias_info();
    AddUsed(torch::jit::peek(stack, i, arguments.size()), alias != nullptr && alias->isWrite(),
            used);
  }
  if (used.empty()) return run();
  size_t begun = 0;
  const auto end = [&](bool failed) {
    const py::gil_scoped_acquire lock;
    while (begun > 0) {
      const Used& of = used[--begun];
      try {
        of.owner->end_(of.numbers, of.written);
      } catch (py::error_already_set& error) {
        if (!failed) throw;
        error.discard_as_unraisable("a weight");
      }
    }
  };
  try {
    {
      const py::gil_scoped_acquire lock;
      for (; begun < used.size(); ++begun) used[begun].owner->begin_(used[begun].numbers);
    }
    run();
  } catch (...) {
    end(true);
    throw;
  }
  end(false);
}

void DefineWeights(py::module_& module) {
  py::class_<Weights, std::shared_ptr<Weights>>(module, "Weights")
      .def(py::init<py::object, py::object>())
      .def("add", &Weights::Add)
      .def("remove", &Weights::Remove)
      .def("close", &Weights::Close)
      .def_static("mark", &Weights::Mark)
      .def_static("give_up", &Weights::GiveUp)
      .def_static("put", &Weights::Put)
      .def_static("holders", &Weights::Holders);
}

}  // namespace spillway_torch
