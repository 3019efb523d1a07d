#include "experiments/run/given_contents.h"

#include <fmt/format.h>

#include <algorithm>
#include <set>
#include <string_view>

#include "traces/base/error.h"
#include "traces/base/json.h"
#include "traces/ops/op_table.h"

namespace spillway {
namespace {

bool IsWeight(const Tensor& tensor) {
  return tensor.kind == TensorKind::kParameter || tensor.kind == TensorKind::kOptimizerState;
}
constexpr std::string_view kLabels = "labels";  // in a file of images

// Returns the name of the trace's labels, or an empty text if it has none.
std::string LabelsOf(const Trace& trace) {
  for (const Op& op : trace.ops) {
    if (const auto labels = FindInput(op, Role::kLabels)) return trace.tensor(*labels).name;
  }
  return {};
}

std::string ShapeText(const std::vector<int64_t>& shape) {
  return fmt::format("[{}]", fmt::join(shape, ", "));
}

void CheckShape(const SafetensorsFile& file, std::string_view name, const StoredTensor& stored,
                const Tensor& tensor, std::string_view type = "F32") {
  if (stored.type != type || stored.shape != tensor.shape) {
    throw InputError(fmt::format("{}: tensor '{}': is {} {}, expected {} {}", file.origin(),
                                 JsonExcerpt(name), stored.type, ShapeText(stored.shape), type,
                                 ShapeText(tensor.shape)));
  }
}

}  // namespace

GivenContents::GivenContents(const std::string& weights, const std::string& images,
                             const Trace& trace)
    : labels_(LabelsOf(trace)) {
  if (!weights.empty()) {
    weights_.emplace(weights);
    CheckWeights(trace);
  }
  if (!images.empty()) {
    images_.emplace(images);
    CheckImages(trace);
  }
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
    CheckShape(*weights_, tensor.name, stored->second, tensor);
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
  for (const auto& [name, stored] : images_->tensors()) {
    if (name == kLabels) {
      const auto wanted = std::ranges::find(trace.tensors, labels_, &Tensor::name);
      if (wanted == trace.tensors.end()) {
        throw InputError(fmt::format("{}: {} reads no labels", images_->origin(), trace.name));
      }
      CheckShape(*images_, name, stored, *wanted, "I32");
    } else {
      CheckShape(*images_, name, stored, *image, image->dtype == DataType::kInt32 ? "I32" : "F32");
    }
  }
}

bool GivenContents::Fill(const Trace& trace, TensorId id, std::span<std::byte> bytes) const {
  const Tensor& tensor = trace.tensor(id);
  const Tensor& whole = tensor.part_of ? trace.tensor(*tensor.part_of) : tensor;
  std::span<const std::byte> from;
  const bool is_weight = IsWeight(tensor);
  const std::optional<SafetensorsFile>& file = is_weight ? weights_ : images_;
  if (!file || (!is_weight && tensor.kind != TensorKind::kInput)) return false;
  const auto stored = std::ranges::find_if(file->tensors(), [&](const auto& entry) {
    if (is_weight) return entry.first == whole.name;
    return (entry.first == kLabels) == (whole.name == labels_);
  });
  if (stored == file->tensors().end()) return false;
  from = stored->second.bytes;
  if (tensor.part_of) from = from.subspan(static_cast<size_t>(tensor.offset.count()));
  std::ranges::copy(from.first(bytes.size()), bytes.begin());
  return true;
}

}  // namespace spillway
