#include "experiments/tools/measure/calibration_fit.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>
#include <map>
#include <random>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "tests/testing/calibration.h"
#include "tests/testing/files.h"

namespace spillway::testing {
namespace {

using ::spillway::testing::ExactMeasurements;
using ::spillway::testing::InputErrorOf;
using ::spillway::testing::ReadRaw;
using ::spillway::testing::TemporaryDirectory;
using ::spillway::testing::WriteRaw;
using ::testing::HasSubstr;
using ::testing::StartsWith;

const std::filesystem::path kBase = testing::InSource("sim/devices/titan_x_maxwell.toml");

std::map<std::string, Quantity> ByName(const Measurements& measurements) {
  std::map<std::string, Quantity> quantities;
  for (Quantity& quantity : FitMeasurements(measurements)) {
    const std::string name = quantity.name;
    EXPECT_TRUE(quantities.emplace(name, std::move(quantity)).second) << name;
  }
  return quantities;
}

std::string Merge(const Measurements& measurements, const std::string& base) {
  return MergeDevice(base, "base.toml", measurements, FitMeasurements(measurements), "raw.json");
}

TEST(CalibrationTest, RecoversTheLaws) {
  const auto quantities = ByName(ExactMeasurements());
  const auto expect = [&](const char* name, double value, double tolerance = 1e-4) {
    ASSERT_TRUE(quantities.contains(name)) << name;
    EXPECT_NEAR(quantities.at(name).value / value, 1, tolerance) << name;
  };
  expect("memory.size", 80'000.0 * (1 << 20), 1e-15);
  expect("compute.dram", 2e12);
  expect("link.h2d", 50e9);
  expect("link.h2d_latency", 3e-6);
  expect("link.d2h", 40e9);
  expect("link.d2h_latency", 4e-6);
  expect("link.duplex", 65e9);
  expect("link.h2d_both", 30e9);
  expect("link.d2h_both", 35e9);
  expect("link.h2d_single_latency", 6e-6);
  expect("link.d2h_single_latency", 7e-6);
  expect("host.launch_overhead", 2.5e-6);
  expect("host.enqueue_d2h", 3.1e-6);
  expect("host.record_event", 0.5e-6);
  expect("host.wait_event", 0.4e-6);
  expect("driver.malloc_fixed", 40e-6);
  expect("driver.malloc_per_mib", 20e-9);
  expect("driver.free_fixed", 50e-6);
  expect("driver.free_per_mib", 60e-9);
  expect("driver.pinned_fixed", 100e-6);
  expect("driver.pinned_per_mib", 0.3e-3);
  expect("driver.pinned_free_fixed", 80e-6);
  expect("driver.pinned_free_per_mib", 0.1e-3);
  expect("driver.malloc_small", 2e-6);
  expect("driver.free_small", 1e-6);
  expect("driver.map_fixed", 3e-6);
  expect("driver.map_per_mib", 4e-6);
  expect("driver.map_new_fixed", 5e-6);
  expect("driver.map_new_per_mib", 6e-6);
  expect("driver.unmap_fixed", 7e-6);
  expect("driver.unmap_per_mib", 8e-6);
  expect("host.library_call", 200e-6);
  expect("stream.kernel_period", 2e-6);
  expect("stream.kernel_gap", 0.9e-6);
  expect("stream.kernel_wait", 2e-6);
  expect("stream.copy_wait", 2.5e-6);
  expect("compute.stream_copy", (1 << 30) / 500e-6);
  expect("compute.multiply_add", 40e12);
  expect("slowdown.h2d+d2h.h2d", 1);
  expect("slowdown.dram+h2d.kernel", 1.1);
  expect("slowdown.dram+h2d.h2d", 1.05);
  expect("slowdown.dram+h2d+d2h.d2h", 1.05);
  expect("slowdown.compute+d2h.kernel", 1);
  EXPECT_FALSE(quantities.contains("slowdown.h2d.h2d"));
  EXPECT_FALSE(quantities.contains("slowdown.dram+.kernel"));
  EXPECT_EQ(quantities.at("link.h2d").points, 19u);
  EXPECT_EQ(quantities.at("link.duplex").points, 38u);
  EXPECT_EQ(quantities.at("driver.malloc_fixed").points, 12u);  // from 2 MiB
  EXPECT_EQ(quantities.at("driver.free_small").points, 11u);    // up to 512 KiB
  EXPECT_EQ(quantities.at("driver.map_fixed").points, 10u);
  EXPECT_EQ(quantities.at("host.library_call").points, 3u);
  EXPECT_NEAR(*quantities.at("host.library_call").mean_error, 0.5, 1e-12);  // 0, 1/2 and 1
  EXPECT_NEAR(*quantities.at("host.library_call").max_error, 1, 1e-12);
  EXPECT_LT(*quantities.at("link.h2d").max_error, 1e-5);
  EXPECT_EQ(*quantities.at("host.launch_overhead").spread, 0.015);
}

TEST(CalibrationTest, NoiseShowsInTheResidual) {
  Measurements measurements = ExactMeasurements();
  std::mt19937 random(3);
  std::normal_distribution<double> noise(1, 0.03);
  for (CopyTiming& copy : measurements.copies) {
    const auto time = static_cast<double>(copy.h2d.median.picoseconds()) * noise(random);
    copy.h2d.median = Duration::Picoseconds(std::llround(time));
  }
  const auto quantities = ByName(measurements);
  EXPECT_NEAR(quantities.at("link.h2d").value / 50e9, 1, 0.04);
  EXPECT_NEAR(quantities.at("link.h2d_latency").value / 3e-6, 1, 0.06);
  EXPECT_GT(*quantities.at("link.h2d").mean_error, 0.005);
  EXPECT_GT(*quantities.at("link.h2d").max_error, *quantities.at("link.h2d").mean_error);
  EXPECT_LT(*quantities.at("link.d2h").max_error, 1e-5);
}

// Older files contain neither page timings nor library calls.
TEST(CalibrationTest, PagesAndLibraryCallsNeedNotBeMeasured) {
  Measurements measurements = ExactMeasurements();
  measurements.page_memory.clear();
  measurements.library_calls.clear();
  for (const auto& [name, quantity] : ByName(measurements)) {
    EXPECT_THAT(name, ::testing::Not(::testing::HasSubstr("map")));
    EXPECT_NE(name, "host.library_call");
  }
  const std::string text = Merge(measurements, ReadRaw(kBase));
  EXPECT_THAT(text, ::testing::Not(HasSubstr("library_call")));
}

// For an even number of calls the median is the mean of the middle two.
TEST(CalibrationTest, TheTypicalCallIsTheMedian) {
  Measurements measurements = ExactMeasurements();
  measurements.library_calls.push_back({"more", measurements.library_calls[0].time});
  measurements.library_calls.push_back({"most", {Duration::Microseconds(900), 0.1, 20}});
  measurements.library_calls.push_back({"next", {Duration::Microseconds(300), 0.1, 20}});
  EXPECT_NEAR(ByName(measurements).at("host.library_call").value, 250e-6, 1e-12);
}

// The duplex rate is at least the rate of one direction and at most the sum of both.
TEST(CalibrationTest, DuplexStaysWithinTheLinks) {
  Measurements slow = ExactMeasurements();
  Measurements fast = ExactMeasurements();
  for (CopyTiming& copy : slow.copies) copy.h2d_both.median = copy.h2d_both.median * 10;
  for (CopyTiming& copy : slow.copies) copy.d2h_both.median = copy.d2h_both.median * 10;
  for (CopyTiming& copy : fast.copies) {
    copy.h2d_both.median = Duration::Picoseconds(copy.h2d_both.median.picoseconds() / 10);
  }
  EXPECT_NEAR(ByName(slow).at("link.duplex").value, 50e9, 1e6);
  EXPECT_NEAR(ByName(fast).at("link.duplex").value, 90e9, 1e6);
}

TEST(CalibrationTest, TooLittleDataIsAnError) {
  const auto error_of = [](const auto& change) {
    Measurements measurements = ExactMeasurements();
    change(measurements);
    return InputErrorOf([&] { FitMeasurements(measurements); });
  };
  EXPECT_THAT(error_of([](Measurements& m) { m.copies.resize(2); }),
              StartsWith("cannot fit copies of link.h2d: 2 points"));
  EXPECT_THAT(error_of([](Measurements& m) { m.device_copies.clear(); }),
              StartsWith("cannot fit copies within the device: 0 points"));
  // All remaining sizes are below 2 MiB.
  EXPECT_THAT(error_of([](Measurements& m) { m.device_memory.resize(12); }),
              StartsWith("cannot fit cudaMalloc: 0 points"));
  EXPECT_THAT(error_of([](Measurements& m) { m.pinned_memory.resize(1); }),
              StartsWith("cannot fit cudaMallocHost: 1 points"));
  EXPECT_THAT(error_of([](Measurements& m) { m.page_memory.resize(2); }),
              StartsWith("cannot fit the mapping of pages: 2 points"));
  EXPECT_THAT(error_of([](Measurements& m) { m.library_calls[1].time.median = Duration(); }),
              StartsWith("host.library_call: a time of 0 was measured"));
  EXPECT_THAT(error_of([](Measurements& m) { m.latencies.enqueue_kernel = {}; }),
              StartsWith("host.launch_overhead was not measured"));
  EXPECT_THAT(error_of([](Measurements& m) { m.latencies.kernel_after_event = {}; }),
              StartsWith("stream.kernel_wait was not measured"));
  EXPECT_THAT(error_of([](Measurements& m) {
                for (CopyTiming& copy : m.copies) copy.h2d = m.copies[0].h2d;
              }),
              StartsWith("cannot fit link.h2d: time does not grow"));
}

TEST(CalibrationTest, DeviceFilesReadBack) {
  const TemporaryDirectory directory;
  const std::filesystem::path path = directory / "acme.toml";
  WriteRaw(path, Merge(ExactMeasurements(), ReadRaw(kBase)));
  const Device device = ReadDevice(path);
  const Device base = ReadDevice(kBase);
  EXPECT_EQ(device.name, "acme");
  EXPECT_EQ(device.description, "ACME Accelerator");
  EXPECT_TRUE(Describes(device, "ACME Accelerator"));
  EXPECT_EQ(device.memory, Bytes::MiB(80'000));
  EXPECT_EQ(device.dram.bytes_per_second, 2'000'000'000'000);
  EXPECT_EQ(device.h2d.bandwidth.bytes_per_second, 50'000'000'000);
  EXPECT_EQ(device.h2d.latency, Duration::Microseconds(3));
  EXPECT_EQ(device.d2h.bandwidth.bytes_per_second, 40'000'000'000);
  EXPECT_EQ(device.d2h.latency, Duration::Microseconds(4));
  EXPECT_EQ(device.duplex.bytes_per_second, 65'000'000'000);
  EXPECT_EQ(device.launch_overhead, Duration::Nanoseconds(2500));
  EXPECT_EQ(device.device_malloc.fixed, Duration::Microseconds(40));
  EXPECT_EQ(device.device_malloc.per_mib, Duration::Nanoseconds(20));
  EXPECT_EQ(device.device_free.fixed, Duration::Microseconds(50));
  EXPECT_EQ(device.device_free.per_mib, Duration::Nanoseconds(60));
  EXPECT_EQ(device.host_malloc.fixed, Duration::Microseconds(100));
  EXPECT_EQ(device.host_malloc.per_mib, Duration::Microseconds(300));
  // The base file has no line for library calls.
  EXPECT_EQ(base.library_call, std::nullopt);
  EXPECT_EQ(device.library_call, Duration::Microseconds(200));
  EXPECT_EQ(device.device_malloc.small, Duration::Microseconds(2));
  EXPECT_EQ(device.device_free.small, Duration::Microseconds(1));
  EXPECT_EQ(device.page_map.fixed, Duration::Microseconds(3));
  EXPECT_EQ(device.page_map.per_mib, Duration::Microseconds(4));
  EXPECT_EQ(device.page_map_new.fixed, Duration::Microseconds(5));
  EXPECT_EQ(device.page_unmap.per_mib, Duration::Microseconds(8));
  // The driver's description of the new GPU replaces the base's.
  EXPECT_THAT(device.gpus, ::testing::ElementsAre("ACME Accelerator"));
  EXPECT_EQ(device.compute_capability, "8.9");
  EXPECT_EQ(device.flops_per_second, 80'000'000'000'000);
  // Quantities that cannot be measured are copied from the base.
  EXPECT_EQ(device.host_memory, base.host_memory);
  EXPECT_EQ(device.alignment, base.alignment);
  EXPECT_EQ(device.efficiency, base.efficiency);
  EXPECT_EQ(device.library, base.library);
}

TEST(CalibrationTest, AnotherGpuIsAPool) {
  Measurements measurements = ExactMeasurements();
  measurements.peer_copies = measurements.copies;
  const std::string text = Merge(measurements, ReadRaw(kBase));
  const Device device = ParseDevice(text, "acme.toml");
  ASSERT_EQ(device.known_pools.size(), 1u);
  const ExternalPool& peer = device.known_pools.front();
  EXPECT_EQ(peer.kind, ExternalPool::Kind::kPeer);
  EXPECT_EQ(peer.in.bandwidth.bytes_per_second, device.h2d.bandwidth.bytes_per_second);
  EXPECT_EQ(peer.in.latency, device.h2d.latency);
  EXPECT_EQ(peer.out.bandwidth.bytes_per_second, device.d2h.bandwidth.bytes_per_second);
  EXPECT_EQ(peer.duplex.bytes_per_second, device.duplex.bytes_per_second);
  // If the pool's lines exist already, merging replaces them.
  for (CopyTiming& copy : measurements.peer_copies) copy.h2d = copy.d2h;
  const Device again = ParseDevice(Merge(measurements, text), "acme.toml");
  EXPECT_EQ(again.known_pools.front().in.bandwidth.bytes_per_second,
            device.d2h.bandwidth.bytes_per_second);
  EXPECT_EQ(again.h2d.bandwidth.bytes_per_second, device.h2d.bandwidth.bytes_per_second);
}

TEST(CalibrationTest, EveryNumberHasItsSource) {
  const std::string base = ReadRaw(kBase);
  const std::string text = Merge(ExactMeasurements(), base);
  EXPECT_THAT(text, StartsWith("# ACME Accelerator with CUDA 13.0, link 16.0 GT/s PCIe x16"));
  EXPECT_THAT(text, HasSubstr("raw.json"));
  EXPECT_THAT(text, HasSubstr("h2d = \"50GB/s\"       # source: measured, 19 points, error mean "
                              "0.0 % max 0.0 %; ACME Accelerator, driver 580.65.06, 2026-01-02\n"));
  EXPECT_THAT(text, HasSubstr("launch_overhead = \"2.5us\"  # source: measured, spread 1.5 %; "));
  std::istringstream lines(text);
  size_t measured = 0;
  for (std::string line; std::getline(lines, line);) {
    const size_t value = line.find(" = ");
    if (line.starts_with('#') || value == std::string::npos) continue;
    if (line.find_first_of("0123456789", value) > line.find('#')) continue;
    const std::string_view key = std::string_view(line).substr(0, value);
    // The values of these keys are names, not measurements.
    if (key == "description" || key == "gpus" || key == "compute_capability") continue;
    EXPECT_THAT(line, ::testing::ContainsRegex("# (source|estimate): "));
    if (line.find("580.65.06") != std::string::npos) ++measured;
  }
  EXPECT_EQ(measured, 23u);
  // All other sources stay.
  const size_t host = base.find("host = ");
  EXPECT_THAT(text, HasSubstr(base.substr(host, base.find('\n', host) - host)));
  // Calibrating again changes nothing but the name of the base.
  EXPECT_EQ(Merge(ExactMeasurements(), text), text);
}

TEST(CalibrationTest, TheSameGpuKeepsItsDescription) {
  Measurements measurements = ExactMeasurements();
  measurements.machine.gpu = "GeForce GTX TITAN X";
  const std::string text = Merge(measurements, ReadRaw(kBase));
  EXPECT_THAT(text, HasSubstr("description = \"NVIDIA Titan X (Maxwell), PCIe"));
  const Device base = ReadDevice(kBase);
  const Device device = ParseDevice(text, "titan.toml");
  EXPECT_EQ(device.gpus, base.gpus);
  EXPECT_EQ(device.flops_per_second, base.flops_per_second);
}

TEST(CalibrationTest, FilesWithoutNamesGetThem) {
  std::string base = ReadRaw(kBase);
  for (const char* key : {"gpus", "compute_capability"}) {
    const size_t line = base.find(key);
    base.erase(line, base.find('\n', line) + 1 - line);
  }
  ASSERT_TRUE(ParseDevice(base, "base.toml").gpus.empty());
  EXPECT_TRUE(
      Describes(ParseDevice(Merge(ExactMeasurements(), base), "acme.toml"), "ACME Accelerator"));
}

std::vector<Device> ShippedDevices() {
  std::vector<Device> devices;
  for (const auto& entry : std::filesystem::directory_iterator(kBase.parent_path())) {
    if (entry.path().extension() == ".toml") devices.push_back(ReadDevice(entry.path()));
  }
  return devices;
}

TEST(NearestDeviceTest, DriversNamesFindTheShippedFiles) {
  const std::vector<Device> devices = ShippedDevices();
  for (const Device& device : devices) {
    ASSERT_FALSE(device.gpus.empty()) << device.name;
    for (const std::string& gpu : device.gpus) {
      Machine machine;
      machine.gpu = gpu;
      ASSERT_NE(NearestDevice(devices, machine), nullptr) << gpu;
      EXPECT_EQ(NearestDevice(devices, machine)->name, device.name) << gpu;
    }
  }
}

TEST(NearestDeviceTest, OthersStartFromTheNearestCapability) {
  struct {
    const char* capability;
    Bytes memory;
    const char* name;
  } cases[] = {
      {"9.0", Bytes::GiB(80), "h100"},    {"9.0", Bytes::GiB(141), "h200"},
      {"8.9", Bytes::GiB(24), "rtx4090"}, {"11.0", Bytes::GiB(128), "b200"},
      {"7.5", Bytes::GiB(16), "v100"},    {"6.1", Bytes::GiB(8), "gtx_1080ti"},
      {"5.2", Bytes::GiB(4), "gtx_970"},  {"3.0", Bytes::GiB(4), "k40c"},
  };
  const std::vector<Device> devices = ShippedDevices();
  for (const auto& [capability, memory, name] : cases) {
    Machine machine;
    machine.gpu = "NVIDIA H2";  // a prefix of a GPU's name does not identify the GPU
    machine.memory = memory;
    machine.compute_capability = capability;
    ASSERT_NE(NearestDevice(devices, machine), nullptr) << capability;
    EXPECT_EQ(NearestDevice(devices, machine)->name, name) << capability;
  }
  EXPECT_EQ(NearestDevice(devices, Machine()), nullptr);
}

TEST(CalibrationTest, ABaseThatCannotBeEditedIsAnError) {
  std::string base = ReadRaw(kBase);
  const auto error = [&](const std::string& text) {
    return InputErrorOf([&] { Merge(ExactMeasurements(), text); });
  };
  EXPECT_THAT(error("colour = 1\n"), StartsWith("base.toml:"));
  const size_t start = base.find("[host]");
  const size_t end = base.find("[driver]");
  ASSERT_LT(start, end);
  base.replace(start, end - start, "");
  base.insert(base.find("[memory]"), "host = {launch_overhead = \"9us\"}\n");
  EXPECT_THAT(error(base), HasSubstr("base.toml: no line of its own for 'host.launch_overhead'"));
}

TEST(CalibrationTest, SpellingsReadBack) {
  const auto spell = [](double value, Unit unit) {
    Quantity quantity;
    quantity.value = value;
    quantity.unit = unit;
    return Spell(quantity);
  };
  EXPECT_EQ(spell(55.4321e9, Unit::kBytesPerSecond), "55.43GB/s");
  EXPECT_EQ(spell(4.2e12, Unit::kBytesPerSecond), "4.2TB/s");
  EXPECT_EQ(spell(0.999999e12, Unit::kBytesPerSecond), "1TB/s");
  EXPECT_EQ(spell(999.9e9, Unit::kBytesPerSecond), "999.9GB/s");
  EXPECT_EQ(spell(123.456e6, Unit::kBytesPerSecond), "123.5MB/s");
  EXPECT_EQ(spell(0, Unit::kSeconds), "0ns");
  EXPECT_EQ(spell(0.12345e-9, Unit::kSeconds), "0.123ns");
  EXPECT_EQ(spell(3.2307e-6, Unit::kSeconds), "3.231us");
  EXPECT_EQ(spell(310.04e-6, Unit::kSeconds), "310us");
  EXPECT_EQ(spell(12345, Unit::kSeconds), "12345s");
  EXPECT_EQ(spell(66.9e12, Unit::kFlopsPerSecond), "66.9TFLOP/s");
  EXPECT_EQ(spell(3.0 * (1 << 20), Unit::kBytes), "3MiB");
  EXPECT_EQ(spell(1.0523, Unit::kRatio), "1.052");
}

TEST(CalibrationTest, RowsHaveTheDocumentedColumns) {
  const std::vector<Quantity> quantities = FitMeasurements(ExactMeasurements());
  EXPECT_THAT(FormatCsv(CalibrationColumns(), quantities),
              StartsWith("name,value,unit,points,mean_error,max_error,spread,in_device\r\n"));
  EXPECT_THAT(FormatJson(CalibrationColumns(), quantities, "spillway.calibration/v1"),
              HasSubstr("\"unit\": \"B/s\""));
}

}  // namespace
}  // namespace spillway::testing
