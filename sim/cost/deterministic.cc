#include "sim/cost/deterministic.h"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>

#include "traces/base/error.h"

namespace spillway::sim {

std::vector<int64_t> DeterministicCostModel::Batches(const Op& op, size_t slot) const {
  std::vector<int64_t> batches = model_->Batches(op, slot);
  std::erase_if(batches, [&](int64_t batch) {
    return batch != op.batch &&
           std::ranges::none_of(model_->Kernels(op, slot, batch), &Kernel::deterministic);
  });
  return batches;
}

std::span<const Kernel> DeterministicCostModel::Kernels(const Op& op, size_t slot,
                                                        int64_t batch) const {
  const std::span<const Kernel> all = model_->Kernels(op, slot, batch);
  const std::lock_guard lock(mutex_);
  const auto [entry, added] = kept_.try_emplace(all.data());
  std::vector<Kernel>& kernels = entry->second;
  if (added) {
    std::copy_if(all.begin(), all.end(), std::back_inserter(kernels),
                 [](const Kernel& kernel) { return kernel.deterministic; });
  }
  if (kernels.empty()) {
    throw InputError(
        fmt::format("op '{}', slot '{}': no kernel for '{}' at batch {} is "
                    "deterministic",
                    op.name, op.slots[slot].name, op.slots[slot].signature, batch));
  }
  return kernels;
}

Duration DeterministicCostModel::CopyTime(Direction direction, Bytes size) const {
  return model_->CopyTime(direction, size);
}

std::string DeterministicCostModel::Provenance() const {
  return model_->Provenance() + ", deterministic kernels only";
}

}  // namespace spillway::sim
