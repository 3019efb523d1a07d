// The measurements of a calibration on disk: JSON, described in traces/FORMAT.md.

#ifndef SPILLWAY_SIM_COST_RECORDS_MEASUREMENTS_H_
#define SPILLWAY_SIM_COST_RECORDS_MEASUREMENTS_H_

#include <filesystem>
#include <string>
#include <string_view>

#include "sim/core/calibration.h"

namespace spillway::sim {

// Reads a file of measurements, which may be compressed with Zstandard. Throws `InputError` whose
// message starts with "path:line:column: element" for bad JSON, an unsupported version, a missing
// or unknown key, a wrong type, a size that is not positive, or a negative time.
Measurements ReadMeasurements(const std::filesystem::path& path);

// Parses the text of measurements like `ReadMeasurements`; `origin` stands for the path in
// messages.
Measurements ParseMeasurements(std::string_view text, const std::string& origin);

// Returns the JSON text of `measurements`: equal contents give equal bytes.
std::string FormatMeasurements(const Measurements& measurements);

// Returns "none", "dram" or "compute".
std::string_view Name(Load load);

}  // namespace spillway::sim

#endif  // SPILLWAY_SIM_COST_RECORDS_MEASUREMENTS_H_
