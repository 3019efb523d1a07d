// Fuzz target: the reader of safetensors files.
//
// The tensors of an accepted file lie within the file, have the sizes of their shapes and do not
// overlap. Together with the header they fill the file.

#include "traces/base/safetensors.h"

#include <span>

#include "tests/fuzz/property.h"

namespace spillway::fuzz {
namespace {

void CheckTensors(const StoredTensors& tensors, std::span<const std::byte> file) {
  size_t data = 0;
  for (const auto& [name, tensor] : tensors) {
    if (!tensor.bytes.empty()) {
      SPILLWAY_CHECK(tensor.bytes.data() >= file.data());
      SPILLWAY_CHECK(tensor.bytes.data() + tensor.bytes.size() <= file.data() + file.size());
    }
    data += tensor.bytes.size();
    bool empty = false;
    for (const int64_t extent : tensor.shape) {
      SPILLWAY_CHECK(extent >= 0);
      empty |= extent == 0;
    }
    SPILLWAY_CHECK(empty == tensor.bytes.empty());
  }
  SPILLWAY_CHECK(data < file.size());
}

}  // namespace
}  // namespace spillway::fuzz

int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace spillway::fuzz;
  const std::span file(reinterpret_cast<const std::byte*>(data), size);
  StoredTensors tensors;
  if (!Accepts("w.safetensors", "", [&] { tensors = ParseSafetensors(file, "w.safetensors"); })) {
    return 0;
  }
  CheckTensors(tensors, file);
  return 0;
}
