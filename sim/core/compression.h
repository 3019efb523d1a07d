// How offloaded contents are kept on the host: as they are, in pinned memory, or compressed, in
// pageable memory behind pinned staging buffers (vDNN++, section IV-C).
//
// A property of the run, like the allocator: it lies below the backend interface, so that no policy
// sees it and decisions and placements are those of the run without it. An offloaded storage
// crosses the link in pieces. A piece lands in a staging buffer, is compressed into the pageable
// store by the host's threads, and only then is the buffer free for another piece; on the way back
// pieces are decompressed into staging buffers of their own. Copies wait where the threads do not
// keep up.

#ifndef SPILLWAY_SIM_CORE_COMPRESSION_H_
#define SPILLWAY_SIM_CORE_COMPRESSION_H_

#include <algorithm>
#include <cstdint>
#include <vector>

#include "traces/base/units.h"
#include "traces/trace.h"

namespace spillway {

struct HostCompression {
  std::vector<bool> kept;       // by tensor: whether the storage is kept compressed
  Bytes piece = Bytes::MiB(8);  // of a staging buffer
  int buffers = 4;              // for each direction
  int threads = 8;              // that compress, and as many that decompress
  int fraction = 32;            // memory grows by 1 / (fraction * threads) of a piece

  // For predictions: bytes of the original data per second, of all threads together.
  Bandwidth compress, decompress;
  Duration overhead;  // of each piece: until the threads know of it

  bool Keeps(TensorId storage) const {
    return Index(storage) < kept.size() && kept[Index(storage)];
  }
  Bytes staging() const { return piece * (2 * int64_t{buffers}); }
  int64_t pieces(Bytes size) const {
    return std::max<int64_t>(1, (size.count() + piece.count() - 1) / piece.count());
  }
  // The size of piece `i` of a storage.
  Bytes PieceOf(Bytes size, int64_t i) const {
    const Bytes left = size - piece * i;
    return left < piece ? left : piece;
  }
};

// What compression cost in one iteration.
struct CompressionTimes {
  Duration compress, decompress;  // the threads were at it
  Duration staging;               // copies to the host waited for a staging buffer
  Duration contents;              // copies to the device waited for decompressed contents
};

}  // namespace spillway

#endif  // SPILLWAY_SIM_CORE_COMPRESSION_H_
