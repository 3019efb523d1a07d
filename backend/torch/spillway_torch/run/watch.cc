// Watches the operators of a step, and runs them again.
//
// A fallback of the dispatcher sees each operator that the thread runs, below autograd and above
// all devices. Operators of the plan are known again by their place between saved tensors and by
// the storages that they read; what else they are given may differ from step to step, and is kept.

#include <step_library.h>  // of this folder
#include <weights.h>

#include <ATen/Context.h>
#include <ATen/native/Resize.h>
#include <ATen/ops/zeros.h>
#include <torch/csrc/autograd/graph_task.h>
#include <torch/library.h>

#include <algorithm>
#include <sstream>
#include <stdexcept>

namespace spillway_torch {

using c10::IValue;

// ---- Tensors ----

Place PlaceOf(const Tensor& tensor) {
  const auto sizes = tensor.sizes(), strides = tensor.strides();
  return {{sizes.begin(), sizes.end()},
          {strides.begin(), strides.end()},
          tensor.storage_offset(),
          tensor.dtype()};
}

namespace {

bool LiesAt(const Tensor& tensor, const Place& place) {
  return tensor.sizes() == at::IntArrayRef(place.sizes) &&
         tensor.strides() == at::IntArrayRef(place.strides) &&
         tensor.storage_offset() == place.offset && tensor.dtype() == place.dtype;
}

}  // namespace

Tensor View(const Tensor& base, const Place& place) {
  if (LiesAt(base, place)) return base;
  Tensor view = at::detail::make_tensor<c10::TensorImpl>(
      c10::TensorImpl::VIEW, c10::Storage(base.storage()), base.key_set(), place.dtype);
  at::native::setStrided(view, at::IntArrayRef(place.sizes), at::IntArrayRef(place.strides),
                         place.offset);
  return view;
}

Tensor Detached(const Tensor& tensor) {
  const auto* impl = tensor.unsafeGetTensorImpl();
  return Tensor(impl->shallow_copy_and_detach(impl->version_counter(), false));
}

uint32_t VersionOf(const Tensor& tensor) {
  const auto& counter = tensor.unsafeGetTensorImpl()->version_counter();
  return counter.enabled() ? counter.current_version() : 0;  // else it is one of inference
}

bool IsOrdinary(const Tensor& tensor) {
  static constexpr c10::DispatchKeySet kOthers(
      {c10::DispatchKey::Python, c10::DispatchKey::Functionalize,
       c10::DispatchKey::FuncTorchBatched, c10::DispatchKey::FuncTorchGradWrapper,
       c10::DispatchKey::BatchedNestedTensor, c10::DispatchKey::Conjugate,
       c10::DispatchKey::Negative, c10::DispatchKey::ZeroTensor});
  const auto* impl = tensor.unsafeGetTensorImpl();
  return tensor.defined() && !tensor.key_set().has_any(kOthers) && impl->layout() == at::kStrided &&
         tensor.has_storage() && !impl->has_symbolic_sizes_strides();
}

// ---- Settings ----

Settings Settings::Now() {
  const at::Context& context = at::globalContext();
  const auto precision = [&](at::Float32Backend backend, at::Float32Op op) {
    return static_cast<int>(context.float32Precision(backend, op));
  };
  Settings now;
  now.values_ = {context.deterministicAlgorithms(),
                 context.deterministicAlgorithmsWarnOnly(),
                 context.deterministicCuDNN(),
                 context.benchmarkCuDNN(),
                 context.userEnabledCuDNN(),
                 context.userEnabledMkldnn(),
                 precision(at::Float32Backend::CUDA, at::Float32Op::MATMUL),
                 precision(at::Float32Backend::CUDA, at::Float32Op::CONV),
                 precision(at::Float32Backend::MKLDNN, at::Float32Op::MATMUL),
                 static_cast<int>(context.allowFP16ReductionCuBLAS()),
                 static_cast<int>(context.allowBF16ReductionCuBLAS())};
  return now;
}

void Settings::Apply() const {
  at::Context& context = at::globalContext();
  context.setDeterministicAlgorithms(values_[0] != 0, values_[1] != 0);
  context.setDeterministicCuDNN(values_[2] != 0);
  context.setBenchmarkCuDNN(values_[3] != 0);
  context.setUserEnabledCuDNN(values_[4] != 0);
  context.setUserEnabledMkldnn(values_[5] != 0);
  const auto set = [&](at::Float32Backend backend, at::Float32Op op, int precision) {
    context.setFloat32Precision(backend, op, static_cast<at::Float32Precision>(precision));
  };
  set(at::Float32Backend::CUDA, at::Float32Op::MATMUL, values_[6]);
  set(at::Float32Backend::CUDA, at::Float32Op::CONV, values_[7]);
  set(at::Float32Backend::MKLDNN, at::Float32Op::MATMUL, values_[8]);
  const auto is = [](int value, at::CuBLASReductionOption option) {
    return static_cast<at::CuBLASReductionOption>(value) == option;
  };
  constexpr auto kWithSplits = at::CuBLASReductionOption::AllowReducedPrecisionWithSplitK;
  constexpr auto kNone = at::CuBLASReductionOption::DisallowReducedPrecisionDisallowSplitK;
  context.setAllowFP16ReductionCuBLAS(is(values_[9], kWithSplits), !is(values_[9], kNone));
  context.setAllowBF16ReductionCuBLAS(is(values_[10], kWithSplits), !is(values_[10], kNone));
}

namespace {

// While it lives, operators run under settings.
class Under {
 public:
  explicit Under(const Settings& settings) : before_(Settings::Now()) {
    if (settings == before_) return;
    settings.Apply();
    changed_ = true;
  }
  ~Under() {
    if (changed_) before_.Apply();
  }
  Under(const Under&) = delete;

 private:
  const Settings before_;
  bool changed_ = false;
};

thread_local Watch* watching = nullptr;  // the step of this thread

// Returns whether it is a tensor of the program; PyTorch makes others of numbers.
bool IsGiven(const Tensor& tensor) {
  return tensor.defined() && !tensor.unsafeGetTensorImpl()->is_wrapped_number();
}

// Calls `take(tensor)` for each tensor of an argument.
template <typename Take>
void ForTensors(const IValue& argument, Take take) {
  if (argument.isTensor()) {
    if (IsGiven(argument.toTensor())) take(argument.toTensor());
  } else if (argument.isList()) {
    for (const IValue& item : argument.toListRef()) ForTensors(item, take);
  }
}

bool Writes(const c10::Argument& argument) {
  return argument.alias_info() != nullptr && argument.alias_info()->isWrite();
}

}  // namespace

// ---- Watching ----

Watch::Watch(const Ops& ops, Device& device, std::function<void(size_t)> on_write)
    : ops_(ops),
      device_(device),
      on_write_(std::move(on_write)),
      ran_(ops.all.size()),
      known_(ops.storages) {}

Watch::~Watch() {
  End();
  for (const auto& [storage, number] : numbers_) c10::raw::weak_intrusive_ptr::decref(storage);
}

void Watch::Begin() {
  watching = this;
  Attend();
}

void Watch::Reach(size_t position) {
  position_ = position;
  if (ops_.compiled && watching == this) Attend();
}

// Sees operators from now on, if any is to be seen.
void Watch::Attend() {
  const auto is_to_come = [&](size_t number) { return !ran_[number].seen; };
  const bool awake = !ops_.compiled || (position_ < ops_.coming.size() &&
                                        std::ranges::any_of(ops_.coming[position_], is_to_come));
  c10::impl::tls_set_dispatch_key_included(c10::DispatchKey::Fake, awake);
}

void Watch::End() {
  if (watching != this) return;
  watching = nullptr;
  c10::impl::tls_set_dispatch_key_included(c10::DispatchKey::Fake, false);
}

void Watch::Bind(size_t storage, c10::StorageImpl* impl, int64_t writes) {
  const auto [found, added] = numbers_.emplace(impl, storage);
  if (added) {
    c10::raw::weak_intrusive_ptr::incref(impl);  // nothing else gets its address
  } else {
    found->second = storage;
  }
  known_[storage] = {impl, writes};
}

bool Watch::Fits(const PlannedOp& planned, const Tensors& tensors) const {
  if (tensors.size() != planned.reads.size()) return false;
  for (size_t i = 0; i < tensors.size(); ++i) {
    const Operand& operand = planned.reads[i];
    if (operand.kind == Operand::Kind::kScratch) continue;
    if (!IsOrdinary(*tensors[i])) return false;
    auto* impl = tensors[i]->storage().unsafeGetStorageImpl();
    if (!operand.IsInStep()) {
      if (numbers_.find(impl) != numbers_.end()) return false;
      continue;
    }
    const Known& known = known_[operand.storage];
    if (known.storage == nullptr && operand.kind == Operand::Kind::kSaved) continue;
    if (known.storage != impl || known.writes != operand.writes || known.other) return false;
  }
  return true;
}

void Watch::Keep(const PlannedOp& planned, Ran& ran, const torch::jit::Stack& stack, size_t count,
                 const Tensors& tensors) {
  ran.seen = true;
  ran.settings = Settings::Now();
  ran.gradient = at::GradMode::is_enabled();
  for (const IValue& argument : torch::jit::last(stack, count)) {
    if (argument.isTensor() && IsGiven(argument.toTensor())) {
      ran.arguments.push_back({Argument::Kind::kTensor, {}, {}});
    } else if (argument.isTensorList()) {
      const auto& items = argument.toTensorList();
      ran.arguments.push_back({Argument::Kind::kTensors, {}, {}});
      for (const Tensor& item : items) ran.arguments.back().given.push_back(item.defined());
    } else if (argument.isOptionalTensorList()) {
      ran.arguments.push_back({Argument::Kind::kOptionalTensors, {}, {}});
      for (const IValue& item : argument.toListRef()) {
        ran.arguments.back().given.push_back(item.isTensor() && item.toTensor().defined());
      }
    } else {
      ran.arguments.push_back({Argument::Kind::kSame, argument, {}});
    }
  }
  for (size_t i = 0; i < tensors.size(); ++i) {
    const Operand& operand = planned.reads[i];
    const Tensor& tensor = *tensors[i];
    ran.places.push_back(PlaceOf(tensor));
    ran.device = tensor.device();
    ran.held.emplace_back();
    if (operand.kind == Operand::Kind::kHeld) {
      ran.held.back() = {Detached(tensor), VersionOf(tensor)};
    } else if (operand.kind == Operand::Kind::kCopied) {
      const Guards guards;
      ran.held.back() = {tensor.clone(), 0};
    } else if (operand.IsInStep() && known_[operand.storage].storage == nullptr) {
      Bind(operand.storage, tensor.storage().unsafeGetStorageImpl(), operand.writes);
      known_[operand.storage].version = VersionOf(tensor);
    }
  }
}

template <typename Run>
void Watch::Handle(const c10::OperatorHandle& op, torch::jit::Stack& stack, Run run) {
  const auto& schema = op.schema();
  const size_t count = schema.arguments().size();
  const PlannedOp* planned = nullptr;
  Ran* ran = nullptr;
  if (position_ < ops_.at.size()) {
    Tensors tensors;
    bool found = false;
    for (const size_t number : ops_.at[position_]) {
      const PlannedOp& wanted = ops_.all[number];
      if (ran_[number].seen || !(wanted.op == op || wanted.in_place == op)) continue;
      if (!found) {
        for (const IValue& argument : torch::jit::last(stack, count)) {
          ForTensors(argument, [&](const Tensor& tensor) { tensors.push_back(&tensor); });
        }
        found = true;
      }
      if (!Fits(wanted, tensors) || ran_[number].others++ != wanted.turn) continue;
      planned = &wanted;
      ran = &ran_[number];
    }
    if (planned != nullptr) {
      ran->op = op;
      Keep(*planned, *ran, stack, count, tensors);
    }
  }
  Numbers written;
  if (schema.is_mutable() && !numbers_.empty()) {
    for (size_t i = 0; i < count; ++i) {
      if (!Writes(schema.arguments()[i])) continue;
      ForTensors(torch::jit::peek(stack, i, count), [&](const Tensor& tensor) {
        if (!tensor.has_storage()) return;
        const auto at = numbers_.find(tensor.storage().unsafeGetStorageImpl());
        if (at == numbers_.end() || std::ranges::find(written, at->second) != written.end()) return;
        written.push_back(at->second);
      });
    }
    for (const size_t storage : written) on_write_(storage);
  }
  if (planned != nullptr && planned->random) ran->before = device_.Random();
  run();
  for (const size_t storage : written) {
    ++known_[storage].writes;
    known_[storage].version.reset();
  }
  if (planned == nullptr) return;
  if (planned->random) ran->after = device_.Random();
  const bool listed = stack.size() == 1 && stack[0].isTensorList();
  const size_t results = schema.returns().size();
  for (const auto& [index, storage] : planned->made) {
    const Tensor result = listed ? stack[0].toTensorList().get(index)
                                 : torch::jit::peek(stack, index, results).toTensor();
    if (!result.defined() || !IsOrdinary(result)) {
      ran->seen = false;
      return;
    }
    ran->made.push_back(PlaceOf(result));
    Bind(storage, result.storage().unsafeGetStorageImpl(), 0);
  }
  if (ops_.compiled) Attend();
}

void Watch::Note(size_t storage, const Tensor& tensor, int64_t writes) {
  auto* impl = tensor.storage().unsafeGetStorageImpl();
  Known& known = known_[storage];
  if (known.storage == nullptr) {
    Bind(storage, impl, writes);
  } else if (known.storage != impl || known.writes != writes ||
             known.version.value_or(VersionOf(tensor)) != VersionOf(tensor)) {
    known.other = true;
  }
}

std::string Watch::Lacks(const Chain& chain, const Tensor& tensor) const {
  for (const size_t number : chain.ops) {
    if (!ran_[number].seen)
      return ops_.all[number].name + " did not run on the tensors on which it ran then";
  }
  for (const size_t source : chain.sources) {
    if (known_[source].other) return "a tensor from which another one is recomputed is another one";
  }
  const Known& made = known_[chain.target];
  if (made.storage != tensor.storage().unsafeGetStorageImpl() || made.writes != chain.writes ||
      made.other)
    return "a saved tensor is not the one that " + ops_.all[chain.ops.back()].name + " made";
  return {};
}

// ---- Recomputing ----

void Watch::RunAgain(const PlannedOp& planned, const Ran& ran, std::vector<Tensor>& values) {
  size_t next = 0;
  const auto given = [&] {
    const size_t at = next++;
    const Operand& operand = planned.reads[at];
    switch (operand.kind) {
      case Operand::Kind::kScratch:
        return at::zeros(ran.places[at].sizes,
                         at::TensorOptions(ran.places[at].dtype).device(ran.device));
      case Operand::Kind::kHeld:
      case Operand::Kind::kCopied: {
        const Held& held = ran.held[at];
        if (VersionOf(held.tensor) != held.version) {
          std::ostringstream message;
          message << "a parameter or buffer of shape " << held.tensor.sizes()
                  << " was changed in place between forward and backward, and the plan recomputes "
                     "a tensor from it: change it after backward";
          throw std::runtime_error(message.str());
        }
        if (held.tensor.numel() > 0 && held.tensor.storage().nbytes() == 0) {
          std::ostringstream message;
          message << "a parameter of shape " << held.tensor.sizes() << " has no memory when "
                  << planned.name
                  << " runs again, and had some then in "
                     "the recorded step: gather it for the backward that reads what it made";
          throw std::runtime_error(message.str());
        }
        return held.tensor;
      }
      default:
        return View(values[operand.storage], ran.places[at]);
    }
  };
  torch::jit::Stack stack;
  stack.reserve(16);
  for (const Argument& argument : ran.arguments) {
    switch (argument.kind) {
      case Argument::Kind::kSame:
        stack.push_back(argument.value);
        break;
      case Argument::Kind::kTensor:
        stack.emplace_back(given());
        break;
      case Argument::Kind::kTensors: {
        c10::List<Tensor> items;
        for (const bool is : argument.given) items.push_back(is ? given() : Tensor());
        stack.emplace_back(std::move(items));
        break;
      }
      case Argument::Kind::kOptionalTensors: {
        c10::List<std::optional<Tensor>> items;
        for (const bool is : argument.given) {
          items.push_back(is ? std::optional<Tensor>(given()) : std::nullopt);
        }
        stack.emplace_back(std::move(items));
        break;
      }
    }
  }
  const Under settings(ran.settings);
  const at::AutoGradMode gradient(ran.gradient);
  RandomState before;
  if (planned.random) {
    before = device_.Random();
    device_.SetRandom(ran.before);
  }
  try {
    WithWeights(ran.op->schema(), stack, [&] { ran.op->callBoxed(stack); });
  } catch (...) {
    if (planned.random) device_.SetRandom(before);
    throw;
  }
  if (planned.random) {
    const bool same = device_.IsSameRandom(device_.Random(), ran.after);
    device_.SetRandom(before);
    if (!same)
      throw std::runtime_error(planned.name + " drew other random numbers than in forward");
  }
  const bool listed = stack.size() == 1 && stack[0].isTensorList();
  for (size_t i = 0; i < planned.made.size(); ++i) {
    const auto& [index, storage] = planned.made[i];
    Tensor value =
        listed ? stack[0].toTensorList().get(index) : std::move(stack.at(index)).toTensor();
    if (!value.defined() || !LiesAt(value, ran.made[i]))
      throw std::runtime_error(planned.name + " made another layout of its result than in forward");
    values[storage] = std::move(value);
  }
}

Tensor Watch::Recompute(const Chain& chain, const std::vector<Tensor>& sources) {
  std::vector<Tensor> values = std::move(values_);  // an error leaves it empty
  values.resize(known_.size());
  for (size_t i = 0; i < sources.size(); ++i) values[chain.sources[i]] = sources[i];
  for (size_t i = 0; i < chain.ops.size(); ++i) {
    RunAgain(ops_.all[chain.ops[i]], ran_[chain.ops[i]], values);
    for (const size_t storage : chain.freed[i]) values[storage].reset();
  }
  Tensor made = std::move(values[chain.target]);
  values_ = std::move(values);
  return made;
}

// ---- The dispatcher ----

namespace {

// The key is meant for a kind of tensors that PyTorch does not have any more, and lies where it is
// needed: below autograd, and above modes of Python and all devices.
void Observe(const c10::OperatorHandle& op, c10::DispatchKeySet keys, torch::jit::Stack* stack) {
  const c10::impl::ExcludeDispatchKeyGuard below(c10::DispatchKey::Fake);
  const auto run = [&] {
    op.redispatchBoxed(
        keys & c10::DispatchKeySet(c10::DispatchKeySet::FULL_AFTER, c10::DispatchKey::Fake), stack);
  };
  WithWeights(op.schema(), *stack, [&] {
    if (watching == nullptr || torch::autograd::get_current_graph_task_id() != -1) {
      run();
    } else {
      watching->Handle(op, *stack, run);
    }
  });
}

// Returns whether the results of an operator lie in the storages of its arguments, and it writes to
// none: nothing is planned about it.
bool OnlyViews(const c10::FunctionSchema& schema) {
  const auto is_view = [](const c10::Argument& result) {
    return result.alias_info() != nullptr && !result.alias_info()->isWrite();
  };
  return !schema.is_mutable() && !schema.returns().empty() &&
         std::ranges::all_of(schema.returns(), is_view);
}

}  // namespace

TORCH_LIBRARY_IMPL(_, Fake, library) {
  library.fallback(torch::CppFunction::makeFromBoxedFunction<&Observe>());
}

TORCH_LIBRARY_IMPL(aten, Fake, library) {
  auto& dispatcher = c10::Dispatcher::singleton();
  for (const c10::OperatorName& name : dispatcher.getAllOpNames()) {
    const auto op = dispatcher.findSchema(name);
    if (op && name.getNamespace() == "aten" && OnlyViews(op->schema())) {
      const std::string full =
          name.overload_name.empty() ? name.name : name.name + "." + name.overload_name;
      library.impl(full.c_str(), torch::CppFunction::makeFallthrough());
    }
  }
}

}  // namespace spillway_torch
