#include "policies/plan/frozen.h"

#include <algorithm>
#include <array>
#include <map>
#include <set>
#include <utility>

namespace spillway::policies {
namespace {

constexpr Bytes kWindow = Bytes::MiB(256);
constexpr int64_t kWindows = 8;  // there is room for so many, if there are fewer bytes

template <typename Ids>
Bytes BytesOf(const JointFacts& facts, const Ids& ids) {
  Bytes sum;
  for (const TensorId id : ids) sum += facts.trace().tensor(id).size;
  return sum;
}

}  // namespace

Bytes WindowOf(Bytes outside) { return std::min(kWindow, Bytes(outside.count() / kWindows)); }

std::vector<TensorId> LeavingFrozen(const JointFacts& facts, std::span<const TensorId> frozen,
                                    Bytes size) {
  const std::set<TensorId> all(frozen.begin(), frozen.end());
  std::vector<TensorId> uses, ordered;
  std::map<TensorId, std::pair<size_t, size_t>> places;  // the first and the last in `uses`
  for (size_t i = 0; i < facts.trace().ops.size(); ++i) {
    for (const TensorId id : facts.liveness().Storages(static_cast<OpId>(i))) {
      if (!all.contains(id)) continue;
      const auto [place, is_first] = places.try_emplace(id, uses.size(), uses.size());
      if (is_first) ordered.push_back(id);
      place->second.second = uses.size();
      uses.push_back(id);
    }
  }
  const Bytes soon = WindowOf(BytesOf(facts, ordered)) * 2;
  const auto class_of = [&](TensorId id) -> size_t {
    if (facts.trace().tensor(id).size > kWindow) return 2;
    const auto [first, last] = places.at(id);
    if (first == last) return 0;
    std::set<TensorId> between;
    Bytes bytes;
    for (size_t i = first + 1; i < last && bytes < soon; ++i) {
      if (uses[i] == id || !between.insert(uses[i]).second) continue;
      bytes += facts.trace().tensor(uses[i]).size;
    }
    return bytes < soon ? 1 : 0;
  };
  std::array<std::vector<TensorId>, 3> classes;
  for (const TensorId id : ordered) classes[class_of(id)].push_back(id);
  std::vector<TensorId> found;
  Bytes left = size;
  for (const std::vector<TensorId>& members : classes) {
    const Bytes bytes = BytesOf(facts, members), wanted = std::min(left, bytes);
    Bytes taken, passed;
    for (const TensorId id : members) {
      const Bytes its = facts.trace().tensor(id).size;
      passed += its;
      if (Int128{taken.count()} * bytes.count() >= Int128{wanted.count()} * passed.count()) {
        continue;
      }
      found.push_back(id);
      taken += its;
    }
    left -= std::min(left, taken);
  }
  return found;
}

}  // namespace spillway::policies
