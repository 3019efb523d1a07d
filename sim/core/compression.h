// The compression of offloaded contents on the host. Without compression, contents lie unchanged in
// pinned memory. With compression they lie in pageable memory behind pinned staging buffers
// (vDNN++, section IV-C).
//
// Compression is a property of the run, like the allocator. It lies below the backend interface: no
// policy sees it, and decisions and placements are equal to a run without it. An offloaded storage
// crosses the link in pieces. A piece lands in a staging buffer, and the host's threads compress it
// into the pageable store; only then can the buffer take another piece. On the way back, pieces are
// decompressed into separate staging buffers. Copies wait if the threads do not keep up.

#ifndef SPILLWAY_SIM_CORE_COMPRESSION_H_
#define SPILLWAY_SIM_CORE_COMPRESSION_H_

#include <algorithm>
#include <cstdint>
#include <vector>

#include "traces/base/units.h"
#include "traces/trace.h"

namespace spillway::sim {

struct HostCompression {
  std::vector<bool> kept;       // by tensor: true if the storage is kept compressed
  Bytes piece = Bytes::MiB(8);  // size of a staging buffer
  int buffers = 4;              // staging buffers for each direction
  int threads = 8;              // threads that compress; the same number decompresses
  int fraction = 32;            // memory grows in steps of 1 / (fraction * threads) of a piece

  // Used for predictions: original bytes per second, summed over all threads.
  Bandwidth compress, decompress;
  Duration overhead;  // per piece: the time until the threads know that it has arrived

  bool Keeps(TensorId storage) const {
    return Index(storage) < kept.size() && kept[Index(storage)];
  }
  Bytes staging() const { return piece * (2 * int64_t{buffers}); }
  int64_t pieces(Bytes size) const {
    return std::max<int64_t>(1, (size.count() + piece.count() - 1) / piece.count());
  }
  // Returns the size of piece `i` of a storage of `size` bytes.
  Bytes PieceOf(Bytes size, int64_t i) const {
    const Bytes left = size - piece * i;
    return left < piece ? left : piece;
  }
};

// Time that compression took in one iteration.
struct CompressionTimes {
  Duration compress, decompress;  // while the threads worked
  Duration staging;               // while copies to the host waited for a staging buffer
  Duration contents;              // while copies to the device waited for decompressed contents
};

}  // namespace spillway::sim

#endif  // SPILLWAY_SIM_CORE_COMPRESSION_H_
