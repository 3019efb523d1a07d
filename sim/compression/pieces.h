// The contents of a storage, compressed piece by piece as they crossed the link.

#ifndef SPILLWAY_SIM_COMPRESSION_PIECES_H_
#define SPILLWAY_SIM_COMPRESSION_PIECES_H_

#include <cstddef>
#include <span>
#include <vector>

#include "sim/compression/zero_value.h"
#include "sim/core/executor.h"

namespace spillway {

using CompressedPieces = std::vector<CompressedData>;

// What is kept of the storage.
StoredContents Describe(TensorId storage, const CompressedPieces& pieces);

// Decompresses as much as `out` has room for, through a buffer that has room for any of the pieces.
// Throws as `ZeroValueCodec::Decompress`.
void Decompress(const CompressedPieces& pieces, ZeroValueCodec& codec, std::span<std::byte> buffer,
                std::span<std::byte> out);

}  // namespace spillway

#endif  // SPILLWAY_SIM_COMPRESSION_PIECES_H_
