// Tests the calibrator on a real GPU: every timing exists, and the fits make a device.

#include "backend/cuda/calibrator.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <iostream>

#include "experiments/tools/measure/calibration_fit.h"
#include "traces/base/error.h"

namespace spillway::testing {
namespace {

TEST(CalibratorTest, MeasuresWhatAFitNeeds) {
  CalibrateOptions options;
  options.repeats = 5;
  options.largest_copy = Bytes::MiB(16);
  options.largest_device_copy = Bytes::MiB(512);
  options.largest_allocation = Bytes::MiB(64);
  options.largest_pinned = Bytes::MiB(8);
  options.clock_warmup = Duration::Milliseconds(50);
  size_t reports = 0;
  options.progress = [&](const CalibrateProgress& progress) {
    EXPECT_EQ(progress.step, reports++);
    EXPECT_LT(progress.step, progress.steps);
  };
  Measurements measurements;
  try {
    measurements = Calibrate(options);
  } catch (const EnvironmentError& error) {
    GTEST_SKIP() << error.what();
  }
  EXPECT_EQ(reports, 8u);
  EXPECT_FALSE(measurements.machine.gpu.empty());
  EXPECT_EQ(measurements.copies.size(), 13u);
  EXPECT_EQ(measurements.device_copies.size(), 3u);
  EXPECT_EQ(measurements.overlaps.points.size(), 11u);
  EXPECT_EQ(measurements.device_memory.size(), 18u);
  EXPECT_EQ(measurements.pinned_memory.size(), 4u);
  EXPECT_TRUE(measurements.page_memory.empty() || measurements.page_memory.size() == 6);
  for (const char* step : {"fwd.", "bwd_data.", "bwd_filter."}) {
    EXPECT_GE(std::count_if(measurements.library_calls.begin(), measurements.library_calls.end(),
                            [&](const auto& call) { return call.call.starts_with(step); }),
              4)
        << step;
  }
  for (const Quantity& quantity : FitMeasurements(measurements)) {
    std::cout << "[   NOTE   ] " << quantity.name << " " << Spell(quantity) << " "
              << Residual(quantity) << "\n";
    EXPECT_GE(quantity.value, 0) << quantity.name;
  }
}

TEST(CalibratorTest, NoGpuIsItsOwnPeer) {
  CalibrateOptions options;
  options.peer = options.device;
  try {
    Calibrate(options);
    FAIL() << "measured";
  } catch (const EnvironmentError& error) {
    GTEST_SKIP() << error.what();
  } catch (const UsageError& error) {
    EXPECT_STREQ(error.what(), "GPU 0 runs the kernels, so it cannot be the peer as well");
  }
}

}  // namespace
}  // namespace spillway::testing
