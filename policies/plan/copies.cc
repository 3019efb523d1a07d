#include "policies/plan/copies.h"

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <map>
#include <string_view>
#include <tuple>
#include <utility>

namespace spillway::policies {
namespace {

// Ops are compared with this many ops on either side: with the next ones first, and then with the
// ops that are three away, which have been compared with their next ones.
constexpr size_t kAround = 4;
constexpr std::array<size_t, 2> kReaches{1, 3};
// Layers repeat if at least `kMostOf` of the storages are in groups of at least `kMany`.
constexpr size_t kMany = 8;
constexpr double kMostOf = 0.8;

// Gives equal keys equal numbers: 1, 2, 3 and so on.
template <typename Key>
class Numbers {
 public:
  size_t Of(Key key) { return known_.try_emplace(std::move(key), known_.size() + 1).first->second; }

 private:
  std::map<Key, size_t> known_;
};

// Returns a number for each op that is the same for two ops iff they are copies.
std::vector<size_t> NumberOps(const Trace& trace) {
  using Key =
      std::tuple<OpType, Phase, int64_t, bool, std::vector<std::string_view>, std::vector<Bytes>>;
  Numbers<Key> alike;
  std::vector<size_t> numbers(kAround);  // 0: there is no op
  for (const Op& op : trace.ops) {
    std::vector<std::string_view> calls;
    for (const Slot& slot : op.slots) calls.push_back(slot.signature);
    std::vector<Bytes> sizes;
    for (const auto* operands : {&op.inputs, &op.outputs, &op.scratch}) {
      for (const TensorId id : *operands) sizes.push_back(trace.tensor(id).size);
      sizes.push_back(Bytes(-1));
    }
    numbers.push_back(alike.Of(
        {op.type, op.phase, op.batch, op.recomputable, std::move(calls), std::move(sizes)}));
  }
  numbers.resize(numbers.size() + kAround);
  for (const size_t reach : kReaches) {
    Numbers<std::array<size_t, 3>> around;
    const std::vector<size_t> before = numbers;
    for (size_t i = reach; i + reach < numbers.size(); ++i) {
      numbers[i] = around.Of({before[i - reach], before[i], before[i + reach]});
    }
  }
  return {numbers.begin() + kAround, numbers.end() - kAround};
}

// Adds an id to the group of this number, which is at most one more than there are groups.
template <typename Id>
void AddTo(std::vector<std::vector<Id>>& groups, size_t number, Id id) {
  if (number > groups.size()) groups.emplace_back();
  groups[number - 1].push_back(id);
}

}  // namespace

Copies FindCopies(const Trace& trace, const Liveness& liveness,
                  std::span<const TensorId> storages) {
  const std::vector<size_t> numbers = NumberOps(trace);
  Copies copies;
  Numbers<size_t> copied;
  for (size_t i = 0; i < numbers.size(); ++i) {
    AddTo(copies.ops, copied.Of(numbers[i]), static_cast<OpId>(i));
  }
  Numbers<std::tuple<TensorKind, Bytes, std::ptrdiff_t, std::vector<size_t>>> alike;
  for (const TensorId id : storages) {
    const Tensor& tensor = trace.tensor(id);
    const auto operands = liveness.Storages(liveness.Uses(id).front());
    const auto operand = std::ranges::find(operands, id) - operands.begin();
    std::vector<size_t> uses;
    for (const OpId op : liveness.Uses(id)) uses.push_back(numbers[Index(op)]);
    AddTo(copies.storages, alike.Of({tensor.kind, tensor.size, operand, std::move(uses)}), id);
  }
  size_t many = 0;
  for (const auto& group : copies.storages) many += group.size() >= kMany ? group.size() : 0;
  copies.layers_repeat =
      many > 0 && static_cast<double>(many) >= kMostOf * static_cast<double>(storages.size());
  if (copies.layers_repeat) return copies;
  copies = {};
  for (size_t i = 0; i < numbers.size(); ++i) copies.ops.push_back({static_cast<OpId>(i)});
  for (const TensorId id : storages) copies.storages.push_back({id});
  return copies;
}

}  // namespace spillway::policies
