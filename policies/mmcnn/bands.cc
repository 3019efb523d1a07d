#include "policies/mmcnn/bands.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "policies/mmcnn/slice_ops.h"
#include "traces/ops/op_table.h"

namespace spillway::policies {
namespace {

// The largest band takes this part of the limit. The rest is for the bands that an op reads, the
// rows gathered from them, and weights.
constexpr int64_t kShare = 10;

constexpr int64_t kElementSize = sizeof(float);

// Rows [from, to) of a map.
struct Band {
  int64_t from = 0, to = 0;
  TensorId tensor{};
};

// How rows of an op's output depend on rows of its inputs.
struct RowWindow {
  int64_t kernel = 1, stride = 1, pad = 0;
  bool single = true;  // the op works element by element

  // Returns the input rows [from, to) that the output rows of `band` need. Some may be padding.
  std::pair<int64_t, int64_t> Inputs(const Band& band, int64_t height) const {
    const int64_t last = (band.to - 1) * stride - pad + kernel;
    return {band.from * stride - pad, std::min(last, height + pad)};
  }
};

// Returns nullopt for an op that cannot be divided by rows.
std::optional<RowWindow> RowWindowOf(const Op& op) {
  if (op.batch != 1 || op.phase != Phase::kForward || op.inputs.empty()) return std::nullopt;
  switch (op.type) {
    case OpType::kConv2d:
    case OpType::kMaxPool2d:
    case OpType::kAvgPool2d:
      return RowWindow{op.IntAttribute("kernel_h", 1), op.IntAttribute("stride_h", 1),
                       op.IntAttribute("pad_h", 0), false};
    case OpType::kRelu:
    case OpType::kGelu:
    case OpType::kLrn:
    case OpType::kBatchNorm:
    case OpType::kConcat:
    case OpType::kAdd:
      return RowWindow{};
    default:
      return std::nullopt;
  }
}

class BandDivider {
 public:
  BandDivider(const Trace& trace, Bytes limit, Bytes alignment, Terms terms)
      : from_(trace), needs_(trace, alignment), limit_(limit), terms_(terms), to_(trace) {
    to_.ops.clear();
    bands_.resize(trace.tensors.size());
    channels_.resize(trace.tensors.size());
  }

  Trace Run() {
    for (size_t i = 0; i < from_.tensors.size(); ++i) DivideInput(static_cast<TensorId>(i));
    for (size_t i = 0; i < from_.ops.size();) {
      if (from_.training || !IsBanded(i)) {
        Whole(from_.ops[i++]);
        continue;
      }
      // Ops that follow element by element run after each band of this op.
      const std::vector<Band> bands = Partition(from_.ops[i]);
      size_t end = i + 1;
      while (end < from_.ops.size() && FollowsOn(end, from_.ops[end - 1].outputs[0], bands)) ++end;
      const int64_t terms = TermsOf(from_.ops[i], bands);
      for (const Band& band : bands) {
        AddBand(from_.ops[i], band, terms);
        for (size_t at = i + 1; at < end; ++at) AddBand(from_.ops[at], band, 1);
      }
      i = end;
    }
    return std::move(to_);
  }

 private:
  int64_t HeightOf(TensorId map) const {
    const std::vector<int64_t>& shape = from_.tensor(map).shape;
    return shape.size() == 4 ? std::max<int64_t>(shape[2], 1) : 1;
  }
  Bytes RowsOf(TensorId map, int64_t rows) const {
    return needs_.Rounded(Bytes(from_.tensor(map).size.count() / HeightOf(map) * rows));
  }
  Bytes ChannelsOf(TensorId map, int64_t channels) const {
    const Tensor& tensor = from_.tensor(map);
    return needs_.Rounded(Bytes(tensor.size.count() / tensor.shape[1] * channels));
  }
  bool IsMap(TensorId id) const { return !IsParameter(from_.tensor(id)); }

  bool IsBanded(size_t i) const {
    const Op& op = from_.ops[i];
    const auto is_plane = [&](TensorId id) {
      return !IsMap(id) || from_.tensor(id).shape.size() == 4;
    };
    if (!RowWindowOf(op) || op.outputs.size() != 1 || HeightOf(op.outputs[0]) == 1 ||
        !std::ranges::all_of(op.inputs, is_plane)) {
      return false;
    }
    if (needs_.LeastOf(static_cast<OpId>(i)) > limit_) return true;
    return std::ranges::any_of(op.inputs, [&](TensorId input) {  // would be gathered
      const std::vector<Band>& bands = bands_[Index(input)];
      Bytes size = needs_.Rounded(from_.tensor(input).size);
      for (const Band& band : bands) size += RowsOf(input, band.to - band.from);
      return !bands.empty() && size > limit_;
    });
  }

  // Divides an image that, on the device, leaves no room for a row of an op that reads it: each
  // channel becomes a part that starts outside.
  void DivideInput(TensorId image) {
    const Tensor& tensor = from_.tensor(image);
    if (from_.training || tensor.kind != TensorKind::kInput || tensor.shape.size() != 4) return;
    if (std::ranges::any_of(from_.tensors, [&](const Tensor& t) { return t.alias_of == image; })) {
      return;
    }
    for (size_t i = 0; i < from_.ops.size(); ++i) {
      const Op& op = from_.ops[i];
      if (!std::ranges::count(op.inputs, image)) continue;
      if (!IsBanded(i)) return;
      const RowWindow window = RowWindowOf(op).value();
      if (window.single || NeedOf(op, window, 1) <= limit_) return;
    }
    for (int64_t c = 0; c < tensor.shape[1]; ++c) {
      const TensorId channel = AddChannels(image, c, c + 1);
      to_.tensors[Index(channel)].alias_of = std::nullopt;
      to_.tensors[Index(channel)].part_of = image;
      channels_[Index(image)].push_back(channel);
    }
  }

  bool FollowsOn(size_t i, TensorId map, const std::vector<Band>& bands) {
    const Op& op = from_.ops[i];
    const auto window = RowWindowOf(op);
    if (!window || !window->single || op.inputs[0] != map) return false;
    // The map is in bands by then.
    bands_[Index(map)] = bands;
    const bool banded = IsBanded(i);
    bands_[Index(map)].clear();
    return banded;
  }

  // Returns the bands of the op's output, without tensors.
  std::vector<Band> Partition(const Op& op) const {
    const RowWindow window = RowWindowOf(op).value();
    if (window.single) {
      for (const TensorId input : op.inputs) {
        const std::vector<Band>& bands = bands_[Index(input)];
        if (bands.empty()) continue;
        const int64_t rows = bands.back().to - bands.back().from;  // the rows of the largest band
        if (NeedOf(op, window, rows) <= limit_) return bands;
      }
    }
    const TensorId y = op.outputs[0];
    int64_t rows =
        std::max<int64_t>(limit_.count() / kShare / std::max<int64_t>(RowsOf(y, 1).count(), 1), 1);
    while (rows > 1 && NeedOf(op, window, rows) > limit_) --rows;
    std::vector<Band> bands;
    const int64_t height = HeightOf(y);
    const int64_t count = (height + rows - 1) / rows;
    for (int64_t i = 0; i < count; ++i) {
      bands.push_back({height * i / count, height * (i + 1) / count, {}});
    }
    return bands;
  }

  // Returns about how much memory a band of `rows` rows needs, without weights.
  Bytes NeedOf(const Op& op, const RowWindow& window, int64_t rows) const {
    Bytes gathered, most;
    for (const TensorId input : op.inputs) {
      if (!IsMap(input)) continue;
      const Bytes own = RowsOf(input, (rows - 1) * window.stride + window.kernel);
      Bytes sources = own;
      for (const Band& band : bands_[Index(input)]) {
        sources = std::max(sources, own + 2 * RowsOf(input, band.to - band.from));
      }
      if (bands_[Index(input)].empty()) {
        sources =
            channels_[Index(input)].empty() ? RowsOf(input, HeightOf(input)) : ChannelsOf(input, 1);
      }
      most = std::max(most, sources + own);
      gathered += own;
    }
    return std::max(most, gathered + RowsOf(op.outputs[0], rows));
  }

  // Adds an op as it is. Inputs in bands are gathered first, and are whole from then on.
  void Whole(const Op& op) {
    const bool is_whole = bands_[Index(op.inputs.empty() ? op.outputs[0] : op.inputs[0])].empty();
    if (!is_whole && PoolInChannels(op, 0, HeightOf(op.inputs[0]), op.outputs[0])) return;
    for (const TensorId input : op.inputs) {
      if (bands_[Index(input)].empty()) continue;
      AddGather(op, input, 0, HeightOf(input), input);
      bands_[Index(input)].clear();
    }
    to_.ops.push_back(op);
  }

  // Returns the sources of rows [from, to) of a map: its bands with such rows, or the whole map.
  std::vector<Band> SourcesOf(TensorId map, int64_t from, int64_t to) const {
    std::vector<Band> sources = bands_[Index(map)];
    if (sources.empty()) sources = {{0, HeightOf(map), map}};
    std::erase_if(sources, [&](const Band& band) { return band.to <= from || band.from >= to; });
    return sources;
  }

  // Returns the bytes of these sources together.
  Bytes HeldFor(TensorId map, int64_t from, int64_t to) const {
    Bytes held;
    for (const Band& band : SourcesOf(map, from, to)) held += RowsOf(map, band.to - band.from);
    return held;
  }

  // Adds a pool over rows [from, to) of its input in slices of channels, if these rows and the
  // sources that they are gathered from do not fit together. Returns false, and adds nothing, if
  // they fit or the op is no pool.
  bool PoolInChannels(const Op& op, int64_t from, int64_t to, TensorId y) {
    if (op.type != OpType::kAvgPool2d && op.type != OpType::kMaxPool2d) return false;
    const TensorId map = op.inputs[0];
    const std::vector<Band> sources = SourcesOf(map, from, to);
    if (sources[0].from == from && sources[0].to == to) return false;  // nothing is gathered
    const Bytes held = HeldFor(map, from, to);
    const int64_t channels = from_.tensor(map).shape[1];
    const Bytes row(RowsOf(map, to - from).count() / channels);
    const auto fits = [&](int64_t count) {
      return held + needs_.Rounded((channels + count - 1) / count * row) <= limit_;
    };
    if (fits(1)) return false;
    int64_t count = 2;
    while (count < channels && !fits(count)) ++count;
    for (int64_t i = 0; i < std::min(count, channels); ++i) {
      const int64_t first = channels * i / count;
      const int64_t end = channels * (i + 1) / count;
      Op part = op;
      part.name += fmt::format("[channels {}:{}]", first, end);
      const TensorId x = AddMap(part.name + ".x0", map, to - from, end - first);
      std::vector<Band> slices = sources;
      for (Band& band : slices) band.tensor = AddChannels(band.tensor, first, end);
      Gather(op, slices, from, to, x);
      part.inputs = {x};
      part.outputs = {AddChannels(y, first, end)};
      SetAttribute(part, "channels", end - first);
      part.slots = {ForwardSlot(to_, part)};
      to_.ops.push_back(std::move(part));
    }
    return true;
  }

  // Returns the number of slices of input channels that a convolution in these bands adds up. It is
  // 1 if the operands of one output channel fit, and if no number of slices would make them fit.
  int64_t TermsOf(const Op& op, const std::vector<Band>& bands) const {
    if (op.type != OpType::kConv2d || op.IntAttribute("groups", 1) != 1) return 1;
    const TensorId map = op.inputs[0];
    const int64_t channels = op.IntAttribute("in_channels", 1);
    const int64_t kernel = op.IntAttribute("kernel_h", 1) * op.IntAttribute("kernel_w", 1);
    const RowWindow window = RowWindowOf(op).value();
    int64_t terms = 1;
    for (const Band& band : bands) {
      const auto [from, to] = window.Inputs(band, HeightOf(map));
      if (Having(map, from, to)) return 1;
      const Bytes held =
          channels_[Index(map)].empty() ? HeldFor(map, from, to) : ChannelsOf(map, 1);
      const int64_t rows = to - from;
      const auto fits = [&](int64_t count) {
        const int64_t share = (channels + count - 1) / count;
        const Bytes gathered = needs_.Rounded(Bytes(RowsOf(map, rows).count() / channels * share));
        const Bytes weights = needs_.Rounded(Bytes(share * kernel * kElementSize)) +
                              needs_.Rounded(Bytes(kElementSize));
        const Bytes y = RowsOf(op.outputs[0], band.to - band.from);
        return gathered + std::max(held, y + weights) <= limit_;
      };
      while (terms < channels && !fits(terms)) ++terms;
      if (!fits(terms)) return 1;
    }
    return terms;
  }

  // Adds a convolution's band as the sum over `terms` slices of its input channels, one output
  // channel after the other, because the weights of an output channel lie side by side. The last
  // term adds the bias.
  void AddTerms(const Op& op, const Op& whole, std::pair<int64_t, int64_t> rows, TensorId y,
                int64_t terms) {
    const TensorId map = whole.inputs[0];
    const TensorId weight = whole.inputs[*InputIndex(whole, Role::kWeight)];
    const int64_t channels = whole.IntAttribute("in_channels", 1);
    const int64_t outputs = whole.IntAttribute("out_channels", 1);
    for (int64_t term = 0; term < terms; ++term) {
      const int64_t from = channels * term / terms;
      const int64_t to = channels * (term + 1) / terms;
      const TensorId x = AddMap(fmt::format("{}.x0[channels {}:{}]", op.name, from, to), map,
                                rows.second - rows.first, to - from);
      AddGather(op, map, rows.first, rows.second, x, Slice{from, to});
      for (int64_t k = 0; k < (terms_ == Terms::kAll ? outputs : 1); ++k) {
        Op part = op;
        part.name += fmt::format("[{}:{} of {}:{}]", k, k + 1, from, to);
        part.outputs = {AddChannels(y, k, k + 1)};
        part.inputs = {x, AddPart(weight, k, outputs, Slice{from, to}, channels)};
        const bool last = term + 1 == terms;
        if (last && whole.Flag("bias")) {
          part.inputs.push_back(
              AddPart(whole.inputs[*InputIndex(whole, Role::kBias)], k, outputs, Slice{0, 1}, 1));
        }
        SetAttribute(part, "bias", last && whole.Flag("bias") ? 1 : 0);
        SetAttribute(part, "in_channels", to - from);
        SetAttribute(part, "out_channels", 1);
        part.slots = {ForwardSlot(to_, part)};
        if (term > 0) {
          part.inputs.push_back(part.outputs[0]);
          part.attributes.push_back({"accumulate", 1});
          part.recomputable = false;
        }
        to_.ops.push_back(std::move(part));
      }
    }
  }

  // Returns the part of an output channel's parameters for some input channels.
  TensorId AddPart(TensorId of, int64_t output, int64_t outputs, Slice inputs, int64_t channels) {
    Tensor part = from_.tensor(of);
    const Bytes channel(part.size.count() / outputs / channels);
    part.name += fmt::format("[{}:{} of {}:{}]", output, output + 1, inputs.from, inputs.to);
    const auto [known, is_new] =
        views_.try_emplace(part.name, static_cast<TensorId>(to_.tensors.size()));
    if (!is_new) return known->second;
    part.shape[0] = 1;
    if (part.shape.size() > 1) part.shape[1] = inputs.size();
    part.size = channel * inputs.size();
    part.part_of = of;
    part.offset = channel * (output * channels + inputs.from);
    to_.tensors.push_back(std::move(part));
    return known->second;
  }

  // Returns a view of some channels. All readers of a band share one view.
  TensorId AddChannels(TensorId of, int64_t from, int64_t to) {
    Tensor view = to_.tensor(of);
    const Bytes channel(view.size.count() / view.shape[1]);
    view.name += fmt::format("[channels {}:{}]", from, to);
    const auto [known, is_new] =
        views_.try_emplace(view.name, static_cast<TensorId>(to_.tensors.size()));
    if (!is_new) return known->second;
    view.shape[1] = to - from;
    view.size = channel * (to - from);
    view.alias_of = of;
    view.offset = channel * from;
    to_.tensors.push_back(std::move(view));
    return known->second;
  }

  // Adds a map with `rows` rows and `channels` channels, or all channels, otherwise like `like`.
  TensorId AddMap(std::string name, TensorId like, int64_t rows,
                  std::optional<int64_t> channels = std::nullopt) {
    Tensor map = from_.tensor(like);
    map.name = std::move(name);
    map.kind = TensorKind::kActivation;
    map.size = Bytes(map.size.count() / HeightOf(like) * rows);
    map.shape[2] = rows;
    if (channels) {
      map.size = Bytes(map.size.count() / map.shape[1] * *channels);
      map.shape[1] = *channels;
    }
    map.alias_of = std::nullopt;
    map.offset = Bytes(0);
    to_.tensors.push_back(std::move(map));
    return static_cast<TensorId>(to_.tensors.size() - 1);
  }

  // Adds ops that gather rows [from, to) of a map for `user` in `into`: of all channels, or of the
  // channels `of`.
  void AddGather(const Op& user, TensorId map, int64_t from, int64_t to, TensorId into,
                 std::optional<Slice> of = std::nullopt) {
    const std::vector<TensorId>& channels = channels_[Index(map)];
    const Slice slice = of.value_or(Slice{0, static_cast<int64_t>(channels.size())});
    for (int64_t c = slice.from; c < slice.to && !channels.empty(); ++c) {
      Gather(user, {{0, HeightOf(map), channels[static_cast<size_t>(c)]}}, from, to,
             AddChannels(into, c - slice.from, c - slice.from + 1));
    }
    if (!channels.empty()) return;
    std::vector<Band> sources = SourcesOf(map, from, to);
    if (of) {
      for (Band& band : sources) band.tensor = AddChannels(band.tensor, of->from, of->to);
    }
    Gather(user, sources, from, to, into);
  }
  void Gather(const Op& user, const std::vector<Band>& sources, int64_t from, int64_t to,
              TensorId into) {
    const auto number = [](int64_t value) { return static_cast<double>(value); };
    Op gather;
    gather.name = fmt::format("{}.rows", to_.tensor(into).name);
    gather.layer = user.layer;
    gather.type = OpType::kRows;
    gather.attributes = {{"channels", number(to_.tensor(into).shape[1])},
                         {"width", number(to_.tensor(into).shape[3])},
                         {"first_row", number(from - sources.front().from)},
                         {"height", number(to - from)},
                         {"parts", number(static_cast<int64_t>(sources.size()))}};
    for (size_t i = 0; i < sources.size(); ++i) {
      gather.inputs.push_back(sources[i].tensor);
      gather.attributes.push_back(
          {fmt::format("height_{}", i), number(sources[i].to - sources[i].from)});
    }
    gather.attributes.push_back({"lowest", user.type == OpType::kMaxPool2d ? 1.0 : 0.0});
    gather.outputs = {into};
    gather.recomputable = true;
    gather.slots = {ForwardSlot(to_, gather)};
    gather.slots[0].traffic = 2 * to_.tensor(into).size;  // only these rows are read
    to_.ops.push_back(std::move(gather));
  }

  void AddBand(const Op& op, Band band, int64_t terms) {
    const RowWindow window = RowWindowOf(op).value();
    const TensorId y = op.outputs[0];
    const int64_t rows = band.to - band.from;
    Op part = op;
    part.name = fmt::format("{}[rows {}:{}]", op.name, band.from, band.to);
    band.tensor =
        AddMap(fmt::format("{}[rows {}:{}]", from_.tensor(y).name, band.from, band.to), y, rows);
    bands_[Index(y)].push_back(band);
    part.outputs = {band.tensor};
    SetAttribute(part, window.single ? "height" : "out_height", rows);
    const std::vector<int64_t>& shape = to_.tensor(band.tensor).shape;
    SetAttribute(part, "elements", shape[1] * shape[2] * shape[3]);
    const auto [first, end] = window.Inputs(band, HeightOf(op.inputs[0]));
    if (!window.single) {
      SetAttribute(part, "in_height", end - first);
      SetAttribute(part, "pad_h", 0);
      if (PoolInChannels(part, first, end, band.tensor)) return;
      if (terms > 1) return AddTerms(part, op, {first, end}, band.tensor, terms);
    }
    for (size_t i = 0; i < part.inputs.size(); ++i) {
      const TensorId map = op.inputs[i];
      if (!IsMap(map)) continue;
      const bool in_place = from_.tensor(y).alias_of == map && !bands_[Index(map)].empty();
      part.inputs[i] = RowsFor(op, i, first, end);
      if (in_place) to_.tensors[Index(band.tensor)].alias_of = part.inputs[i];
    }
    part.slots = {ForwardSlot(to_, part)};
    to_.ops.push_back(std::move(part));
  }

  // Returns the tensor that has exactly the rows [from, to) of a map, the map itself or a band, or
  // nullopt if there is none.
  std::optional<TensorId> Having(TensorId map, int64_t from, int64_t to) const {
    const bool is_whole = bands_[Index(map)].empty() && channels_[Index(map)].empty();
    if (is_whole && from == 0 && to == HeightOf(map)) return map;
    for (const Band& band : bands_[Index(map)]) {
      if (band.from == from && band.to == to) return band.tensor;
    }
    return std::nullopt;
  }

  // Returns a tensor that has exactly the rows [from, to) of an input of the op. If there is none,
  // adds one and gathers the rows.
  TensorId RowsFor(const Op& op, size_t input, int64_t from, int64_t to) {
    const TensorId map = op.inputs[input];
    if (const auto rows = Having(map, from, to)) return *rows;
    const TensorId gathered =
        AddMap(fmt::format("{}.x{}[rows {}:{}]", op.name, input, from, to), map, to - from);
    AddGather(op, map, from, to, gathered);
    return gathered;
  }

  const Trace& from_;
  const OpNeeds needs_;
  const Bytes limit_;
  const Terms terms_;
  Trace to_;
  // By tensor of the undivided trace. A tensor for which both are empty is whole.
  std::vector<std::vector<Band>> bands_;
  std::vector<std::vector<TensorId>> channels_;  // the channels of an image
  std::map<std::string, TensorId> views_;        // views of channels, and parts, by name
};

}  // namespace

std::optional<Bytes> LeastInBands(const Trace& trace, const Op& op) {
  const std::optional<RowWindow> window = RowWindowOf(op);
  if (!window) return std::nullopt;
  Bytes least;
  for (const TensorId input : op.inputs) {
    const Tensor& map = trace.tensor(input);
    // An image is not counted, because it may come channel by channel.
    if (map.kind != TensorKind::kActivation || map.shape.size() != 4) continue;
    const int64_t height = std::max<int64_t>(map.shape[2], 1);
    const int64_t rows = std::clamp<int64_t>(window->kernel - window->pad, 1, height);
    least = std::max(least, Bytes(map.size.count() / height * rows));
  }
  return least;
}

Trace DivideIntoBands(const Trace& trace, Bytes limit, Bytes alignment, Terms terms) {
  return BandDivider(trace, limit, alignment, terms).Run();
}

}  // namespace spillway::policies
