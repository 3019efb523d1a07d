// Runs recorded operators of PyTorch again without Python: the chains of replay.py.
//
// It uses no header of Python and none of CUDA, so one library serves each Python, and each build
// of one version of PyTorch.
//
// A chain names storages by placeholders: tensors of the device "meta", in one storage for each
// recorded one. An operator is added by calling it on placeholders between `capture(True)` and
// `capture(False)`: a fallback of the dispatcher, above all other kernels, takes the arguments as
// PyTorch has parsed them, and runs nothing.

#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/core/grad_mode.h>
#include <ATen/native/Resize.h>
#include <torch/csrc/jit/runtime/custom_operator.h>
#include <torch/library.h>

#include <memory>
#include <optional>
#include <unordered_map>
#include <utility>
#include <vector>

namespace {

using at::Tensor;
using c10::IValue;
using Key = const c10::StorageImpl*;  // the storage of a placeholder

// A dispatch key whose kernels go before those of all others, and that nothing but tests of PyTorch
// uses.
constexpr c10::DispatchKey kCapture = c10::DispatchKey::TESTING_ONLY_GenericMode;

struct Step {
  c10::OperatorHandle op;
  std::vector<IValue> arguments;  // with placeholders in the place of tensors
  std::vector<std::pair<size_t, Tensor>> outputs =
      {};  // indices of new results, with their placeholders
  std::vector<Tensor> freed = {};
};

thread_local std::vector<Step>* capturing = nullptr;

Key KeyOf(const Tensor& placeholder) { return placeholder.storage().unsafeGetStorageImpl(); }

void Capture(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  TORCH_CHECK(capturing != nullptr, "no chain captures operators");
  capturing->push_back({op, torch::jit::pop(*stack, op.schema().arguments().size())});
  for (size_t i = 0; i < op.schema().returns().size(); ++i) stack->emplace_back();
}

bool SameLayout(const Tensor& one, const Tensor& other) {
  return one.strides() == other.strides() && one.storage_offset() == other.storage_offset();
}

// Chains run below autograd and autocast.
struct Guards {
  at::NoGradGuard no_grad;
  at::AutoDispatchBelowADInplaceOrView below_autograd;
  c10::impl::ExcludeDispatchKeyGuard no_autocast{c10::autocast_dispatch_keyset};
};

struct Program {
  std::vector<Tensor> sources;  // placeholders of the storages that exist before
  Tensor target;                // one of the value
  std::vector<Step> steps;
};

// One run of a program, which lives longer.
class Run {
 public:
  Run(const Program& program, const std::vector<Tensor>& sources) : program_(program) {
    TORCH_CHECK(sources.size() == program.sources.size(), "the chain reads ",
                program.sources.size(), " storages");
    for (size_t i = 0; i < sources.size(); ++i) values_[KeyOf(program.sources[i])] = sources[i];
  }

  // Runs the operators before `end` that have not run. Returns false if one made another layout
  // than in the recorded step.
  bool Advance(size_t end) {
    const Guards guards;
    torch::jit::Stack stack;
    for (; done_ < end; ++done_) {
      const Step& step = program_.steps.at(done_);
      stack.clear();
      for (const IValue& argument : step.arguments) stack.push_back(Given(argument));
      step.op.callBoxed(stack);
      if (!Keep(step, stack)) return false;
    }
    return true;
  }

  bool AdvanceToEnd() { return Advance(program_.steps.size()); }

  // Returns a tensor in the storage of the value; an undefined one, which is None in Python, if it
  // was not made.
  Tensor Value() const {
    const auto found = values_.find(KeyOf(program_.target));
    return found == values_.end() ? Tensor() : found->second;
  }

 private:
  // Returns an argument with tensors in the place of placeholders.
  IValue Given(const IValue& argument) const {
    if (argument.isTensor()) return At(argument.toTensor());
    if (argument.isTensorList()) {
      c10::List<Tensor> items;
      for (const Tensor& item : argument.toTensorVector()) items.push_back(At(item));
      return items;
    }
    if (argument.isOptionalTensorList()) {
      c10::List<std::optional<Tensor>> items;
      for (const std::optional<Tensor>& item : argument.toOptionalTensorVector()) {
        items.push_back(item ? std::optional<Tensor>(At(*item)) : std::nullopt);
      }
      return items;
    }
    return argument;
  }

  // Returns the tensor that a placeholder stands for. A tensor of another device than "meta" stands
  // for itself.
  Tensor At(const Tensor& place) const {
    if (!place.defined() || !place.is_meta()) return place;
    const Tensor& base = values_.at(KeyOf(place));
    if (SameLayout(base, place) && base.sizes() == place.sizes() && base.dtype() == place.dtype())
      return base;
    Tensor view = at::detail::make_tensor<c10::TensorImpl>(
        c10::TensorImpl::VIEW, c10::Storage(base.storage()), base.key_set(), place.dtype());
    at::native::setStrided(view, place.sizes(), place.strides(), place.storage_offset());
    return view;
  }

  bool Keep(const Step& step, const torch::jit::Stack& stack) {
    const bool listed = stack.size() == 1 && stack[0].isTensorList();
    for (const auto& [at, place] : step.outputs) {
      const Tensor value = listed ? stack[0].toTensorList().get(at) : stack.at(at).toTensor();
      if (!value.defined() || !SameLayout(value, place)) return false;
      values_[KeyOf(place)] = value;
    }
    for (const Tensor& place : step.freed) values_.erase(KeyOf(place));
    return true;
  }

  const Program& program_;
  size_t done_ = 0;
  std::unordered_map<Key, Tensor> values_;
};

// Operators that make a value again.
class Chain : public torch::CustomClassHolder {
 public:
  Chain(std::vector<Tensor> sources, Tensor target)
      : program_{std::move(sources), std::move(target), {}} {}

  // Starts or ends to add the operators that this thread calls, which then do not run.
  void SetCapture(bool on) {
    capturing = on ? &program_.steps : nullptr;
    c10::impl::tls_set_dispatch_key_included(kCapture, on);
  }

  // Completes the last operator: its new results by index, their placeholders, and those of
  // storages that are not read again.
  void Complete(const std::vector<int64_t>& indices, const std::vector<Tensor>& outputs,
                const std::vector<Tensor>& freed) {
    Step& step = program_.steps.at(program_.steps.size() - 1);
    for (size_t i = 0; i < indices.size(); ++i)
      step.outputs.emplace_back(indices[i], outputs.at(i));
    step.freed = freed;
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
  const auto [chain, sources] = std::pair(stack.at(0), stack.at(1).toTensorVector());
  stack.clear();
  Run run(Pointed<const Program>(chain), sources);
  stack.emplace_back(run.AdvanceToEnd() ? run.Value() : Tensor());
}

void StartRun(torch::jit::Stack& stack) {
  auto run =
      std::make_unique<Run>(Pointed<const Program>(stack.at(0)), stack.at(1).toTensorVector());
  stack.clear();
  stack.emplace_back(reinterpret_cast<int64_t>(run.release()));
}

void AdvanceRun(torch::jit::Stack& stack) {
  const bool good = Pointed<Run>(stack.at(0)).Advance(stack.at(1).toInt());
  stack.clear();
  stack.emplace_back(good);
}

void EndRun(torch::jit::Stack& stack) {
  const std::unique_ptr<Run> run(&Pointed<Run>(stack.at(0)));
  stack.clear();
  stack.emplace_back(run->Value());
}

torch::jit::Operator Define(const char* schema, void (*function)(torch::jit::Stack&)) {
  return {schema, function, c10::AliasAnalysisKind::CONSERVATIVE};
}

// A method of a class takes three times as long to call as an operator. These do not pass the
// dispatcher, so that a dispatch mode of the program sees the operators of the chain and not these.
const torch::jit::RegisterOperators kOperators({
    Define("spillway_replay::run(int chain, Tensor[] sources) -> Tensor?", RunChain),
    Define("spillway_replay::start(int chain, Tensor[] sources) -> int", StartRun),
    Define("spillway_replay::advance(int run, int end) -> bool", AdvanceRun),
    Define("spillway_replay::end(int run) -> Tensor?", EndRun),
});

}  // namespace

TORCH_LIBRARY(spillway_replay, library) {
  library.class_<Chain>("Chain")
      .def(torch::init<std::vector<Tensor>, Tensor>())
      .def("capture", &Chain::SetCapture)
      .def("complete", &Chain::Complete)
      .def("handle", &Chain::Handle);
}

TORCH_LIBRARY_IMPL(_, TESTING_ONLY_GenericMode, library) {
  library.fallback(torch::CppFunction::makeFromBoxedFunction<&Capture>());
}
