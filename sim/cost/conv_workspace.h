// The workspace that a convolution algorithm of cuDNN needs, by geometry and library generation.
//
// The sizes are exactly the library's where the rule is known. This file does not decide which
// algorithms a device offers. Layouts are NCHW, elements are fp32.

#ifndef SPILLWAY_SIM_COST_CONV_WORKSPACE_H_
#define SPILLWAY_SIM_COST_CONV_WORKSPACE_H_

#include <cstdint>
#include <optional>
#include <string_view>

#include "traces/base/units.h"
#include "traces/trace.h"

namespace spillway::sim {

// Returns an attribute that counts something: `IntAttribute` in [1, 2^31]. Throws `InputError` that
// names op, attribute and value.
int64_t Extent(const Op& op, std::string_view attribute);

// The integers that determine the cost of a conv2d op. Channels are counted per group.
struct ConvShape {
  // Throws `InputError` for an attribute that `Extent` refuses, and for a convolution so large that
  // a workspace formula below would exceed 64 bits.
  explicit ConvShape(const Op& op);

  int64_t c, k, h, w, out_h, out_w, r, s, groups;
  bool unit_stride;
};

// Returns the side of the square frequency planes of the "fft" algorithm.
int64_t FftSide(const ConvShape& conv);

// The number of tiles of an output plane that "fft_tiling" transforms one by one, and the number of
// complex values in the spectrum of one tile. A tile has 32 x 32 real samples, but a row of 32 for
// a 1 x 1 filter.
struct FftTiles {
  int64_t count;
  int64_t spectrum;
};
FftTiles TilesOf(const ConvShape& conv);

// Returns the number of 4 x 4 output tiles into which "winograd_nonfused" cuts an output plane.
int64_t WinogradTiles(const ConvShape& conv);

// Returns 7 for "cuDNN 7.1"; returns 0 for other names.
int LibraryMajor(std::string_view library);

// Returns the workspace that a convolution algorithm of cuDNN 4 to 7 needs for `batch` samples of
// `op`, or nullopt if the algorithm does not apply to the geometry. `slot` is "fwd", "bwd_data" or
// "bwd_filter". In bytes:
//   winograd_nonfused  36 * 4 * (T (C + K) + C K), T = ceil(H / 4) ceil(W / 4) N   3x3, stride 1
//   fft                (C N + K N + C K) P, backward data 2 (K N + C K) P + 4 C K R S
//                      P = n (n / 2 + 1) 8, n = power of two >= H + R - 1   stride 1, n <= 256
//   fft_tiling         like fft with tiles of 32 x 32, a bounded number of tiles at a time
//   gemm               C R S * OH * OW * 4 (one lowered image)
//   winograd           16 * 4 * C K (the transformed filter; an estimate)   3x3, stride 1
//   all others         0
// Source: vDNN++ (the formulas reproduce its Tables II and V), cuDNN's published algorithm list.
std::optional<Bytes> ConvWorkspace(const Op& op, std::string_view slot, std::string_view algorithm,
                                   int64_t batch);

// Returns the workspace in cuDNN 9, or nullopt as `ConvWorkspace` does. The rules were inferred
// from tables recorded with 9.14; experiments/evidence/roofline/README.md gives the number of
// entries that each rule reproduces. In bytes:
//   winograd_nonfused      as in `ConvWorkspace`, with N at least 16 except for bwd_filter
//   fft                    2 max(A, B) P + 4 * extra, n at least 16; A holds the transformed
//                          operands, B the transformed result, extra is a filter or a copy of dy:
//                            fwd         A = C N + C K   B = K N   extra = C K R S
//                            bwd_data    A = K N + C K   B = C N   extra = C K R S
//                            bwd_filter  A = C N + K N   B = C K   extra = K N OH OW
//   fft_tiling             (min(tiles, 2) N (C + K) + C K) P of a tile, with a 1 x 1 filter
//                          (min(tiles per row, 2) OH N (C + K) + C K) P of a row
//   gemm                   the whole batch lowered; 0 if it computes image by image (`GemmLoops`)
//   implicit_precomp_gemm  1 KiB for each 256 output channels
//   bwd_filter.algo_1      4 C K R S + C K R S / 128 + 16; with many channels (K >= 512) plus
//                          copies of x and dy in another layout
//   bwd_filter.algo_3      4 C K R S + C K R S / 128 + 16 if C K >= 65,536 and K > 128, else 0
//   all others             0
// Grouped convolutions need this workspace for each group. For more than one sample, fft,
// fft_tiling, implicit_precomp_gemm and the backward algo_1 also need copies of x and y and 32
// bytes: 4 N (C H W + K OH OW) + 32, with C and K of all groups. In this case, bwd_filter.algo_1
// has no flags.
std::optional<Bytes> ConvWorkspace9(const Op& op, std::string_view slot, std::string_view algorithm,
                                    int64_t batch);

// Returns true if the "gemm" of cuDNN 9 computes image by image, without a workspace, because there
// are few output channels.
bool GemmLoops(const ConvShape& conv);

}  // namespace spillway::sim

#endif  // SPILLWAY_SIM_COST_CONV_WORKSPACE_H_
