// The contents of a storage, compressed in the pieces in which they crossed the link.

#ifndef SPILLWAY_SIM_COMPRESSION_PIECES_H_
#define SPILLWAY_SIM_COMPRESSION_PIECES_H_

#include <cstddef>
#include <span>
#include <vector>

#include "sim/compression/zero_value.h"
#include "sim/core/executor.h"

namespace spillway::sim {

using CompressedPieces = std::vector<CompressedData>;

// Returns the size and density of the compressed storage.
StoredContents Describe(TensorId storage, const CompressedPieces& pieces);

// Decompresses as many bytes as `out` has room for, through `buffer`, which has room for any piece.
// Throws like `ZeroValueCodec::Decompress`.
void Decompress(const CompressedPieces& pieces, ZeroValueCodec& codec, std::span<std::byte> buffer,
                std::span<std::byte> out);

}  // namespace spillway::sim

#endif  // SPILLWAY_SIM_COMPRESSION_PIECES_H_
