#include "traces/base/safetensors.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <simdjson.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <optional>
#include <utility>

#include "traces/base/error.h"
#include "traces/base/json.h"
#include "traces/base/json_writer.h"

namespace spillway::traces {
namespace {

constexpr uint64_t kLongestHeader = uint64_t{16} << 20;

// Each element type and its size in bytes.
constexpr std::array<std::pair<std::string_view, uint64_t>, 15> kTypes{{{"BOOL", 1},
                                                                        {"U8", 1},
                                                                        {"I8", 1},
                                                                        {"F8_E5M2", 1},
                                                                        {"F8_E4M3", 1},
                                                                        {"I16", 2},
                                                                        {"U16", 2},
                                                                        {"F16", 2},
                                                                        {"BF16", 2},
                                                                        {"I32", 4},
                                                                        {"U32", 4},
                                                                        {"F32", 4},
                                                                        {"F64", 8},
                                                                        {"I64", 8},
                                                                        {"U64", 8}}};

class HeaderReader {
 public:
  HeaderReader(std::span<const std::byte> file, const std::string& origin)
      : file_(file), origin_(origin) {}

  StoredTensors Read() {
    uint64_t length = 0;
    if (file_.size() < sizeof(length))
      Fail("this is not a safetensors file: it has less than 8 bytes");
    std::memcpy(&length, file_.data(), sizeof(length));  // little-endian, like this machine
    if (length > kLongestHeader || length > file_.size() - sizeof(length)) {
      Fail(fmt::format(
          "this is not a safetensors file, or it was cut off: its header has {} bytes, but at "
          "most {} are allowed and {} are in the file",
          length, kLongestHeader, file_.size() - sizeof(length)));
    }
    data_ = file_.subspan(sizeof(length) + length);
    simdjson::dom::parser parser;
    simdjson::dom::object root;
    const simdjson::padded_string text(reinterpret_cast<const char*>(file_.data()) + sizeof(length),
                                       length);
    const auto error = parser.parse(text).get_object().get(root);
    if (error) Fail(fmt::format("bad header: {}", simdjson::error_message(error)));
    for (const auto [name, value] : root) {
      if (name != "__metadata__") ReadTensor(std::string(name), value);
    }
    CheckCover();
    return std::move(tensors_);
  }

 private:
  [[noreturn]] void Fail(const std::string& what) const {
    throw InputError(fmt::format("{}: {}", origin_, what));
  }
  [[noreturn]] void FailAt(std::string_view name, const std::string& what) const {
    Fail(fmt::format("tensor '{}': {}", JsonExcerpt(name), what));
  }

  void ReadTensor(std::string name, simdjson::dom::element value) {
    const auto need = [&](auto result, std::string_view what) {
      typename std::remove_cvref_t<decltype(result.value_unsafe())> got;
      if (std::move(result).get(got)) FailAt(name, fmt::format("expected {}", what));
      return got;
    };
    const std::string_view type = need(value["dtype"].get_string(), "a string 'dtype'");
    const auto known =
        std::ranges::find(kTypes, type, &std::pair<std::string_view, uint64_t>::first);
    if (known == kTypes.end()) {
      std::vector<std::string> names;
      for (const auto& [valid, size] : kTypes) names.emplace_back(valid);
      FailAt(name, UnknownName("dtype", JsonExcerpt(type), names));
    }
    StoredTensor tensor;
    tensor.type = type;
    uint64_t size = known->second;
    for (const auto extent : need(value["shape"].get_array(), "an array 'shape'")) {
      const int64_t count = need(extent.get_int64(), "integers in 'shape'");
      if (count < 0) FailAt(name, "a negative extent in 'shape'");
      if (__builtin_mul_overflow(size, static_cast<uint64_t>(count), &size)) {
        FailAt(name, "the shape is too large");
      }
      tensor.shape.push_back(count);
    }
    std::vector<uint64_t> offsets;
    for (const auto offset : need(value["data_offsets"].get_array(), "an array 'data_offsets'")) {
      offsets.push_back(need(offset.get_uint64(), "integers from 0 in 'data_offsets'"));
    }
    if (offsets.size() != 2 || offsets[0] > offsets[1] || offsets[1] > data_.size()) {
      FailAt(name, fmt::format("expected data_offsets [begin, end] in the file's {} bytes of data",
                               data_.size()));
    }
    if (offsets[1] - offsets[0] != size) {
      FailAt(name,
             fmt::format("has {} bytes, but its shape needs {}", offsets[1] - offsets[0], size));
    }
    tensor.bytes = data_.subspan(offsets[0], size);
    const auto [at, is_new] = tensors_.emplace(std::move(name), std::move(tensor));
    if (!is_new) FailAt(at->first, "occurs twice in the header");
  }

  // Checks that the tensors cover the data without gaps and overlaps.
  void CheckCover() const {
    std::vector<std::pair<const std::byte*, const StoredTensors::value_type*>> order;
    for (const auto& entry : tensors_) order.emplace_back(entry.second.bytes.data(), &entry);
    std::ranges::sort(order, {}, [](const auto& item) {
      return std::pair(item.first, item.second->second.bytes.size());
    });
    const std::byte* end = data_.data();
    for (const auto& [begin, entry] : order) {
      if (begin != end)
        FailAt(entry->first, "its data overlap another tensor's or leave a gap before them");
      end = begin + entry->second.bytes.size();
    }
    if (end != data_.data() + data_.size()) {
      Fail(fmt::format("{} bytes at the end belong to no tensor",
                       data_.data() + data_.size() - end));
    }
  }

  const std::span<const std::byte> file_;
  const std::string& origin_;
  std::span<const std::byte> data_;
  StoredTensors tensors_;
};

}  // namespace

StoredTensors ParseSafetensors(std::span<const std::byte> file, const std::string& origin) {
  return HeaderReader(file, origin).Read();
}

std::string FormatSafetensors(const StoredTensors& tensors) {
  JsonWriter json(/*spread=*/0);
  json.BeginObject();
  uint64_t end = 0;
  for (const auto& [name, tensor] : tensors) {
    json.Key(name).BeginObject().Put("dtype", tensor.type).Key("shape").BeginArray();
    for (const int64_t extent : tensor.shape) json.Put(extent);
    json.EndArray().Key("data_offsets").BeginArray().Put(end);
    end += tensor.bytes.size();
    json.Put(end).EndArray().EndObject();
  }
  std::string header = json.EndObject().Take();
  header.resize((header.size() + 7) / 8 * 8, ' ');  // the data are aligned
  const uint64_t length = header.size();
  std::string file(reinterpret_cast<const char*>(&length), sizeof(length));
  file.reserve(file.size() + length + end);
  file += header;
  for (const auto& [name, tensor] : tensors) {
    file.append(reinterpret_cast<const char*>(tensor.bytes.data()), tensor.bytes.size());
  }
  return file;
}

SafetensorsFile::SafetensorsFile(const std::filesystem::path& path) : origin_(path.string()) {
  const auto fail = [&](std::string_view what) {
    throw InputError(fmt::format("{}: cannot {}: {}", origin_, what, std::strerror(errno)));
  };
  const int file = open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (file < 0) fail("open it");
  const std::shared_ptr<const int> close_file(&file, [](const int* f) { close(*f); });
  struct stat status {};
  if (fstat(file, &status) != 0) fail("look at it");
  if (!S_ISREG(status.st_mode)) {
    throw InputError(fmt::format("{}: this is not a regular file", origin_));
  }
  const auto size = static_cast<size_t>(status.st_size);
  if (size > 0) {
    void* const data = mmap(nullptr, size, PROT_READ, MAP_PRIVATE, file, 0);
    if (data == MAP_FAILED) fail("map it");
    mapping_ = std::shared_ptr<const std::byte>(
        static_cast<const std::byte*>(data),
        [size](const std::byte* p) { munmap(const_cast<std::byte*>(p), size); });
  }
  tensors_ = ParseSafetensors({mapping_.get(), size}, origin_);
}

}  // namespace spillway::traces
