#include "experiments/run/given_contents.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <set>
#include <string_view>

#include "traces/base/error.h"
#include "traces/base/file.h"
#include "traces/base/json.h"
#include "traces/ops/op_table.h"

namespace spillway::lab {
namespace {

bool IsWeight(const Tensor& tensor) {
  return tensor.kind == TensorKind::kParameter || tensor.kind == TensorKind::kOptimizerState;
}
constexpr std::string_view kMasterSuffix = "_master";  // ends the name of a parameter's master copy
constexpr std::string_view kLabels = "labels";         // in a file of images

// Returns the first op that has an input of the role, or nullptr if none has.
const Op* FindReader(const Trace& trace, Role role) {
  const auto reader = std::ranges::find_if(
      trace.ops, [&](const Op& op) { return FindInput(op, role).has_value(); });
  return reader == trace.ops.end() ? nullptr : &*reader;
}

// Returns the name of the trace's labels, or an empty text if it has none.
std::string LabelsOf(const Trace& trace) {
  const Op* reader = FindReader(trace, Role::kLabels);
  if (reader == nullptr) return {};
  const TensorId storage = trace.Root(*FindInput(*reader, Role::kLabels));
  return trace.tensor(trace.tensor(storage).part_of.value_or(storage)).name;
}

// Returns the name that the safetensors format has for the type.
std::string_view StoredType(DataType type) {
  return type == DataType::kInt32 ? "I32" : type == DataType::kBfloat16 ? "BF16" : "F32";
}

std::string ShapeText(const std::vector<int64_t>& shape) {
  return fmt::format("[{}]", fmt::join(shape, ", "));
}

void CheckShape(const SafetensorsFile& file, std::string_view name, const StoredTensor& stored,
                const std::vector<int64_t>& shape, std::string_view type) {
  if (stored.type != type || stored.shape != shape) {
    throw InputError(fmt::format("{}: tensor '{}': is {} {}, expected {} {}", file.origin(),
                                 JsonExcerpt(name), stored.type, ShapeText(stored.shape), type,
                                 ShapeText(shape)));
  }
}

// Returns the number of batches of the tensor that are stored; 0 if the batch does not divide them.
int64_t BatchesIn(const StoredTensor& stored, const Tensor& tensor) {
  if (stored.shape.empty() || stored.shape.front() % tensor.shape.front() != 0) return 0;
  return stored.shape.front() / tensor.shape.front();
}

}  // namespace

GivenContents::GivenContents(const GivenFiles& files, const Trace& trace)
    : labels_(LabelsOf(trace)) {
  if (!files.weights.empty()) {
    weights_.emplace(files.weights);
    CheckWeights(trace);
  }
  if (!files.images.empty()) {
    images_.emplace(files.images);
    CheckImages(trace);
  }
  if (!files.text.empty()) ReadText(files.text, trace);
}

void GivenContents::CheckWeights(const Trace& trace) const {
  std::set<std::string, std::less<>> known;
  for (const Tensor& tensor : trace.tensors) {
    if (!IsWeight(tensor) || tensor.alias_of || tensor.part_of) continue;
    known.insert(tensor.name);
    const auto stored = weights_->tensors().find(tensor.name);
    if (stored == weights_->tensors().end()) {
      if (trace.training && tensor.kind == TensorKind::kOptimizerState) continue;
      throw InputError(
          fmt::format("{}: there is no tensor '{}', which {} has; are these the weights "
                      "of another network?",
                      weights_->origin(), tensor.name, trace.name));
    }
    CheckShape(*weights_, tensor.name, stored->second, tensor.shape, StoredType(tensor.dtype));
  }
  for (const auto& [name, stored] : weights_->tensors()) {
    if (known.contains(name)) continue;
    throw InputError(
        fmt::format("{}: {} has no tensor '{}'; are these the weights of another "
                    "network?",
                    weights_->origin(), trace.name, JsonExcerpt(name)));
  }
}

void GivenContents::CheckImages(const Trace& trace) const {
  const auto image = std::ranges::find_if(trace.tensors, [&](const Tensor& tensor) {
    return tensor.kind == TensorKind::kInput && tensor.name != labels_;
  });
  if (image == trace.tensors.end()) {
    throw InputError(fmt::format("{}: {} reads no image", images_->origin(), trace.name));
  }
  const size_t labels = images_->tensors().count(std::string(kLabels));
  if (images_->tensors().size() != 1 + labels) {
    throw InputError(
        fmt::format("{}: has {} tensors, expected one with all images, and none or one "
                    "called '{}'",
                    images_->origin(), images_->tensors().size(), kLabels));
  }
  int64_t batches = 0;
  for (const auto& [name, stored] : images_->tensors()) {
    auto wanted = image;
    if (name == kLabels) {
      wanted = std::ranges::find(trace.tensors, labels_, &Tensor::name);
      if (wanted == trace.tensors.end()) {
        throw InputError(fmt::format("{}: {} reads no labels", images_->origin(), trace.name));
      }
    }
    const bool is_first = batches == 0;
    if (is_first) batches = std::max<int64_t>(BatchesIn(stored, *wanted), 1);
    std::vector<int64_t> shape = wanted->shape;
    shape.front() *= batches;
    const bool integers = name == kLabels || wanted->dtype == DataType::kInt32;
    CheckShape(*images_, name, stored, shape, integers ? "I32" : "F32");
  }
}

void GivenContents::ReadText(const std::string& path, const Trace& trace) {
  const Op* const embedding = FindReader(trace, Role::kIndices);
  if (embedding == nullptr) {
    throw InputError(fmt::format("{}: {} reads images, not text", path, trace.name));
  }
  text_ = ReadFile(path);
  if (text_.empty()) throw InputError(fmt::format("{}: the file is empty", path));
  const int64_t vocabulary = embedding->IntAttribute("vocabulary", 1);
  const auto strange = std::ranges::find_if(
      text_, [&](char byte) { return static_cast<unsigned char>(byte) >= vocabulary; });
  if (strange != text_.end()) {
    throw InputError(fmt::format("{}: byte {} is {}, but the vocabulary of {} has only {} tokens",
                                 path, strange - text_.begin(),
                                 static_cast<unsigned char>(*strange), trace.name, vocabulary));
  }
}

bool GivenContents::Fill(const Trace& trace, TensorId id, int64_t iteration,
                         std::span<std::byte> bytes) const {
  const Tensor& tensor = trace.tensor(id);
  const Tensor& whole = tensor.part_of ? trace.tensor(*tensor.part_of) : tensor;
  const bool is_weight = IsWeight(tensor);
  if (!is_weight && tensor.kind != TensorKind::kInput) return false;
  const int64_t offset = tensor.part_of ? tensor.offset.count() : 0;
  if (!is_weight && !text_.empty()) {
    const int64_t first = (iteration * whole.size.count() + offset) / int64_t{sizeof(int32_t)} +
                          (whole.name == labels_ ? 1 : 0);
    for (size_t i = 0; i < bytes.size() / sizeof(int32_t); ++i) {
      const int32_t token =
          static_cast<unsigned char>(text_[(static_cast<size_t>(first) + i) % text_.size()]);
      std::memcpy(bytes.data() + i * sizeof(token), &token, sizeof(token));
    }
    return true;
  }
  const std::optional<SafetensorsFile>& file = is_weight ? weights_ : images_;
  if (!file) return false;
  const auto stored = std::ranges::find_if(file->tensors(), [&](const auto& entry) {
    if (is_weight) return entry.first == whole.name;
    return (entry.first == kLabels) == (whole.name == labels_);
  });
  if (stored == file->tensors().end()) return is_weight && FillMaster(whole.name, bytes);
  const int64_t batch = is_weight ? 0 : iteration % BatchesIn(stored->second, whole);
  const auto from = static_cast<size_t>(batch * whole.size.count() + offset);
  std::ranges::copy(stored->second.bytes.subspan(from, bytes.size()), bytes.begin());
  return true;
}

bool GivenContents::FillMaster(std::string_view name, std::span<std::byte> bytes) const {
  if (!name.ends_with(kMasterSuffix)) return false;
  name.remove_suffix(kMasterSuffix.size());
  const std::span<const std::byte> parameter = weights_->tensors().find(name)->second.bytes;
  for (size_t i = 0; i < parameter.size() / 2; ++i) {  // bfloat16 is the upper half of float32
    std::memset(bytes.data() + 4 * i, 0, 2);
    std::memcpy(bytes.data() + 4 * i + 2, parameter.data() + 2 * i, 2);
  }
  return true;
}

std::string FormatWeights(const Trace& trace, std::string_view contents) {
  StoredTensors tensors;
  size_t at = 0;
  for (const Tensor& tensor : trace.tensors) {
    if (!IsWeight(tensor) || tensor.alias_of || tensor.part_of) continue;
    const auto size = static_cast<size_t>(tensor.size.count());
    SPILLWAY_CHECK(at + size <= contents.size());
    tensors[tensor.name] = {std::string(StoredType(tensor.dtype)), tensor.shape,
                            std::as_bytes(std::span(contents.substr(at, size)))};
    at += size;
  }
  return FormatSafetensors(tensors);
}

}  // namespace spillway::lab
