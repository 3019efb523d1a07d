// From the measurements of a calibration to the numbers of a device file.
//
// A copy of n bytes takes latency + n / bandwidth, a driver call fixed + per_mib * n / MiB; see
// experiments/tools/measure/linear_fit.h for how the laws are fitted. What the simulator has no use
// for yet is listed beside what it has.

#ifndef SPILLWAY_EXPERIMENTS_TOOLS_MEASURE_CALIBRATION_FIT_H_
#define SPILLWAY_EXPERIMENTS_TOOLS_MEASURE_CALIBRATION_FIT_H_

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "experiments/output/columns.h"
#include "sim/core/calibration.h"
#include "sim/core/device.h"

namespace spillway {

enum class Unit : uint8_t {
  kBytes,
  kSeconds,  // of a `per_mib` law: per MiB
  kBytesPerSecond,
  kFlopsPerSecond,
  kRatio,
};

// One number that comes out of a calibration.
struct Quantity {
  std::string name;  // "link.h2d" is key h2d of table link in a device file
  double value = 0;
  Unit unit = Unit::kSeconds;
  bool in_device = false;  // device files have it
  // Of a fit: the points and their relative errors. Of a median: one point and its spread.
  size_t points = 1;
  std::optional<double> mean_error;
  std::optional<double> max_error;
  std::optional<double> spread;
};

// Everything that the measurements say, what belongs to the device file first, in its order. The
// laws of cudaMalloc and cudaFree are those of blocks of at least 2 MiB: the driver cuts smaller
// ones from such a block. What blocks below 1 MiB cost, and calls of the convolution library, is
// the median over those measured, with the errors of taking it for all. Nothing is said of pages
// and library calls if none were measured. Throws `InputError` if there are too few points for a
// fit or a timing is missing.
std::vector<Quantity> FitMeasurements(const Measurements& measurements);

// "55.4GB/s": the spelling in a device file, four significant digits.
std::string Spell(const Quantity& quantity);

// "19 points, error mean 1.2 % max 4.5 %" or "spread 3.1 %"; empty if it has none.
std::string Residual(const Quantity& quantity);

Columns<Quantity> CalibrationColumns();

// The text of a device file: that of `base` with the measured numbers and their sources put in, a
// key that is not there behind the others of its table, and a head of its own. `base_name` and
// `raw_name` are named in it. Where `base` describes another GPU, what names the GPU is replaced
// too, and its peak FLOP/s if the measurements know it.
// Throws `InputError` starting with `base_name` if that is no device file or no key of a measured
// one's table has a line of its own there.
std::string MergeDevice(std::string_view base, const std::string& base_name,
                        const Measurements& measurements, const std::vector<Quantity>& quantities,
                        const std::string& raw_name);

// True if `gpu` is one of the names that drivers report for the device.
bool Describes(const Device& device, std::string_view gpu);

// The device to start from for what cannot be measured: the one that describes the machine's GPU;
// else, by compute capability, the nearest below it, or above it if there is none, and of equals
// the one with the memory most like it. Null if no device has the name and none the capability.
const Device* NearestDevice(std::span<const Device> devices, const Machine& machine);

}  // namespace spillway

#endif  // SPILLWAY_EXPERIMENTS_TOOLS_MEASURE_CALIBRATION_FIT_H_
