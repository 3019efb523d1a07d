#include "experiments/run/given_contents.h"

#include <fmt/format.h>

#include <algorithm>
#include <set>
#include <string_view>

#include "traces/base/error.h"
#include "traces/base/json.h"

namespace spillway {
namespace {

bool IsWeight(const Tensor& tensor) {
  return tensor.kind == TensorKind::kParameter || tensor.kind == TensorKind::kOptimizerState;
}
// Returns true for images. Labels, the other inputs, have one number for each sample.
bool IsImage(const Tensor& tensor) {
  return tensor.kind == TensorKind::kInput && tensor.shape.size() > 1;
}

std::string ShapeText(const std::vector<int64_t>& shape) {
  return fmt::format("[{}]", fmt::join(shape, ", "));
}

void CheckShape(const SafetensorsFile& file, std::string_view name, const StoredTensor& stored,
                const Tensor& tensor) {
  if (stored.type != "F32" || stored.shape != tensor.shape) {
    throw InputError(fmt::format("{}: tensor '{}': is {} {}, expected F32 {}", file.origin(),
                                 JsonExcerpt(name), stored.type, ShapeText(stored.shape),
                                 ShapeText(tensor.shape)));
  }
}

}  // namespace

GivenContents::GivenContents(const std::string& weights, const std::string& images,
                             const Trace& trace) {
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
  const auto image = std::ranges::find_if(trace.tensors, IsImage);
  if (image == trace.tensors.end()) {
    throw InputError(fmt::format("{}: {} reads no image", images_->origin(), trace.name));
  }
  if (images_->tensors().size() != 1) {
    throw InputError(fmt::format("{}: has {} tensors, expected one with all images",
                                 images_->origin(), images_->tensors().size()));
  }
  const auto& [name, stored] = *images_->tensors().begin();
  CheckShape(*images_, name, stored, *image);
}

bool GivenContents::Fill(const Trace& trace, TensorId id, std::span<std::byte> bytes) const {
  const Tensor& tensor = trace.tensor(id);
  const Tensor& whole = tensor.part_of ? trace.tensor(*tensor.part_of) : tensor;
  std::span<const std::byte> from;
  if (weights_ && IsWeight(tensor)) {
    from = weights_->tensors().find(whole.name)->second.bytes;
  } else if (images_ && IsImage(tensor)) {
    from = images_->tensors().begin()->second.bytes;
  } else {
    return false;
  }
  if (tensor.part_of) from = from.subspan(static_cast<size_t>(tensor.offset.count()));
  std::ranges::copy(from.first(bytes.size()), bytes.begin());
  return true;
}

}  // namespace spillway
