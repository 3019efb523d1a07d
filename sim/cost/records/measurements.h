// The measurements of a calibration on disk: JSON, described in traces/FORMAT.md.

#ifndef SPILLWAY_SIM_COST_RECORDS_MEASUREMENTS_H_
#define SPILLWAY_SIM_COST_RECORDS_MEASUREMENTS_H_

#include <filesystem>
#include <string>
#include <string_view>

#include "sim/core/calibration.h"

namespace spillway {

// Reads a file of measurements, Zstandard transparently. Throws `InputError` whose message starts
// with "path:line:column: element": bad JSON, unsupported version, missing or unknown key, wrong
// type, a size that is not positive, a negative time.
Measurements ReadMeasurements(const std::filesystem::path& path);

// As `ReadMeasurements` on text in memory; `origin` stands for the path in messages.
Measurements ParseMeasurements(std::string_view text, const std::string& origin);

// The JSON text of `measurements`: the same contents give the same bytes.
std::string FormatMeasurements(const Measurements& measurements);

// "none", "dram" or "compute".
std::string_view Name(Load load);

}  // namespace spillway

#endif  // SPILLWAY_SIM_COST_RECORDS_MEASUREMENTS_H_
