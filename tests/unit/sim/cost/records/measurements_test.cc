#include "sim/cost/records/measurements.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <string_view>

#include "tests/testing/calibration.h"
#include "tests/testing/files.h"

namespace spillway::testing {
namespace {

using ::spillway::testing::ExactMeasurements;
using ::spillway::testing::InputErrorOf;
using ::testing::HasSubstr;
using ::testing::StartsWith;

// Returns the error of reading the exact measurements with the first `from` replaced by `to`.
std::string ErrorOfEdit(std::string_view from, std::string_view to) {
  std::string text = FormatMeasurements(ExactMeasurements());
  const size_t at = text.find(from);
  EXPECT_NE(at, std::string::npos) << from;
  text.replace(at, from.size(), to);
  return InputErrorOf([&] { ParseMeasurements(text, "raw.json"); });
}

TEST(MeasurementsTest, RoundTrip) {
  Measurements written = ExactMeasurements();
  written.peer_copies.assign(2, written.copies.front());
  const std::string text = FormatMeasurements(written);
  const Measurements read = ParseMeasurements(text, "raw.json");
  EXPECT_EQ(read, written);
  EXPECT_EQ(FormatMeasurements(read), text);
}

// A part that was idle in an overlap has no key, and an empty list of measurements stays empty.
TEST(MeasurementsTest, RoundTripOfLittle) {
  Measurements written = ExactMeasurements();
  written.copies.clear();
  written.pinned_memory.clear();
  written.page_memory.clear();
  written.library_calls.clear();
  written.overlaps.points.resize(1);
  const std::string text = FormatMeasurements(written);
  EXPECT_EQ(ParseMeasurements(text, "raw.json"), written);
  EXPECT_THAT(text, HasSubstr("{\"load\": \"none\",\n      \"h2d\": "));
}

// Older files contain neither page timings nor library calls.
TEST(MeasurementsTest, PagesAndLibraryCallsMayBeMissing) {
  Measurements measurements = ExactMeasurements();
  std::string text = FormatMeasurements(measurements);
  const size_t start = text.find(",\n  \"page_memory\"");
  ASSERT_NE(start, std::string::npos);
  text.replace(start, std::string::npos, "\n}\n");
  measurements.page_memory.clear();
  measurements.library_calls.clear();
  EXPECT_EQ(ParseMeasurements(text, "raw.json"), measurements);
}

TEST(MeasurementsTest, ErrorsNameThePlace) {
  EXPECT_THAT(ErrorOfEdit("\"version\": 1", "\"version\": 2"), HasSubstr("version"));
  EXPECT_THAT(ErrorOfEdit("spillway-calibration", "spillway-trace"), HasSubstr("format"));
  EXPECT_THAT(ErrorOfEdit("\"size\": 4096", "\"size\": 0"),
              StartsWith("raw.json:6:14: copies[0].size: expected an integer from 1"));
  EXPECT_THAT(ErrorOfEdit("\"size\": 4096,", ""),
              HasSubstr("copies[0]: the key 'size' is missing"));
  EXPECT_THAT(ErrorOfEdit("\"h2d\"", "\"h2e\""), HasSubstr("copies[0].h2e: unknown key"));
  EXPECT_THAT(ErrorOfEdit("\"d2h\"", "\"h2d\""),
              HasSubstr("copies[0].h2d: this key stands here twice"));
  EXPECT_THAT(ErrorOfEdit("\"median_ps\": 3", "\"median_ps\": -3"),
              HasSubstr("copies[0].h2d.median_ps"));
  EXPECT_THAT(ErrorOfEdit("\"spread\": 0.015", "\"spread\": -0.5"), HasSubstr("negative"));
  EXPECT_THAT(ErrorOfEdit("\"repeats\": 20", "\"repeats\": 0"), HasSubstr("copies[0].h2d.repeats"));
  EXPECT_THAT(ErrorOfEdit("\"load\": \"none\"", "\"load\": \"some\""), HasSubstr("\"compute\""));
  EXPECT_THAT(ErrorOfEdit("\"gpu\"", "\"cpu\""), HasSubstr("machine.cpu: unknown key"));
  EXPECT_THAT(ErrorOfEdit("\"gpu\": \"ACME Accelerator\", ", ""), HasSubstr("machine: expected"));
  EXPECT_THAT(ErrorOfEdit("\"kernel_gap\"", "\"kernel_gab\""), HasSubstr("latencies.kernel_gab"));
  EXPECT_THAT(ErrorOfEdit("\"map_new\"", "\"map_old\""),
              HasSubstr("page_memory[0].map_old: unknown key"));
  EXPECT_THAT(ErrorOfEdit("\"call\": \"fwd.gemm\",", ""),
              HasSubstr("library_calls[0]: the key 'call' is missing"));
  EXPECT_THAT(ErrorOfEdit("\"call\": \"bwd\"", "\"call\": \"bwd\", \"call\": \"fwd\""),
              HasSubstr("library_calls[2].call: this key stands here twice"));
  EXPECT_THAT(ErrorOfEdit("{\"call\": \"bwd\"", "{\"call\": 3"),
              HasSubstr("library_calls[2].call: expected a string"));
  const std::string text = FormatMeasurements(ExactMeasurements());
  for (const size_t length : {size_t{0}, size_t{1}, text.size() / 2, text.size() - 2}) {
    EXPECT_THAT(InputErrorOf([&] { ParseMeasurements(text.substr(0, length), "raw.json"); }),
                StartsWith("raw.json:"));
  }
}

}  // namespace
}  // namespace spillway::testing
