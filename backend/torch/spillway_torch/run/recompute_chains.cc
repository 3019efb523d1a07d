// Runs recorded operators of PyTorch again without Python: the chains of recompute.py.
//
// It uses no header of Python and none of CUDA, so it is built without them, and serves each build
// of one version of PyTorch.
//
// A chain names storages by placeholders: tensors of the device "meta", in one storage for each
// recorded one. An operator is added by calling it on placeholders between `capture(True)` and
// `capture(False)`: a fallback of the dispatcher, above all other kernels, takes the arguments as
// PyTorch has parsed them, and runs nothing.

#include <step_library.h>  // of this folder

#include <ATen/native/Resize.h>
#include <c10/util/SmallVector.h>
#include <torch/csrc/jit/runtime/custom_operator.h>
#include <torch/library.h>

#include <memory>
#include <optional>
#include <unordered_map>
#include <utility>
#include <vector>

namespace spillway_torch {

using at::Tensor;
using c10::IValue;

namespace {

// A dispatch key whose kernels go before those of all others, and that nothing but tests of PyTorch
// uses.
constexpr c10::DispatchKey kCapture = c10::DispatchKey::TESTING_ONLY_GenericMode;

struct Output {
  size_t index;  // among the results
  size_t slot;
  Tensor place;
};

struct Argument {
  IValue value;  // with placeholders in the place of tensors
  bool same;     // without any
};

struct Step {
  c10::OperatorHandle op;
  c10::SmallVector<Argument, 8> arguments = {};
  c10::SmallVector<size_t, 4> slots = {};  // of the placeholders, in order
  c10::SmallVector<Output, 1> outputs = {};
  c10::SmallVector<size_t, 4> freed = {};
};

}  // namespace

struct Program {
  std::vector<Step> steps = {};
  size_t sources = 0;  // the first slots are theirs
  size_t target = 0;   // the slot of the value
  std::unordered_map<const c10::StorageImpl*, size_t> slots = {};
  std::vector<Tensor> placeholders = {};  // one for each slot

  size_t SlotOf(const Tensor& place) {
    const auto [found, added] =
        slots.try_emplace(place.storage().unsafeGetStorageImpl(), slots.size());
    if (added) placeholders.push_back(place);
    return found->second;
  }
};

namespace {

// Returns an argument of an operator with `replace(placeholder)` in the place of each placeholder.
template <typename Replace>
IValue WithTensors(const IValue& argument, Replace replace) {
  const auto given = [&](const Tensor& t) { return t.defined() && t.is_meta() ? replace(t) : t; };
  if (argument.isTensor()) return given(argument.toTensor());
  if (argument.isTensorList()) {
    c10::List<Tensor> items;
    for (const Tensor& item : argument.toTensorVector()) items.push_back(given(item));
    return items;
  }
  if (argument.isOptionalTensorList()) {
    c10::List<std::optional<Tensor>> items;
    for (const std::optional<Tensor>& item : argument.toOptionalTensorVector()) {
      items.push_back(item ? std::optional<Tensor>(given(*item)) : std::nullopt);
    }
    return items;
  }
  return argument;
}

thread_local Program* capturing = nullptr;

void Capture(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  TORCH_CHECK(capturing != nullptr, "no chain captures operators");
  Step step{op};
  for (IValue& argument : torch::jit::pop(*stack, op.schema().arguments().size())) {
    const size_t before = step.slots.size();
    WithTensors(argument, [&](const Tensor& place) {
      step.slots.push_back(capturing->SlotOf(place));
      return place;
    });
    step.arguments.push_back({std::move(argument), step.slots.size() == before});
  }
  capturing->steps.push_back(std::move(step));
  for (size_t i = 0; i < op.schema().returns().size(); ++i) stack->emplace_back();
}

bool SameLayout(const Tensor& one, const Tensor& other) {
  return one.strides() == other.strides() && one.storage_offset() == other.storage_offset();
}

bool Keep(const Step& step, torch::jit::Stack& stack, std::vector<Tensor>& values) {
  const bool listed = stack.size() == 1 && stack[0].isTensorList();
  for (const Output& output : step.outputs) {
    Tensor value = listed ? stack[0].toTensorList().get(output.index)
                          : std::move(stack.at(output.index)).toTensor();
    if (!value.defined() || !SameLayout(value, output.place)) return false;
    values[output.slot] = std::move(value);
  }
  for (const size_t slot : step.freed) values[slot].reset();
  return true;
}

}  // namespace

Tensor View(const Tensor& base, const Tensor& place) {
  if (SameLayout(base, place) && base.sizes() == place.sizes() && base.dtype() == place.dtype())
    return base;
  Tensor view = at::detail::make_tensor<c10::TensorImpl>(
      c10::TensorImpl::VIEW, c10::Storage(base.storage()), base.key_set(), place.dtype());
  at::native::setStrided(view, place.sizes(), place.strides(), place.storage_offset());
  return view;
}

size_t StoragesOf(const Program& program) { return program.slots.size(); }

ChainRun::ChainRun(const Program& program, std::vector<Tensor> sources)
    : program_(program), values_(std::move(sources)) {
  TORCH_CHECK(values_.size() == program.sources, "the chain reads ", program.sources, " storages");
  values_.resize(program.slots.size());
}

bool ChainRun::Advance(size_t end) {
  stack_.reserve(16);
  for (; done_ < end; ++done_) {
    const Step& step = program_.steps.at(done_);
    stack_.clear();
    size_t next = 0;
    for (const Argument& argument : step.arguments) {
      stack_.push_back(argument.same ? argument.value
                                     : WithTensors(argument.value, [&](const Tensor& place) {
                                         return View(values_[step.slots[next++]], place);
                                       }));
    }
    step.op.callBoxed(stack_);
    if (!Keep(step, stack_, values_)) return false;
  }
  stack_.clear();
  return true;
}

const Tensor& ChainRun::Value() const { return values_[program_.target]; }

namespace {

// Operators that make a value again.
class Chain : public torch::CustomClassHolder {
 public:
  // `sources` are placeholders of the storages that exist before, `target` is one of the value.
  Chain(const std::vector<Tensor>& sources, const Tensor& target) {
    for (const Tensor& source : sources) program_.SlotOf(source);
    program_.sources = program_.slots.size();
    program_.target = program_.SlotOf(target);
  }

  // Starts or ends to add the operators that this thread calls, which then do not run.
  void SetCapture(bool on) {
    capturing = on ? &program_ : nullptr;
    c10::impl::tls_set_dispatch_key_included(kCapture, on);
  }

  // Completes the last operator: its new results by index, their placeholders, and those of
  // storages that are not read again.
  void Complete(const std::vector<int64_t>& indices, const std::vector<Tensor>& outputs,
                const std::vector<Tensor>& freed) {
    Step& step = program_.steps.at(program_.steps.size() - 1);
    for (size_t i = 0; i < indices.size(); ++i) {
      step.outputs.push_back(
          {static_cast<size_t>(indices[i]), program_.SlotOf(outputs.at(i)), outputs.at(i)});
    }
    for (const Tensor& place : freed) step.freed.push_back(program_.SlotOf(place));
  }

  // Returns a number for the operators below, valid as long as the chain lives.
  int64_t Handle() const { return reinterpret_cast<int64_t>(&program_); }

 private:
  Program program_;
};

template <typename T>
T& Pointed(const IValue& handle) {
  return *reinterpret_cast<T*>(handle.toInt());
}

void RunChain(torch::jit::Stack& stack) {
  const Program& program = Pointed<const Program>(stack.at(0));
  const Guards guards;
  ChainRun run(program, stack.at(1).toTensorVector());
  stack.clear();
  stack.emplace_back(run.Advance(program.steps.size()) ? run.Value() : Tensor());
}

void StartRun(torch::jit::Stack& stack) {
  auto run =
      std::make_unique<ChainRun>(Pointed<const Program>(stack.at(0)), stack.at(1).toTensorVector());
  stack.clear();
  stack.emplace_back(reinterpret_cast<int64_t>(run.release()));
}

void AdvanceRun(torch::jit::Stack& stack) {
  const Guards guards;
  const bool good = Pointed<ChainRun>(stack.at(0)).Advance(stack.at(1).toInt());
  stack.clear();
  stack.emplace_back(good);
}

void EndRun(torch::jit::Stack& stack) {
  const std::unique_ptr<ChainRun> run(&Pointed<ChainRun>(stack.at(0)));
  stack.clear();
  stack.emplace_back(run->Value());
}

torch::jit::Operator Define(const char* schema, void (*function)(torch::jit::Stack&)) {
  return {schema, function, c10::AliasAnalysisKind::CONSERVATIVE};
}

// A method of a class takes three times as long to call as an operator. These do not pass the
// dispatcher, so that a dispatch mode of the program sees the operators of the chain and not these.
const torch::jit::RegisterOperators kOperators({
    Define("spillway_recompute::run(int chain, Tensor[] sources) -> Tensor?", RunChain),
    Define("spillway_recompute::start(int chain, Tensor[] sources) -> int", StartRun),
    Define("spillway_recompute::advance(int run, int end) -> bool", AdvanceRun),
    Define("spillway_recompute::end(int run) -> Tensor?", EndRun),
});

}  // namespace

TORCH_LIBRARY(spillway_recompute, library) {
  library.class_<Chain>("Chain")
      .def(torch::init<const std::vector<Tensor>&, const Tensor&>())
      .def("capture", &Chain::SetCapture)
      .def("complete", &Chain::Complete)
      .def("handle", &Chain::Handle);
}

TORCH_LIBRARY_IMPL(_, TESTING_ONLY_GenericMode, library) {
  library.fallback(torch::CppFunction::makeFromBoxedFunction<&Capture>());
}

}  // namespace spillway_torch
