#include "sim/compression/pieces.h"

#include <algorithm>
#include <cstring>

namespace spillway::sim {

StoredContents Describe(TensorId storage, const CompressedPieces& pieces) {
  StoredContents contents;
  contents.storage = storage;
  int64_t nonzero = 0;
  int64_t words = 0;
  for (const CompressedData& piece : pieces) {
    contents.size += piece.original();
    contents.held += piece.held();
    nonzero += piece.nonzero();
    words += piece.words();
  }
  contents.density = words > 0 ? static_cast<double>(nonzero) / static_cast<double>(words) : 0;
  return contents;
}

void Decompress(const CompressedPieces& pieces, ZeroValueCodec& codec, std::span<std::byte> buffer,
                std::span<std::byte> out) {
  for (const CompressedData& piece : pieces) {
    const auto size = static_cast<size_t>(piece.original().count());
    codec.Decompress(piece, buffer.first(size));
    const size_t wanted = std::min(size, out.size());
    std::memcpy(out.data(), buffer.data(), wanted);
    out = out.subspan(wanted);
    if (out.empty()) return;
  }
}

}  // namespace spillway::sim
