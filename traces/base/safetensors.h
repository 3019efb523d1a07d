// Named tensors in a file of the format "safetensors": eight bytes that say how long the header is,
// the header, which is JSON, and the data.
//
// The file is mapped, not read: what nobody looks at is not loaded. It must not shrink while it is
// open. Everything that the header says is checked against the file before it is believed.

#ifndef SPILLWAY_TRACES_BASE_SAFETENSORS_H_
#define SPILLWAY_TRACES_BASE_SAFETENSORS_H_

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace spillway {

struct StoredTensor {
  std::string type;  // "F32", as the format names it
  std::vector<int64_t> shape;
  std::span<const std::byte> bytes;  // in the file, dense
};

using StoredTensors = std::map<std::string, StoredTensor, std::less<>>;  // by name

// The tensors of a file in memory. Throws `InputError` that begins with `origin`: a header that is
// cut short, longer than 16 MiB or no JSON, an element type that the format does not have, a tensor
// whose size is not that of its shape, data that overlap, leave a gap or end elsewhere than the
// file.
StoredTensors ParseSafetensors(std::span<const std::byte> file, const std::string& origin);

class SafetensorsFile {
 public:
  // Throws as `ParseSafetensors`, and if the file cannot be mapped.
  explicit SafetensorsFile(const std::filesystem::path& path);

  const std::string& origin() const { return origin_; }
  const StoredTensors& tensors() const { return tensors_; }

 private:
  std::string origin_;
  std::shared_ptr<const std::byte> mapping_;
  StoredTensors tensors_;
};

}  // namespace spillway

#endif  // SPILLWAY_TRACES_BASE_SAFETENSORS_H_
