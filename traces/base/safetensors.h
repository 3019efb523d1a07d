// Reads and writes named tensors in a safetensors file: eight bytes with the length of the header,
// the header in JSON, and the data.
//
// The file is mapped, so only the data that is accessed is loaded. The file must not shrink while
// it is open. Everything in the header is checked against the file before it is used.

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

#include "traces/base/namespaces.h"

namespace spillway::traces {

struct StoredTensor {
  std::string type;  // as the format spells it: "F32"
  std::vector<int64_t> shape;
  std::span<const std::byte> bytes;  // in the file, dense
};

using StoredTensors =
    std::map<std::string, StoredTensor, std::less<>>;  // the key is the tensor's name

// Returns the tensors of a file in memory. Throws an `InputError` that begins with `origin` if:
// - the header is cut short, is longer than 16 MiB or is not JSON
// - the format has no such element type
// - the size of a tensor does not match its shape
// - the data of tensors overlap, leave a gap or do not end with the file
StoredTensors ParseSafetensors(std::span<const std::byte> file, const std::string& origin);

// Returns the contents of a file with the tensors, in the order of their names. REQUIRES: the size
// of each tensor matches its type and shape.
std::string FormatSafetensors(const StoredTensors& tensors);

class SafetensorsFile {
 public:
  // Maps the file. Throws the errors of `ParseSafetensors`, and `InputError` if the file cannot be
  // mapped.
  explicit SafetensorsFile(const std::filesystem::path& path);

  const std::string& origin() const { return origin_; }
  const StoredTensors& tensors() const { return tensors_; }

 private:
  std::string origin_;
  std::shared_ptr<const std::byte> mapping_;
  StoredTensors tensors_;
};

}  // namespace spillway::traces

#endif  // SPILLWAY_TRACES_BASE_SAFETENSORS_H_
