#include "tests/testing/calibration.h"

#include <cmath>

namespace spillway::testing {
namespace {

Timing Of(double seconds) {
  return {Duration::Picoseconds(std::llround(seconds * 1e12)), 0.015, 20};
}

Timing Law(Bytes size, double fixed, double rate) {
  return Of(fixed + static_cast<double>(size.count()) / rate);
}

constexpr double kMebibyte = 1 << 20;

void AddOverlaps(Overlaps& overlaps) {
  overlaps.kernel_traffic = Bytes::GiB(1);
  overlaps.kernel_flops = 20'000'000'000;
  overlaps.copy_size = Bytes::MiB(64);
  for (const Load load : {Load::kNone, Load::kDram, Load::kCompute}) {
    for (const bool d2h : {false, true}) {
      for (const bool h2d : {false, true}) {
        Overlap point;
        point.load = load;
        const bool contended = load == Load::kDram && (h2d || d2h);
        if (load != Load::kNone) point.kernel = Of(contended ? 550e-6 : 500e-6);
        if (h2d) point.h2d = Of(load == Load::kDram ? 1.05e-3 : 1e-3);
        if (d2h) point.d2h = Of(load == Load::kDram ? 2.1e-3 : 2e-3);
        if (load != Load::kNone || h2d || d2h) overlaps.points.push_back(point);
      }
    }
  }
}

}  // namespace

Measurements ExactMeasurements() {
  Measurements m;
  m.machine = {"ACME Accelerator",
               "16.0 GT/s PCIe x16",
               "ACME CPU \"7\"",
               "580.65.06",
               "13.0",
               "2026-01-02T03:04:05Z",
               "spillway 0.1.0",
               Bytes::MiB(80'000) + Bytes(77),
               Bytes::MiB(50),
               "8.9",
               80'000'000'000'000};
  for (Bytes size = Bytes::KiB(4); size <= Bytes::GiB(1); size += size) {
    CopyTiming copy;
    copy.size = size;
    copy.h2d = Law(size, 3e-6, 50e9);
    copy.d2h = Law(size, 4e-6, 40e9);
    copy.h2d_single = Law(size, 6e-6, 50e9);
    copy.d2h_single = Law(size, 7e-6, 40e9);
    copy.h2d_both = Law(size, 3e-6, 30e9);
    copy.d2h_both = Law(size, 4e-6, 35e9);
    m.copies.push_back(copy);
  }
  for (Bytes size = Bytes::MiB(128); size <= Bytes::GiB(4); size += size) {
    m.device_copies.push_back({size, Law(2 * size, 5e-6, 2e12)});
  }
  AddOverlaps(m.overlaps);
  m.latencies = {Of(2.5e-6), Of(3e-6),   Of(3.1e-6), Of(0.5e-6), Of(0.4e-6), Of(2e-6),
                 Of(0.9e-6), Of(3.5e-6), Of(5.5e-6), Of(4e-6),   Of(6.5e-6)};
  for (Bytes size(512); size <= Bytes::GiB(4); size += size) {
    const bool cut = size < Bytes::MiB(2);
    m.device_memory.push_back({size, cut ? Of(2e-6) : Law(size, 40e-6, kMebibyte / 20e-9),
                               cut ? Of(1e-6) : Law(size, 50e-6, kMebibyte / 60e-9)});
  }
  for (Bytes size = Bytes::MiB(1); size <= Bytes::GiB(1); size += size) {
    m.pinned_memory.push_back(
        {size, Law(size, 100e-6, kMebibyte / 0.3e-3), Law(size, 80e-6, kMebibyte / 0.1e-3)});
  }
  for (Bytes size = Bytes::MiB(2); size <= Bytes::GiB(1); size += size) {
    m.page_memory.push_back({size, Law(size, 3e-6, kMebibyte / 4e-6),
                             Law(size, 5e-6, kMebibyte / 6e-6), Law(size, 7e-6, kMebibyte / 8e-6)});
  }
  m.library_calls = {{"fwd.gemm", Of(200e-6)}, {"fwd.\"fft\"", Of(400e-6)}, {"bwd", Of(100e-6)}};
  return m;
}

}  // namespace spillway::testing
