#include "traces/base/file.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>
#include <zlib.h>
#include <zstd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdio>
#include <memory>
#include <new>
#include <system_error>
#include <utility>

#include "traces/base/error.h"

namespace spillway::traces {
namespace {

constexpr std::string_view kZstdMagic("\x28\xb5\x2f\xfd", 4);
constexpr std::string_view kGzipMagic("\x1f\x8b", 2);
constexpr int kCompressionLevel = 9;
// The largest ratio of decompressed to compressed size, for contents above kAlwaysAllowed. The
// trace of vgg416:32 reaches 50.
constexpr int64_t kMaxRatio = 1000;
constexpr Bytes kAlwaysAllowed = Bytes::MiB(16);

std::string ErrnoText(int code) { return std::generic_category().message(code); }

// An open file descriptor.
class Descriptor {
 public:
  explicit Descriptor(int fd) : fd_(fd) {}
  Descriptor(const Descriptor&) = delete;
  Descriptor& operator=(const Descriptor&) = delete;
  ~Descriptor() {
    if (fd_ >= 0) ::close(fd_);
  }
  int get() const { return fd_; }

 private:
  int fd_;
};

[[noreturn]] void FailTooLarge(const std::filesystem::path& path, Bytes limit) {
  throw InputError(fmt::format("{}: the contents exceed {}", path.string(), FormatBytes(limit)));
}

std::string ReadRaw(const std::filesystem::path& path, Bytes limit) {
  const auto fail = [&](int code) {
    throw InputError(fmt::format("cannot read '{}': {}", path.string(), ErrnoText(code)));
  };
  const Descriptor file(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  if (file.get() < 0) fail(errno);
  struct stat status {};
  if (::fstat(file.get(), &status) != 0) fail(errno);
  if (S_ISDIR(status.st_mode)) {
    throw InputError(fmt::format("cannot read '{}': it is a directory", path.string()));
  }
  std::string contents;
  if (status.st_size > 0 && status.st_size <= limit.count()) {
    contents.reserve(static_cast<size_t>(status.st_size));
  }
  std::array<char, 1 << 16> buffer;
  while (true) {
    const ssize_t count = ::read(file.get(), buffer.data(), buffer.size());
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) fail(errno);
    if (count == 0) return contents;
    if (contents.size() + static_cast<size_t>(count) > static_cast<size_t>(limit.count())) {
      FailTooLarge(path, limit);
    }
    contents.append(buffer.data(), static_cast<size_t>(count));
  }
}

// Memory grows with the data that is really there: the sizes that the frame announces are not
// trusted. The ratio to the compressed size is also limited, because a Zstandard block of zeros
// takes four bytes whatever its size.
std::string Decompress(std::string_view compressed, const std::filesystem::path& path,
                       Bytes limit) {
  const auto fail = [&](std::string_view what) {
    throw InputError(fmt::format("{}: {}", path.string(), what));
  };
  const std::unique_ptr<ZSTD_DCtx, decltype(&ZSTD_freeDCtx)> context(ZSTD_createDCtx(),
                                                                     &ZSTD_freeDCtx);
  if (context == nullptr) throw std::bad_alloc();
  const Bytes plausible =
      std::max(kAlwaysAllowed, Bytes(static_cast<int64_t>(compressed.size()) * kMaxRatio));
  std::string contents;
  std::array<char, 1 << 16> buffer;
  ZSTD_inBuffer in{compressed.data(), compressed.size(), 0};
  while (true) {
    ZSTD_outBuffer out{buffer.data(), buffer.size(), 0};
    const size_t state = ZSTD_decompressStream(context.get(), &out, &in);
    if (ZSTD_isError(state)) {
      fail(fmt::format("bad Zstandard data at byte {}: {}", in.pos, ZSTD_getErrorName(state)));
    }
    const auto size = static_cast<int64_t>(contents.size() + out.pos);
    if (size > limit.count()) FailTooLarge(path, limit);
    if (size > plausible.count()) {
      fail(fmt::format("the contents exceed {}, the most that {} of Zstandard data may hold",
                       FormatBytes(plausible),
                       FormatBytes(Bytes(static_cast<int64_t>(compressed.size())))));
    }
    contents.append(buffer.data(), out.pos);
    if (state == 0 && in.pos == in.size) return contents;
    // When the output buffer is full, more output may follow although all input has been read.
    if (in.pos == in.size && out.pos < out.size) fail("the Zstandard data is truncated");
  }
}

std::string Compress(std::string_view contents) {
  const std::unique_ptr<ZSTD_CCtx, decltype(&ZSTD_freeCCtx)> context(ZSTD_createCCtx(),
                                                                     &ZSTD_freeCCtx);
  if (context == nullptr) throw std::bad_alloc();
  ZSTD_CCtx_setParameter(context.get(), ZSTD_c_compressionLevel, kCompressionLevel);
  ZSTD_CCtx_setParameter(context.get(), ZSTD_c_checksumFlag, 1);
  std::string compressed(ZSTD_compressBound(contents.size()), '\0');
  const size_t size = ZSTD_compress2(context.get(), compressed.data(), compressed.size(),
                                     contents.data(), contents.size());
  if (ZSTD_isError(size))
    throw std::bad_alloc();  // the destination is large enough, so only memory can have run out
  compressed.resize(size);
  return compressed;
}

std::string Gunzip(std::string_view compressed, const std::filesystem::path& path, Bytes limit) {
  z_stream stream{};
  if (::inflateInit2(&stream, 16 + MAX_WBITS) != Z_OK) throw std::bad_alloc();
  const std::unique_ptr<z_stream, decltype(&::inflateEnd)> owner(&stream, ::inflateEnd);
  limit = std::min(limit, std::max(kAlwaysAllowed, kMaxRatio * Bytes(std::ssize(compressed))));
  std::string contents;
  std::string buffer(size_t{1} << 18, '\0');
  while (true) {
    // Passes at most 1 GiB at a time, because the counters of zlib have 32 bits.
    stream.next_in = reinterpret_cast<Bytef*>(const_cast<char*>(compressed.data()));
    stream.avail_in = static_cast<uInt>(std::min<size_t>(compressed.size(), size_t{1} << 30));
    const uInt before = stream.avail_in;
    stream.next_out = reinterpret_cast<Bytef*>(buffer.data());
    stream.avail_out = static_cast<uInt>(buffer.size());
    const int code = ::inflate(&stream, Z_NO_FLUSH);
    compressed.remove_prefix(before - stream.avail_in);
    contents.append(buffer, 0, buffer.size() - stream.avail_out);
    if (Bytes(std::ssize(contents)) > limit) FailTooLarge(path, limit);
    if (code == Z_STREAM_END) {
      if (compressed.empty()) return contents;
      if (::inflateReset(&stream) == Z_OK) continue;  // a file may consist of several gzip streams
    }
    if (code != Z_OK) {
      throw InputError(fmt::format("{}: not valid gzip: {}", path.string(),
                                   code == Z_BUF_ERROR ? "truncated"
                                   : stream.msg        ? stream.msg
                                                       : "damaged"));
    }
  }
}

// A temporary file in the directory of the path that `FollowLinks` returns. `Commit` renames it to
// that path; without `Commit` it is removed.
class TemporaryFile {
 public:
  explicit TemporaryFile(const std::filesystem::path& given) : path_(FollowLinks(given)) {
    // Renaming over a device or a pipe would replace the device or pipe.
    std::error_code ignored;
    const auto status = std::filesystem::status(path_, ignored);
    if (std::filesystem::exists(status) && !std::filesystem::is_regular_file(status)) {
      throw InputError(fmt::format(
          "cannot write '{}': it is {}", path_.string(),
          std::filesystem::is_directory(status) ? "a directory" : "not a regular file"));
    }
    for (int attempt = 0; file_ < 0 && attempt < 1000; ++attempt) {
      name_ = path_.parent_path() /
              fmt::format(".{}.{}-{}.tmp", path_.filename().string(), ::getpid(), attempt);
      file_ = ::open(name_.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
      if (file_ < 0 && errno != EEXIST) break;
    }
    if (file_ < 0) Fail(errno);
  }
  TemporaryFile(const TemporaryFile&) = delete;
  TemporaryFile& operator=(const TemporaryFile&) = delete;
  ~TemporaryFile() {
    if (file_ >= 0) ::close(file_);
    if (!committed_) ::unlink(name_.c_str());
  }

  const std::filesystem::path& path() const { return path_; }

  void Write(std::string_view contents) {
    while (!contents.empty()) {
      const ssize_t count = ::write(file_, contents.data(), contents.size());
      if (count < 0 && errno == EINTR) continue;
      if (count < 0) Fail(errno);
      contents.remove_prefix(static_cast<size_t>(count));
    }
  }

  void Commit() {
    if (::close(std::exchange(file_, -1)) != 0) Fail(errno);
    if (::rename(name_.c_str(), path_.c_str()) != 0) Fail(errno);
    committed_ = true;
  }

 private:
  [[noreturn]] void Fail(int code) const {
    throw InputError(fmt::format("cannot write '{}': {}", path_.string(), ErrnoText(code)));
  }

  std::filesystem::path path_;
  std::filesystem::path name_;
  int file_ = -1;
  bool committed_ = false;
};

}  // namespace

std::string ReadFile(const std::filesystem::path& path, Bytes limit) {
  std::string contents = ReadRaw(path, limit);
  if (contents.starts_with(kZstdMagic)) return Decompress(contents, path, limit);
  if (contents.starts_with(kGzipMagic)) {
    return Gunzip(contents, path, limit);
  }
  return contents;
}

std::string_view PlainText(std::string_view contents, const std::string& origin) {
  struct Kind {
    size_t offset;
    std::string_view mark;
    std::string_view name;
  };
  using namespace std::string_view_literals;
  constexpr std::array kKinds{
      Kind{0, "\xff\xfe"sv, "text in UTF-16; save it as UTF-8"},
      Kind{0, "\xfe\xff"sv, "text in UTF-16; save it as UTF-8"},
      Kind{0, "SQLite format 3\0"sv, "an SQLite database, such as Nsight Systems exports"},
      Kind{0, "PK\x03\x04"sv, "a ZIP archive, such as a model of torch.save"},
      Kind{0, "\x80"sv, "a Python pickle; spillway replay reads pickles of memory snapshots"},
      Kind{0, "\x89HDF"sv, "an HDF5 file"},
      Kind{0, "\x93NUMPY"sv, "a NumPy array"},
      Kind{0,
           "\x7f"
           "ELF"sv,
           "a program or a shared object"},
      Kind{0, "GGUF"sv, "a GGUF model"},
      Kind{0, "<!DOCTYPE"sv, "an HTML page"},
      Kind{0, "<!doctype"sv, "an HTML page"},
      Kind{0, "<html"sv, "an HTML page"},
      Kind{8, "{\""sv, "a safetensors model"},
      Kind{23, "brain.Event:"sv, "a TensorBoard event file"},
  };
  for (const Kind& kind : kKinds) {
    if (contents.substr(std::min(kind.offset, contents.size())).starts_with(kind.mark) &&
        (kind.offset == 0 || contents.substr(0, kind.offset).find('\0') != contents.npos)) {
      throw InputError(fmt::format("{}: this is {}", origin, kind.name));
    }
  }
  // A protocol buffer starts with a version, followed by the producer's name. It may be binary or
  // text.
  if (contents.starts_with('\x08') && contents.size() > 2 && contents[1] < 0x20 &&
      (contents[2] == '\x12' || contents[2] == ':')) {
    throw InputError(fmt::format("{}: this is a protocol buffer, such as an ONNX model", origin));
  }
  if (contents.size() > 1 && contents[1] == '\n' &&
      contents.substr(0, 64).find("chakra") != contents.npos) {
    throw InputError(fmt::format("{}: this is a Chakra execution trace", origin));
  }
  if (contents.starts_with("\xef\xbb\xbf")) contents.remove_prefix(3);
  return contents;
}

std::filesystem::path FollowLinks(std::filesystem::path path) {
  constexpr int kMostLinks = 40;
  std::error_code error;
  for (int links = 0; std::filesystem::is_symlink(path, error); ++links) {
    if (links == kMostLinks) {
      throw InputError(fmt::format("cannot write '{}': {}", path.string(), ErrnoText(ELOOP)));
    }
    path = path.parent_path() / std::filesystem::read_symlink(path, error);
  }
  return path;
}

void WriteFile(const std::filesystem::path& path, std::string_view contents) {
  TemporaryFile file(path);
  if (file.path().extension() == ".zst") {
    file.Write(Compress(contents));
  } else {
    file.Write(contents);
  }
  file.Commit();
}

void CheckWritable(const std::filesystem::path& path) { const TemporaryFile file(path); }

}  // namespace spillway::traces
