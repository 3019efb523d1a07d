// Computes the numbers of a device file from the measurements of a calibration.
//
// A copy of n bytes takes latency + n / bandwidth, and a driver call takes fixed + per_mib * n /
// MiB. experiments/tools/measure/linear_fit.h says how these laws are fitted. The results include
// numbers that the simulator does not use yet.

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

namespace spillway::lab {

enum class Unit : uint8_t {
  kBytes,
  kSeconds,  // seconds per MiB for a quantity whose name ends in "_per_mib"
  kBytesPerSecond,
  kFlopsPerSecond,
  kRatio,
};

// A `Quantity` is one number that results from a calibration.
struct Quantity {
  std::string name;  // "link.h2d" is key h2d of table link in a device file
  double value = 0;
  Unit unit = Unit::kSeconds;
  bool in_device = false;  // device files have this key
  // A fit has the number of its points and their relative errors. A median has one point and a
  // spread: the 90th less the 10th percentile, over the median.
  size_t points = 1;
  std::optional<double> mean_error;
  std::optional<double> max_error;
  std::optional<double> spread;
};

// Returns all quantities that follow from the measurements. The quantities of a device file come
// first, in the order of that file. The laws of cudaMalloc and cudaFree are fitted to blocks of at
// least 2 MiB, because the driver cuts smaller blocks from a block of that size. The cost of a
// block below 1 MiB is the median over the measured sizes; its errors result from using the median
// for every size. The cost of a call to the convolution library is a median in the same way.
// Quantities of pages and of library calls are absent if none were measured. Throws `InputError` if
// there are too few points for a fit, or if a timing is missing.
std::vector<Quantity> FitMeasurements(const Measurements& measurements);

// Returns the value as a device file spells it, with four significant digits: "55.4GB/s".
std::string Spell(const Quantity& quantity);

// Returns the residual as text: "19 points, error mean 1.2 % max 4.5 %" for a fit, "spread 3.1 %"
// for a median. Returns an empty string if the quantity has neither errors nor a spread.
std::string Residual(const Quantity& quantity);

Columns<Quantity> CalibrationColumns();

// Returns the text of a device file: the text `base` with the measured numbers, their sources and a
// new leading comment, which names `base_name` and `raw_name`. A key that `base` lacks follows the
// other keys of its table. If `base` describes another GPU, replaces the keys that name the GPU,
// and the peak FLOP/s if the measurements contain it. Throws `InputError` starting with `base_name`
// if `base` is no device file, or if it has no line with a key of the table to which a measured
// number belongs. A missing table `pool.peer` is added.
std::string MergeDevice(std::string_view base, const std::string& base_name,
                        const Measurements& measurements, const std::vector<Quantity>& quantities,
                        const std::string& raw_name);

// Returns true iff `gpu` is one of the names that drivers report for the device.
bool Describes(const Device& device, std::string_view gpu);

// Returns the device that supplies the numbers that cannot be measured. This is the device that
// describes the machine's GPU. If there is none, it is the device with the nearest compute
// capability at or below that of the GPU, or the nearest above it if no device is at or below it.
// Among devices of equal capability it is the one with the nearest memory size. Returns nullptr if
// no device describes the GPU, and the capability of the GPU or of every device is unknown.
const Device* NearestDevice(std::span<const Device> devices, const Machine& machine);

}  // namespace spillway::lab

#endif  // SPILLWAY_EXPERIMENTS_TOOLS_MEASURE_CALIBRATION_FIT_H_
