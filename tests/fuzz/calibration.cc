// Fuzz target: the reader of a calibration's measurements, and the fits that use them.
//
// Accepted measurements are written and read back unchanged. The fits, and the device file made
// from them, work or refuse the measurements.

#include <string>
#include <vector>

#include "experiments/tools/measure/calibration_fit.h"
#include "sim/cost/records/measurements.h"
#include "tests/fuzz/property.h"

namespace spillway::fuzz {
namespace {

// A device file with a line for every key that a calibration replaces.
constexpr std::string_view kBase = R"(description = "Any GPU"
library = "cuDNN 9"
[memory]
size = "12GiB"
alignment = "512B"
host = "64GiB"
[compute]
flops = "10TFLOP/s"
dram = "300GB/s"
[link]
h2d = "12GB/s"
h2d_latency = "9us"
d2h = "12GB/s"
d2h_latency = "9us"
duplex = "20GB/s"
[host]
launch_overhead = "5us"
[driver]
malloc_fixed = "40us"
malloc_per_mib = "0us"
free_fixed = "40us"
free_per_mib = "0us"
pinned_fixed = "40us"
pinned_per_mib = "300us"
[efficiency]
default = 0.5
[efficiency.fwd]
gemm = 0.5
[efficiency.bwd_data]
algo_1 = 0.5
[efficiency.bwd_filter]
algo_1 = 0.5
)";

}  // namespace
}  // namespace spillway::fuzz

int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace spillway::fuzz;
  Measurements measurements;
  const bool accepted = Accepts("measured.json", "there is no such error", [&] {
    measurements = ParseMeasurements(Text(data, size), "measured.json");
  });
  if (!accepted) return 0;
  const std::string text = FormatMeasurements(measurements);
  const Measurements again = ParseMeasurements(text, "written");
  SPILLWAY_CHECK(again == measurements);
  SPILLWAY_CHECK(FormatMeasurements(again) == text);
  Runs([&] {
    const std::vector<Quantity> quantities = FitMeasurements(measurements);
    FormatCsv(CalibrationColumns(), quantities);
    const std::string device =
        MergeDevice(kBase, "base.toml", measurements, quantities, "measured.json");
    ParseDevice(device, "merged.toml");
  });
  return 0;
}
