// Turns values into bytes and back, for two processes of one program on one machine.
//
// Values are trivially copyable types, texts, vectors and optionals of values, and classes with a
// function `Fields(archive, object)` that calls `archive(member...)`. The bytes have no version and
// no byte order of their own, so they never go to a file that outlives the processes.

#ifndef SPILLWAY_EXPERIMENTS_RUN_ARCHIVE_H_
#define SPILLWAY_EXPERIMENTS_RUN_ARCHIVE_H_

#include <cstdint>
#include <cstring>
#include <string>
#include <type_traits>
#include <utility>

#include "traces/base/error.h"

namespace spillway::lab {

class Archive {
 public:
  // Returns the bytes of the values.
  template <typename... T>
  static std::string Save(const T&... values) {
    Archive archive;
    archive.saving_ = true;
    archive(const_cast<T&>(values)...);  // saving only reads them
    return std::move(archive.bytes_);
  }

  // Sets the values from the bytes that `Save` made of values of the same types. Throws
  // `PolicyError` if the bytes end too early.
  template <typename... T>
  static void Load(std::string bytes, T&... values) {
    Archive archive;
    archive.bytes_ = std::move(bytes);
    archive(values...);
  }

  template <typename... T>
  void operator()(T&... values) {
    (Pass(values), ...);
  }

 private:
  template <typename T>
  void Pass(T& value) {
    if constexpr (std::is_trivially_copyable_v<T>) {
      Raw(&value, sizeof(value));
    } else if constexpr (requires { value.resize(0); }) {
      uint64_t size = value.size();
      Pass(size);
      if (!saving_) {
        Need(size);  // every element takes a byte or more
        value.resize(size);
      }
      if constexpr (std::is_trivially_copyable_v<typename T::value_type>) {
        Raw(value.data(), size * sizeof(typename T::value_type));
      } else {
        for (auto& element : value) Pass(element);
      }
    } else if constexpr (requires { value.has_value(); }) {
      bool has = value.has_value();
      Pass(has);
      if (!has) return value.reset();
      if (!saving_) value.emplace();
      Pass(*value);
    } else {
      Fields(*this, value);
    }
  }

  void Raw(void* data, size_t size) {
    if (size == 0) return;
    if (saving_) {
      bytes_.append(static_cast<const char*>(data), size);
      return;
    }
    Need(size);
    std::memcpy(data, bytes_.data() + at_, size);
    at_ += size;
  }

  void Need(uint64_t size) const {
    if (size > bytes_.size() - at_) throw PolicyError("the result of a process is damaged");
  }

  bool saving_ = false;
  std::string bytes_;
  size_t at_ = 0;  // where reading goes on
};

}  // namespace spillway::lab

#endif  // SPILLWAY_EXPERIMENTS_RUN_ARCHIVE_H_
