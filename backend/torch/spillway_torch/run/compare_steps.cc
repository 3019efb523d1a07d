// Compares the operators of a step with those of a step that was seen before, for executor.py.
//
// While a step is watched, each value has a hash: of the operator that made it, of the operator's
// arguments, and of the values that it read. The value of a saved tensor has the hash of its
// position instead. So two steps in which a saved tensor was made with the same hash made it in the
// same way, from the same parameters and from the same saved tensors; all else may differ.
//
// An operator that the program calls is hashed with its arguments. Some operators are made of
// others, by a choice that the arguments do not show: those others are hashed by their names.
//
// Like recompute_chains.cc it uses no header of Python and none of CUDA.

#include <step_library.h>  // of this folder

#include <ATen/autocast_mode.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/record_function.h>
#include <c10/util/flat_hash_map.h>
#include <torch/csrc/jit/runtime/custom_operator.h>
#include <torch/library.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <bit>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

namespace spillway_torch {

using at::Tensor;
using c10::IValue;

namespace {

// A hash of 128 bits of a sequence of words.
struct Hash {
  uint64_t one = 0x9e3779b97f4a7c15;
  uint64_t two = 0xd1b54a32d192ed03;

  void Add(uint64_t word) {
    one = Fold(one ^ word, 0xa0761d6478bd642f);
    two = Fold(two ^ word, 0x8ebc6af09c88c6e3);
  }
  // Adds two words as one. Two other words make the same one as rarely as hashes are equal.
  void Add(uint64_t first, uint64_t second) { Add(first * 0x9fb21c651e98df25 + second); }
  void Add(const Hash& other) {
    Add(other.one);
    Add(other.two);
  }
  void Add(std::string_view text) {
    Add(text.size());
    for (const char c : text) Add(static_cast<unsigned char>(c));
  }
  bool operator==(const Hash&) const = default;

 private:
  static uint64_t Fold(uint64_t x, uint64_t y) {
    const auto product = static_cast<unsigned __int128>(x) * y;
    return static_cast<uint64_t>(product) ^ static_cast<uint64_t>(product >> 64) ^ y;
  }
};

struct HashOfHash {
  size_t operator()(const Hash& hash) const { return hash.one; }
};

// An operator, as far as its hash depends on its kind.
struct Operator {
  std::string name;
  Hash hash = {};
  std::vector<size_t> writes = {};  // arguments
  bool known = false;               // to PyTorch; otherwise it is a function of the program
  bool composite = false;           // it is made of others, by a choice that is not shown
  bool cast = false;                // autocast casts its arguments
  bool random = false;
  bool allocates = false;  // and nothing determines what is in the memory
  bool calls = false;      // it was seen to call others
};

Operator Describe(const at::RecordFunction& function) {
  Operator made{function.name()};
  const auto named = function.operator_name();
  const std::string overload = named ? named->overload_name : "";
  made.hash.Add(std::string_view(made.name));
  made.hash.Add(std::string_view(overload));
  const auto op = c10::Dispatcher::singleton().findSchema({made.name, overload});
  made.known = op.has_value();
  if (!op) return made;
  const auto& arguments = op->schema().arguments();
  for (size_t i = 0; i < arguments.size(); ++i) {
    const c10::AliasInfo* alias = arguments[i].alias_info();
    if (alias != nullptr && alias->isWrite()) made.writes.push_back(i);
  }
  // These run often, and are made of others, too, but their arguments show of which.
  static constexpr std::array kPlain = {"aten::linear", "aten::matmul", "aten::reshape",
                                        "aten::to"};
  made.composite = op->hasKernelForDispatchKey(c10::DispatchKey::CompositeImplicitAutograd) &&
                   std::ranges::find(kPlain, made.name) == kPlain.end();
  made.cast = op->hasKernelForDispatchKey(c10::DispatchKey::AutocastCUDA) ||
              op->hasKernelForDispatchKey(c10::DispatchKey::AutocastCPU);
  made.random = op->hasTag(at::Tag::nondeterministic_seeded);
  static constexpr std::array kAllocations = {
      "aten::empty",     "aten::empty_strided",     "aten::empty_like", "aten::empty_permuted",
      "aten::new_empty", "aten::new_empty_strided", "aten::resize_"};
  made.allocates = std::ranges::find(kAllocations, made.name) != kAllocations.end();
  return made;
}

// An operator of a step that no other operator called.
struct Event {
  Hash hash;
  const Operator* op;
};

using Parameters = c10::List<std::optional<Tensor>>;

// How much a watch sees of operators. They run faster if it sees less.
enum class Sight { kAll, kNames, kNothing };

// One step of the thread while it is watched.
class Watch {
 public:
  // The storage that holds a value, or a tensor that has none.
  using Holder = c10::intrusive_ptr_target*;

  Watch() = default;
  Watch(const Watch&) = delete;
  ~Watch() { Forget(); }

  // Starts to watch a step. One callback sees all of an operator, the other one only its name.
  void Begin(const Parameters& parameters, at::CallbackHandle all, at::CallbackHandle names) {
    callbacks_ = {all, names};
    sight_ = Sight::kAll;
    at::disableCallback(names);
    for (size_t i = 0; i < parameters.size(); ++i) {
      const std::optional<Tensor> parameter = parameters.get(i);
      const Holder holder = parameter ? HolderOf(*parameter) : nullptr;
      if (holder != nullptr) SetPart(holder, {}, kParameter + i);
    }
  }

  // Stops watching the step, and keeps the memory for the next one.
  void End() {
    for (const at::CallbackHandle callback : callbacks_) at::removeCallback(callback);
    Forget();
    repeats_.clear();
    events_.clear();
    depth_ = ignored_ = outside_ = 0;
  }

  void Start(const at::RecordFunction& function) {
    if (depth_ > 0) frames_[depth_ - 1].op->calls = true;
    if (depth_ > 0 && frames_[depth_ - 1].closed) {
      ++ignored_;
      return;
    }
    Operator& op = OperatorOf(function);
    if (depth_ == frames_.size()) frames_.emplace_back();
    Frame& frame = frames_[depth_++];
    frame.op = &op;
    frame.inner = depth_ > 1 && frames_[depth_ - 2].op->known;
    frame.hash = op.hash;
    frame.leaf = false;
    frame.saved = 0;
    frame.given.clear();
    frame.written.clear();
    frame.pinned.clear();
    bool cached = false;  // maybe: autocast keeps the casts of leaves
    if (!frame.inner) {
      auto keys = c10::impl::tls_local_dispatch_key_set();  // they tell modes as autocast
      frame.hash.Add(keys.included_.raw_repr());
      frame.hash.Add(keys.excluded_.raw_repr());
      frame.hash.Add(at::GradMode::is_enabled());
      const auto inputs = function.inputs();
      for (const IValue& input : inputs) AddArgument(input, frame);
      for (const size_t at : op.writes) {
        if (at < inputs.size()) CollectWritten(inputs[at], frame);
      }
      if (at::autocast::is_autocast_enabled(at::kCUDA) ||
          at::autocast::is_autocast_enabled(at::kCPU)) {
        frame.hash.Add(static_cast<uint64_t>(at::autocast::get_autocast_dtype(at::kCUDA)),
                       static_cast<uint64_t>(at::autocast::get_autocast_dtype(at::kCPU)));
        cached = frame.leaf;
      }
    }
    frame.closed = op.known && !op.composite && !cached;
    frame.before = sight_;
    if (!op.known) {
      See(Sight::kAll);
    } else if (op.calls) {
      See(frame.closed ? Sight::kNothing : Sight::kNames);
    }
  }

  void End(const at::RecordFunction& function) {
    if (ignored_ > 0) {
      --ignored_;
    } else if (depth_ > 0) {
      EndFrame(frames_[--depth_], function);
    }
  }

  // Returns a hash that tells how a tensor lies in memory and, unless the kind is kLayout, how it
  // was made since the tensors that were saved before.
  //
  // The operator that saves it may not be done, so that its result has no hash yet: then the hash
  // is of the operator, of those that it called and that run, and of how many such tensors it saved
  // before.
  Hash OfSaved(const Tensor& tensor, int64_t position, Saved kind) {
    Hash hash;
    AddLayout(tensor, hash);
    const Holder holder = HolderOf(tensor);
    Frame* frame = Running();
    const Hash* value = holder != nullptr ? ValueOf(holder) : nullptr;
    if (kind != Saved::kLayout) {
      if (holder == nullptr) {
        AddUnknown(hash);
      } else if (value == nullptr && frame == nullptr) {
        AddOutside(holder, hash);
      } else {
        if (value == nullptr || IsIn(holder, frame, &Frame::written)) {
          for (const Frame* at = frame; at != frames_.data() + depth_; ++at) hash.Add(at->hash);
          hash.Add(frame->saved++);
        }
        if (value != nullptr) hash.Add(*value);
      }
    }
    if (kind == Saved::kAgain || holder == nullptr) return hash;
    Hash pinned;
    pinned.Add(kSaved + position);
    Set(holder, pinned);
    if (frame != nullptr) frame->pinned.emplace_back(holder, pinned);
    return hash;
  }

  // Adds how a tensor lies in memory.
  static void AddLayout(const Tensor& tensor, Hash& hash) {
    const auto* impl = tensor.unsafeGetTensorImpl();
    const auto sizes = tensor.sizes(), strides = tensor.strides();
    hash.Add(uint64_t{kTensor} << 56 | sizes.size() << 32 | tensor.requires_grad() << 16 |
             static_cast<uint64_t>(tensor.scalar_type()) << 8 |
             static_cast<uint8_t>(tensor.device().index()));
    hash.Add(impl->key_set().raw_repr());
    for (size_t i = 0; i < sizes.size(); ++i) hash.Add(sizes[i], strides[i]);
    hash.Add(tensor.storage_offset(), tensor.has_storage() ? tensor.storage().nbytes() : 0);
  }

  std::vector<Event>& events() { return events_; }

  Sight sight() const { return sight_; }

  // Changes which operators the watch sees from now on.
  void See(Sight sight) {
    if (sight == sight_) return;
    if (sight_ != Sight::kNothing) at::disableCallback(callbacks_[static_cast<size_t>(sight_)]);
    if (sight != Sight::kNothing) at::reenableCallback(callbacks_[static_cast<size_t>(sight)]);
    sight_ = sight;
  }

  // Returns the operator that runs and that no other operator called; null if none runs.
  const Operator* running() const { return depth_ > 0 ? frames_[0].op : nullptr; }

 private:
  // Kinds of words, so that no two sequences of words look the same.
  enum Kind : uint64_t {
    kOutside = 1,
    kUnknown,
    kNone,
    kTensor,
    kNumber,
    kList,
    kInt,
    kDouble,
    kComplex,
    kBool,
    kString,
    kDevice,
    kGenerator,
    kWritten = uint64_t{1} << 32,  // and numbers after it
    kParameter = uint64_t{2} << 32,
    kSaved = uint64_t{3} << 32,
  };

  struct Frame {
    Operator* op = nullptr;
    Hash hash = {};
    bool inner = false;   // another operator called it
    bool closed = false;  // operators that it calls do not matter
    Sight before = {};    // how much was seen when it started
    bool leaf = false;    // autocast casts its arguments, of which one is a leaf of the graph
    uint64_t saved = 0;   // tensors
    std::vector<Holder> given = {};
    std::vector<Holder> written = {};
    std::vector<std::pair<Holder, Hash>> pinned = {};  // values that were saved
  };

  void EndFrame(const Frame& frame, const at::RecordFunction& function) {
    See(frame.before);
    const Operator& op = *frame.op;
    if (frame.inner) {
      frames_[depth_ - 1].hash.Add(frame.hash);
      return;
    }
    if (!op.known) return;
    events_.push_back({frame.hash, &op});
    Hash made = frame.hash;  // of the values
    if (op.random || op.allocates) made.Add(repeats_[made]++);
    uint64_t index = 0;
    for (const Holder holder : frame.written) SetPart(holder, made, kWritten + index++);
    index = 0;
    for (const IValue& output : function.outputs()) SetOutputs(output, frame, made, index);
    for (const auto& [holder, pinned] : frame.pinned) Set(holder, pinned);
  }

  // Returns the operator or function that the program called and that runs; null if none does, or
  // it is one of the program.
  Frame* Running() {
    size_t outer = depth_;
    while (outer > 0 && frames_[outer - 1].inner) --outer;
    return outer > 0 && frames_[outer - 1].op->known ? &frames_[outer - 1] : nullptr;
  }

  // Returns the hash of a value; null if it has none.
  const Hash* ValueOf(Holder holder) const {
    const auto found = values_.find(holder);
    return found != values_.end() ? &found->second : nullptr;
  }

  static bool IsIn(Holder holder, const Frame* frame, std::vector<Holder> Frame::*holders) {
    return frame != nullptr &&
           std::ranges::find(frame->*holders, holder) != (frame->*holders).end();
  }

  void AddOutside(Holder holder, Hash& hash) {
    Hash outside;
    outside.Add(kOutside, outside_++);
    Set(holder, outside);
    hash.Add(outside);
  }

  // Operators are never deleted, because events name them.
  Operator& OperatorOf(const at::RecordFunction& function) {
    Operator*& found = known_[function.name()];
    if (found == nullptr || found->name != function.name())
      found = new Operator(Describe(function));
    return *found;
  }

  // Returns what holds the value of a tensor: its storage, or, of a tensor that stands for others,
  // as in torch.vmap, the tensor itself; null if nothing tells which value it has.
  static Holder HolderOf(const Tensor& tensor) {
    auto* impl = tensor.unsafeGetTensorImpl();
    if (!tensor.defined() || impl->layout() != at::kStrided || impl->has_symbolic_sizes_strides())
      return nullptr;
    if (tensor.has_storage()) return tensor.storage().unsafeGetStorageImpl();
    return impl;
  }

  void Set(Holder holder, const Hash& hash) {
    const auto [found, added] = values_.emplace(holder, hash);
    if (added) {
      c10::raw::weak_intrusive_ptr::incref(holder);  // nothing else gets its address
    } else {
      found->second = hash;
    }
  }

  void SetPart(Holder holder, Hash hash, uint64_t part) {
    hash.Add(part);
    Set(holder, hash);
  }

  void SetOutputs(const IValue& output, const Frame& frame, const Hash& made, uint64_t& index) {
    if (output.isTensor()) {
      ++index;
      const Tensor& tensor = output.toTensor();
      const Holder holder = HolderOf(tensor);
      if (holder != nullptr && !IsIn(holder, &frame, &Frame::given)) SetPart(holder, made, index);
    } else if (output.isList()) {
      for (const IValue& item : output.toListRef()) SetOutputs(item, frame, made, index);
    }
  }

  void CollectWritten(const IValue& argument, Frame& frame) {
    if (argument.isTensor()) {
      const Holder holder = HolderOf(argument.toTensor());
      if (holder != nullptr && values_.find(holder) != values_.end())
        frame.written.push_back(holder);
    } else if (argument.isList()) {
      for (const IValue& item : argument.toListRef()) CollectWritten(item, frame);
    }
  }

  void AddArgument(const IValue& argument, Frame& frame) {
    Hash& hash = frame.hash;
    if (argument.isTensor()) {
      const Tensor& tensor = argument.toTensor();
      if (const Holder holder = AddTensor(tensor, hash)) frame.given.push_back(holder);
      if (frame.op->cast) frame.leaf = frame.leaf || (tensor.requires_grad() && tensor.is_leaf());
    } else if (argument.isNone()) {
      hash.Add(kNone);
    } else if (argument.isInt()) {
      hash.Add(kInt, argument.toInt());
    } else if (argument.isBool()) {
      hash.Add(kBool, argument.toBool());
    } else if (argument.isDouble()) {
      hash.Add(kDouble, std::bit_cast<uint64_t>(argument.toDouble()));
    } else if (argument.isComplexDouble()) {
      AddComplex(argument.toComplexDouble(), hash);
    } else if (argument.isString()) {
      hash.Add(kString);
      hash.Add(std::string_view(argument.toStringRef()));
    } else if (argument.isDevice()) {
      hash.Add(kDevice, std::hash<c10::Device>{}(argument.toDevice()));
    } else if (argument.isGenerator()) {
      hash.Add(kGenerator,
               reinterpret_cast<uint64_t>(argument.toGenerator().unsafeGetGeneratorImpl()));
    } else if (argument.isList()) {
      const auto items = argument.toListRef();
      hash.Add(kList, items.size());
      for (const IValue& item : items) AddArgument(item, frame);
    } else {
      AddUnknown(hash);
    }
  }

  static void AddComplex(const c10::complex<double>& number, Hash& hash) {
    hash.Add(kComplex);
    hash.Add(std::bit_cast<uint64_t>(number.real()));
    hash.Add(std::bit_cast<uint64_t>(number.imag()));
  }

  // Makes a hash that no other step has.
  static void AddUnknown(Hash& hash) {
    static std::atomic<uint64_t> unknown = 0;
    hash.Add(kUnknown, unknown++);
  }

  // Adds which value a tensor has, and how it lies in memory. A tensor from outside the step has
  // the number of those that were seen before it. Returns what holds the value, as `HolderOf`.
  Holder AddTensor(const Tensor& tensor, Hash& hash) {
    if (!tensor.defined()) {
      hash.Add(kNone);
      return nullptr;
    }
    const Holder holder = HolderOf(tensor);
    if (holder == nullptr) {
      AddUnknown(hash);
      return nullptr;
    }
    AddLayout(tensor, hash);
    if (tensor.unsafeGetTensorImpl()->is_wrapped_number() && tensor.is_cpu()) {
      AddNumber(tensor, hash);
    } else if (const Hash* value = ValueOf(holder)) {
      hash.Add(*value);
    } else {
      AddOutside(holder, hash);
    }
    return holder;
  }

  // Adds a number that PyTorch made a tensor of.
  static void AddNumber(const Tensor& tensor, Hash& hash) {
    hash.Add(kNumber);
    const auto* bytes = static_cast<const char*>(tensor.const_data_ptr());
    hash.Add(std::string_view(bytes, tensor.element_size()));
  }

  // Forgets all values.
  void Forget() {
    for (const auto& [holder, hash] : values_) c10::raw::weak_intrusive_ptr::decref(holder);
    values_.clear();
  }

  std::array<at::CallbackHandle, 2> callbacks_ = {};
  Sight sight_ = Sight::kAll;
  ska::flat_hash_map<const char*, Operator*> known_;
  std::vector<Frame> frames_;
  size_t depth_ = 0;
  size_t ignored_ = 0;  // operators that run in a closed frame
  uint64_t outside_ = 0;
  ska::flat_hash_map<Holder, Hash> values_;
  std::unordered_map<Hash, uint64_t, HashOfHash> repeats_;
  std::vector<Event> events_;
};

thread_local Watch* watch = nullptr;  // of the step that runs

void EndWatch() {
  if (watch != nullptr) watch->End();
  watch = nullptr;
}

at::CallbackHandle AddCallback(Sight sight) {
  return at::addThreadLocalCallback(
      at::RecordFunctionCallback(
          [](const at::RecordFunction& function) -> std::unique_ptr<at::ObserverContext> {
            if (watch != nullptr) watch->Start(function);
            return nullptr;
          },
          [](const at::RecordFunction& function, at::ObserverContext*) {
            if (watch != nullptr) watch->End(function);
          })
          .needsInputs(sight == Sight::kAll)
          .needsOutputs(sight == Sight::kAll)
          .scopes({at::RecordScope::FUNCTION}));
}

void BeginWatch(const Parameters& parameters) {
  thread_local Watch memory;
  EndWatch();
  watch = &memory;
  watch->Begin(parameters, AddCallback(Sight::kAll), AddCallback(Sight::kNames));
}

}  // namespace

// The hashes of a step by position, and its operators.
class Hashes : public torch::CustomClassHolder {
 public:
  explicit Hashes(int64_t positions) : saved(positions) {}

  // Starts to watch the operators of this thread, which has no other watch.
  void Begin(const Parameters& parameters) { BeginWatch(parameters); }

  // Ends the watch of this thread. If its hashes were learned, they are complete.
  void End(bool learned) {
    if (learned && watch != nullptr) events = std::move(watch->events());
    EndWatch();
  }

  // Returns a number for the operators below, valid as long as this object lives.
  int64_t Handle() const { return reinterpret_cast<int64_t>(this); }

  // Returns where the step of this thread first differs from the one that was learned.
  std::string Difference() const {
    if (watch == nullptr) return "it is not watched";
    const std::vector<Event>& now = watch->events();
    const size_t both = std::min(now.size(), events.size());
    size_t at = 0;
    while (at < both && now[at].hash == events[at].hash) ++at;
    const Operator* ran = at < now.size() ? now[at].op : watch->running();
    if (ran == nullptr) return "a saved tensor was made in another way";
    const std::string where =
        ran->name + " is operator " + std::to_string(at) + " of the step, and ";
    if (at >= events.size()) return where + "none was recorded";
    if (events[at].op->name == ran->name) return where + "had other arguments in the recorded step";
    return where + events[at].op->name + " was recorded";
  }

  std::vector<std::optional<Hash>> saved;
  std::vector<Event> events;
};

namespace {

// Returns the hash of a saved tensor; none if no step of this thread is watched.
std::optional<Hash> HashOfSaved(const Tensor& saved, int64_t position, Saved kind) {
  if (watch == nullptr) return std::nullopt;
  return watch->OfSaved(saved, position, kind);
}

}  // namespace

void LearnSaved(Hashes& hashes, const Tensor& saved, int64_t position, Saved kind) {
  hashes.saved.at(position) = HashOfSaved(saved, position, kind);
}

bool IsAsLearned(const Hashes& hashes, const Tensor& saved, int64_t position, Saved kind) {
  const std::optional<Hash> hash = HashOfSaved(saved, position, kind);
  return hash && hashes.saved.at(position) == hash;
}

Unwatched::Unwatched() {
  if (watch == nullptr) return;
  before_ = static_cast<int>(watch->sight());
  watch->See(Sight::kNothing);
}

Unwatched::~Unwatched() {
  if (watch != nullptr) watch->See(Sight{before_});
}

Tensor Detached(const Tensor& tensor) {
  const auto* impl = tensor.unsafeGetTensorImpl();
  return Tensor(impl->shallow_copy_and_detach(impl->version_counter(), false));
}

namespace {

Hashes& HashesOf(const IValue& handle) { return *reinterpret_cast<Hashes*>(handle.toInt()); }

// These take hashes, a saved tensor, its position, and how it is compared.
void Learn(torch::jit::Stack& stack) {
  LearnSaved(HashesOf(stack.at(0)), stack.at(1).toTensor(), stack.at(2).toInt(),
             Saved{stack.at(3).toInt()});
  stack.clear();
}

void Save(torch::jit::Stack& stack) {
  Tensor kept;
  if (IsAsLearned(HashesOf(stack.at(0)), stack.at(1).toTensor(), stack.at(2).toInt(),
                  Saved{stack.at(3).toInt()}))
    kept = Detached(stack.at(1).toTensor());
  stack.clear();
  stack.emplace_back(std::move(kept));
}

torch::jit::Operator Define(const char* schema, void (*function)(torch::jit::Stack&)) {
  return {schema, function, c10::AliasAnalysisKind::CONSERVATIVE};
}

// These do not pass the dispatcher, so that nothing sees them.
const torch::jit::RegisterOperators kOperators({
    Define("spillway_compare::learn(int hashes, Tensor saved, int position, int kind) -> ()",
           Learn),
    Define("spillway_compare::save(int hashes, Tensor saved, int position, int kind) -> Tensor?",
           Save),
});

}  // namespace

TORCH_LIBRARY(spillway_compare, library) {
  library.class_<Hashes>("Hashes")
      .def(torch::init<int64_t>())
      .def("begin", &Hashes::Begin)
      .def("end", &Hashes::End)
      .def("handle", &Hashes::Handle)
      .def("difference", &Hashes::Difference);
}

}  // namespace spillway_torch
