#include "experiments/changes/other_world.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <set>
#include <string_view>
#include <utility>
#include <vector>

#include "experiments/changes/changed_op.h"
#include "experiments/changes/shards.h"
#include "traces/base/error.h"

namespace spillway::lab {
namespace {

// A collective of the whole world with fewer bytes in forward adds up numbers, such as a loss.
constexpr int64_t kNumbers = 65536;

// Throws `UsageError` if the growing groups cannot reach over `wanted` processes, for which an
// option asks.
void Check(const char* option, const Trace& trace, const Shards& shards, int64_t wanted) {
  for (const Op& op : trace.ops) {
    if (!op.IsCollective()) continue;
    const std::string_view kind = OperatorOf(op);
    if (kind == "send" || kind == "receive") {
      throw UsageError(fmt::format(
          "{}: '{}' sends a message to one process, as stages of a pipeline do; record the step "
          "with the processes that it is to have",
          option, op.name));
    }
    if (!shards.Grows(op)) continue;
    if (wanted % Number(op, "stride") != 0) {
      throw UsageError(fmt::format(
          "{}: {} processes are not a multiple of the {} of the inner dimensions of the mesh",
          option, wanted, Number(op, "stride")));
    }
    if (kind == "broadcast" && op.phase == Phase::kUpdate) {
      throw UsageError(fmt::format(
          "{}: '{}' sends parameters from the process that updates them; which ones that are among "
          "{} processes, only a recording says",
          option, op.name, wanted));
    }
    const bool forward = op.phase == Phase::kForward;
    if (kind == "all_to_all" || (forward && kind == "reduce_scatter") ||
        (forward && kind == "all_reduce" && Number(op, "bytes") > kNumbers) ||
        (forward && kind == "all_gather" && !shards.GathersParameters(op))) {
      throw UsageError(fmt::format(
          "{}: '{}' is part of a computation that {} processes share, as in tensor or context "
          "parallelism; record the step with the processes that it is to have",
          option, op.name, Number(op, "ranks")));
    }
  }
}

// Multiplies numbers of shards: groups that reached over `recorded` processes reach over `wanted`.
struct Factor {
  int64_t recorded, wanted;

  // Returns the number, rounded up.
  int64_t Of(int64_t number) const {
    return static_cast<int64_t>((static_cast<Int128>(number) * recorded + wanted - 1) / wanted);
  }
  // Returns the number of ranks of a growing group.
  int64_t Ranks(int64_t ranks) const { return ranks * wanted / recorded; }
  // Gives the tensor the shape and size of a shard.
  void Shrink(Tensor& tensor) const {
    const int64_t elements = Elements(tensor);
    if (tensor.shape.empty() || elements == 0 || tensor.size.count() % elements != 0) return;
    const int64_t bytes = tensor.size.count() / elements;
    tensor.shape[0] = Of(tensor.shape[0]);
    tensor.size = Bytes(Elements(tensor) * bytes);
  }
};

// Makes the tensors those of another world.
class Resizing {
 public:
  // All arguments outlive this object.
  Resizing(const Trace& trace, const Shards& shards, Factor factor)
      : trace_(trace), shards_(shards), factor_(factor), made_(trace) {}

  // Returns the trace with these tensors, and the ops as they were.
  Trace Build() {
    std::map<TensorId, std::vector<TensorId>> views;
    std::vector<TensorId> pieces;
    for (size_t i = 0; i < trace_.tensors.size(); ++i) {
      const auto id = static_cast<TensorId>(i);
      if (shards_.IsPiece(id)) pieces.push_back(id);
      if (!shards_.IsSharded(id)) continue;
      factor_.Shrink(made_.tensors[i]);
      const TensorId root = shards_.liveness().Root(id);
      if (id != root) views[root].push_back(id);
    }
    for (const auto& [root, ids] : views) Lay(root, ids);
    for (const TensorId id : pieces) Cut(id);
    for (const Op& op : trace_.ops) {
      if (shards_.Grows(op)) Pad(op);
      if (shards_.CopiesOut(op)) PadParts(op);
    }
    Request();
    return std::move(made_);
  }

 private:
  // Returns the shards that an op copies into the storage side by side; none if there is no such
  // op.
  std::vector<TensorId> CopiedInto(TensorId root) const {
    for (const OpId writer : shards_.liveness().Writers(root)) {
      const Op& op = trace_.op(writer);
      int64_t elements = 0;
      for (const TensorId id : op.inputs) {
        if (shards_.Shrinks(id)) elements += Elements(trace_.tensor(id));
      }
      elements *= std::max<int64_t>(1, shards_.ShardsIn(root));
      if (!op.IsCollective() && elements == Elements(trace_.tensor(root))) return op.inputs;
    }
    return {};
  }

  // Lays the views of a storage side by side again, each with the extent of its own shard.
  void Lay(TensorId root, const std::vector<TensorId>& views) {
    Tensor& storage = made_.tensors[Index(root)];
    const Bytes whole = trace_.tensor(root).size;
    const int64_t bytes =
        std::max<int64_t>(1, whole.count() / std::max<int64_t>(1, Elements(trace_.tensor(root))));
    std::map<int64_t, int64_t> places{{0, 0}, {whole.count(), 0}};  // before, and now
    std::map<std::pair<int64_t, int64_t>, int64_t> sizes;           // by the places before
    int64_t begin = 0;
    for (const TensorId id : CopiedInto(root)) {
      const int64_t end = begin + Elements(trace_.tensor(id)) * bytes;
      places[end] = 0;
      sizes[{std::exchange(begin, end), end}] = Elements(made_.tensor(id)) * bytes;
    }
    for (const TensorId id : views) {
      const int64_t first = shards_.liveness().Offset(id).count();
      const int64_t end = first + trace_.tensor(id).size.count();
      places[first] = places[end] = 0;
      sizes.emplace(std::pair(first, end), made_.tensor(id).size.count());
    }
    for (auto place = places.begin(), next = std::next(place); next != places.end();
         place = next++) {
      const auto known = sizes.find({place->first, next->first});
      const int64_t gap = factor_.Of((next->first - place->first) / bytes) * bytes;
      next->second = place->second + (known == sizes.end() ? gap : known->second);
    }
    Resize(storage, Bytes(places.rbegin()->second), bytes);
    for (const TensorId id : views) {
      const Tensor& before = trace_.tensor(id);
      const int64_t first = shards_.liveness().Offset(id).count();
      const int64_t outer = shards_.liveness().Offset(*before.alias_of).count();
      Tensor& view = made_.tensors[Index(id)];
      view.offset = Bytes(places[first] - places[outer]);
      Resize(view, Bytes(places[first + before.size.count()] - places[first]), bytes);
    }
  }

  static void Resize(Tensor& tensor, Bytes size, int64_t bytes) {
    tensor.size = size;
    if (tensor.shape.size() == 1) tensor.shape[0] = size.count() / bytes;
  }

  // Makes a process's part of a gathered tensor that of another world.
  void Cut(TensorId id) {
    Tensor& piece = made_.tensors[Index(id)];
    const int64_t before = std::max<int64_t>(1, piece.size.count());
    const int64_t bytes = std::max<int64_t>(1, before / std::max<int64_t>(1, Elements(piece)));
    const int64_t index = piece.offset.count() / before;
    factor_.Shrink(piece);
    int64_t elements = 0;
    for (const TensorId shard : CopiedInto(shards_.liveness().Root(id))) {
      elements += Elements(made_.tensor(shard));
    }
    if (elements > 0) Resize(piece, Bytes(elements * bytes), bytes);
    piece.offset = index * piece.size;
  }

  // Makes the whole tensor of a collective as large as the shards of all processes, which are
  // rounded up.
  void Pad(const Op& op) {
    const bool gathers = OperatorOf(op) == "all_gather";
    if (!gathers && OperatorOf(op) != "reduce_scatter") return;
    const int64_t ranks = Number(op, "ranks");
    for (const TensorId shard : gathers ? op.inputs : op.outputs) {
      for (const TensorId whole : gathers ? op.outputs : op.inputs) {
        const TensorId root = shards_.liveness().Root(whole);
        const Bytes one = trace_.tensor(shard).size;
        if (!shards_.Shrinks(shard) || trace_.tensor(root).size != one * ranks) continue;
        Lengthen(root, made_.tensor(shard).size * factor_.Ranks(ranks));
      }
    }
  }

  // Does the same with what an op copies out of such a tensor.
  void PadParts(const Op& op) {
    const int64_t ranks = shards_.ShardsIn(op.inputs[0]);
    const std::vector<TensorId> shards = CopiedInto(shards_.liveness().Root(op.inputs[0]));
    for (size_t i = 0; i < std::min(shards.size(), op.outputs.size()); ++i) {
      const Tensor& part = trace_.tensor(op.outputs[i]);
      const Tensor& shard = trace_.tensor(shards[i]);
      if (part.alias_of || Elements(part) != Elements(shard) * ranks) continue;
      const int64_t elements = Elements(made_.tensor(shards[i])) * factor_.Ranks(ranks);
      Lengthen(op.outputs[i], elements * Bytes(part.size.count() / Elements(part)));
    }
  }

  // Makes the storage longer, unless it is.
  void Lengthen(TensorId root, Bytes size) {
    Tensor& storage = made_.tensors[Index(root)];
    if (size <= storage.size) return;
    Resize(storage, size, storage.size.count() / std::max<int64_t>(1, Elements(storage)));
  }

  // Changes the requests that the program made before the step: those of shards, and those with the
  // sizes that only shards of the lane have.
  void Request() {
    using Key = std::pair<uint8_t, int64_t>;
    std::map<Key, Bytes> sizes;
    std::set<Key> others;
    std::vector<SetupRequest>& requests = made_.recording->requests;
    std::vector<bool> known(requests.size());
    for (size_t i = 0; i < trace_.tensors.size(); ++i) {
      const Tensor& tensor = trace_.tensors[i];
      if (tensor.alias_of) continue;
      const Bytes size = made_.tensors[i].size;
      if (size == tensor.size) {
        others.insert({tensor.lane, tensor.size.count()});
      } else {
        sizes[{tensor.lane, tensor.size.count()}] = size;
      }
      if (tensor.request && *tensor.request < requests.size()) {
        if (requests[*tensor.request].size == tensor.size) requests[*tensor.request].size = size;
        known[*tensor.request] = true;
      }
    }
    for (size_t i = 0; i < requests.size(); ++i) {
      const Key key(requests[i].lane, requests[i].size.count());
      const auto size = sizes.find(key);
      if (!known[i] && size != sizes.end() && !others.contains(key)) {
        requests[i].size = size->second;
      }
    }
  }

  const Trace& trace_;
  const Shards& shards_;
  const Factor factor_;
  Trace made_;
};

// Changes the work of an op that has shards among its operands, and the size of a growing group.
void Rework(const Trace& trace, const Shards& shards, Factor factor, const Trace& made, Op& op) {
  int64_t whole = 0, before = 0, after = 0, elements_before = 0, elements_after = 0;
  for (const auto* operands : {&op.inputs, &op.outputs}) {
    for (const TensorId id : *operands) {
      const Tensor &was = trace.tensor(id), &is = made.tensor(id);
      if (is.size == was.size) {
        whole += was.size.count();
        continue;
      }
      before += was.size.count();
      after += is.size.count();
      if (operands == &op.outputs) continue;
      elements_before += Elements(was);
      elements_after += Elements(is);
    }
  }
  const auto set = [&](std::string_view name, int64_t value) {
    const auto found = std::ranges::find(op.attributes, name, &Attribute::name);
    if (found != op.attributes.end()) found->value = static_cast<double>(value);
  };
  if (op.IsCollective()) {
    const int64_t ranks = Number(op, "ranks"), stride = Number(op, "stride");
    if (shards.Grows(op)) {
      set("ranks", factor.Ranks(ranks));
    } else if (stride >= factor.recorded) {  // of an outer dimension
      set("ranks", factor.Of(ranks));
      set("stride", factor.Ranks(stride));
    }
    Bytes largest;
    for (const auto* operands : {&op.inputs, &op.outputs}) {
      for (const TensorId id : *operands) largest = std::max(largest, made.tensor(id).size);
    }
    if (before > 0) set("bytes", largest.count());
    return;
  }
  if (shards.CopiesOut(op)) set("row", factor.Of(Number(op, "row")));
  if (before == 0) return;
  Slot& slot = op.slots[0];
  const int64_t traffic = slot.traffic.count();
  const bool alone = whole < (before + whole) / 100;
  const int64_t left = alone ? static_cast<int64_t>(Int128{traffic} * after / before)
                             : std::max<int64_t>(0, traffic - (before - after));
  slot.traffic = Bytes(left);
  if (Number(op, "elements") == elements_before) {
    set("elements", elements_after);
  } else if (alone) {
    set("elements", factor.Of(Number(op, "elements")));
  }
  if (op.recorded && traffic > 0) {
    const auto time = static_cast<Int128>(op.recorded->time.picoseconds());
    op.recorded->time = Duration::Picoseconds(static_cast<int64_t>(time * left / traffic));
  }
}

// Returns the step whose groups that reach over `recorded` processes reach over `wanted`.
Trace WithReach(const char* option, const Trace& trace, int64_t recorded, int64_t wanted) {
  const Shards shards(trace, recorded);
  Check(option, trace, shards, wanted);
  const Factor factor{recorded, wanted};
  Trace made = Resizing(trace, shards, factor).Build();
  for (Op& op : made.ops) Rework(trace, shards, factor, made, op);
  made.name += fmt::format(",{}={}", option, wanted);
  Recording& recording = *made.recording;
  recording.step = recording.plain_step = {};
  recording.allocated = recording.reserved = {};
  made.Validate();
  return made;
}

}  // namespace

Trace WithWorld(const Trace& trace, int64_t world) {
  const int64_t recorded = WorldOf(trace);
  if (recorded == 1) throw UsageError("world: the step has no collectives of several processes");
  return WithReach("world", trace, recorded, world);
}

Trace WithShards(const Trace& trace, int64_t shards) {
  const int64_t recorded = ReachOfShards(trace), world = WorldOf(trace);
  if (recorded == 0 || recorded == world) {
    throw UsageError("shards: the step has no replicas of shards of parameters");
  }
  if (shards % recorded != 0 || world % shards != 0) {
    throw UsageError(
        fmt::format("shards: parameters are shared out among {} of {} processes, of which {} is "
                    "neither a multiple nor a part",
                    recorded, world, shards));
  }
  return WithReach("shards", trace, recorded, shards);
}

}  // namespace spillway::lab
