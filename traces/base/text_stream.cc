#include "traces/base/text_stream.h"

#include <fmt/format.h>
#include <sys/stat.h>
#include <zlib.h>
#include <zstd.h>

#include <array>
#include <cerrno>
#include <cstdio>
#include <system_error>
#include <utility>
#include <vector>

#include "traces/base/error.h"

namespace spillway::traces {
namespace {

constexpr size_t kPiece = size_t{1} << 20;
constexpr std::array<unsigned char, 4> kZstdMagic{0x28, 0xb5, 0x2f, 0xfd};

std::string ErrnoText(int code) { return std::generic_category().message(code); }

}  // namespace

class TextStream::Decoder {
 public:
  virtual ~Decoder() = default;
  // Fills `piece`, which has `kPiece` bytes, and returns the number of bytes read; 0 at the end.
  virtual size_t Read(char* piece) = 0;
};

// Reads gzip data. zlib passes on data that is not compressed.
class TextStream::Gzip final : public Decoder {
 public:
  explicit Gzip(const std::string& path) : path_(path), file_(gzopen(path.c_str(), "rb")) {
    if (file_ == nullptr) {
      throw InputError(fmt::format("cannot read '{}': {}", path, ErrnoText(errno)));
    }
    gzbuffer(file_, 1 << 18);
  }
  Gzip(const Gzip&) = delete;
  Gzip& operator=(const Gzip&) = delete;
  ~Gzip() override { gzclose(file_); }

  size_t Read(char* piece) override {
    const int got = gzread(file_, piece, static_cast<unsigned>(kPiece));
    int error = Z_OK;
    const char* const reason = gzerror(file_, &error);
    if (got < 0 || error != Z_OK) {
      throw InputError(
          error == Z_BUF_ERROR
              ? fmt::format("{}: the gzip data end too early: was the file cut off?", path_)
              : fmt::format("{}: not valid gzip: {}", path_, reason));
    }
    return static_cast<size_t>(got);
  }

 private:
  const std::string path_;
  const gzFile file_;
};

class TextStream::Zstandard final : public Decoder {
 public:
  explicit Zstandard(const std::string& path)
      : path_(path),
        file_(std::fopen(path.c_str(), "rb"), &std::fclose),
        stream_(ZSTD_createDStream(), &ZSTD_freeDStream),
        raw_(ZSTD_DStreamInSize()) {
    if (file_ == nullptr) {
      throw InputError(fmt::format("cannot read '{}': {}", path, ErrnoText(errno)));
    }
  }

  size_t Read(char* piece) override {
    ZSTD_outBuffer out{piece, kPiece, 0};
    while (out.pos < out.size) {
      if (in_.pos == in_.size) {
        in_ = {raw_.data(), std::fread(raw_.data(), 1, raw_.size(), file_.get()), 0};
        if (in_.size == 0) {
          if (pending_) {
            throw InputError(
                fmt::format("{}: the Zstandard data end too early: was the file cut off?", path_));
          }
          break;
        }
      }
      const size_t left = ZSTD_decompressStream(stream_.get(), &out, &in_);
      if (ZSTD_isError(left)) {
        throw InputError(
            fmt::format("{}: not valid Zstandard: {}", path_, ZSTD_getErrorName(left)));
      }
      pending_ = left != 0;
    }
    return out.pos;
  }

 private:
  const std::string path_;
  const std::unique_ptr<std::FILE, int (*)(std::FILE*)> file_;
  const std::unique_ptr<ZSTD_DStream, size_t (*)(ZSTD_DStream*)> stream_;
  std::vector<char> raw_;
  ZSTD_inBuffer in_{nullptr, 0, 0};
  bool pending_ = false;  // in the middle of a frame
};

TextStream::TextStream(const std::filesystem::path& path) : origin_(path.string()) {
  struct stat status {};
  const int error = ::stat(path.c_str(), &status) != 0 ? errno
                    : S_ISDIR(status.st_mode)          ? EISDIR
                                                       : 0;
  if (error != 0) {
    throw InputError(fmt::format("cannot read '{}': {}", origin_, ErrnoText(error)));
  }
  std::array<unsigned char, 4> magic{};
  if (const std::unique_ptr<std::FILE, int (*)(std::FILE*)> file(std::fopen(path.c_str(), "rb"),
                                                                 &std::fclose);
      file != nullptr && std::fread(magic.data(), 1, magic.size(), file.get()) == magic.size() &&
      magic == kZstdMagic) {
    decoder_ = std::make_unique<Zstandard>(origin_);
  } else {
    decoder_ = std::make_unique<Gzip>(origin_);
  }
}

TextStream::TextStream(std::string text, std::string origin)
    : origin_(std::move(origin)), given_(std::move(text)) {}

TextStream::~TextStream() = default;

bool TextStream::Read(std::string& text) {
  if (decoder_ == nullptr) {
    text += given_;
    return !std::exchange(given_, {}).empty();
  }
  const size_t before = text.size();
  text.resize(before + kPiece);
  const size_t got = decoder_->Read(text.data() + before);
  text.resize(before + got);
  return got > 0;
}

}  // namespace spillway::traces
