#include "sim/core/device.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <sstream>
#include <string>

#include "tests/testing/files.h"

namespace spillway::testing {
namespace {

using ::spillway::testing::InputErrorOf;
using ::spillway::testing::ReadRaw;
using ::spillway::testing::TemporaryDirectory;
using ::spillway::testing::WriteRaw;
using ::testing::EndsWith;
using ::testing::HasSubstr;

const std::filesystem::path kDevices = testing::InSource("sim/devices");

constexpr std::string_view kToy = R"(description = "a toy"
library = "toyDNN 1"
[memory]
size = "1GiB"
alignment = "256B"
host = "4GiB"
[compute]
flops = "2GFLOP/s"
dram = "3GB/s"
[link]
h2d = "4MB/s"
h2d_latency = "5us"
d2h = "6MB/s"
d2h_latency = "7us"
duplex = "8MB/s"
[host]
launch_overhead = "9us"
[driver]
malloc_fixed = "10us"
malloc_per_mib = "11us"
free_fixed = "12us"
free_per_mib = "13us"
pinned_fixed = "14us"
pinned_per_mib = "15us"
[efficiency]
default = 0.5
[efficiency.fwd]
direct = 1
[efficiency.bwd_data]
[efficiency.bwd_filter]
)";

TEST(DeviceTest, MappingCostsWhatTheFileSaysOrElseWhatMallocDoes) {
  const Device plain = ParseDevice(kToy, "toy.toml");
  EXPECT_EQ(plain.page_map.fixed, plain.device_malloc.fixed);
  EXPECT_EQ(plain.page_unmap.per_mib, plain.device_free.per_mib);
  std::string text(kToy);
  text.insert(text.find("[efficiency]"), "map_fixed = \"1us\"\nmap_per_mib = \"2us\"\n");
  const Device measured = ParseDevice(text, "toy.toml");
  EXPECT_EQ(measured.page_map.fixed, Duration::Microseconds(1));
  EXPECT_EQ(measured.page_map.per_mib, Duration::Microseconds(2));
  // Mapping new pages costs as much as mapping existing pages.
  EXPECT_EQ(measured.page_map_new.per_mib, Duration::Microseconds(2));
  EXPECT_EQ(measured.page_unmap.fixed, plain.device_free.fixed);
  text.insert(text.find("[efficiency]"), "map_new_fixed = \"3us\"\nmap_new_per_mib = \"4us\"\n");
  const Device both = ParseDevice(text, "toy.toml");
  EXPECT_EQ(both.page_map.fixed, Duration::Microseconds(1));
  EXPECT_EQ(both.page_map_new.fixed, Duration::Microseconds(3));
  EXPECT_EQ(both.page_map_new.per_mib, Duration::Microseconds(4));
}

TEST(DeviceTest, SmallBlocksCostWhatTheFileSaysOrElseWhatOthersDo) {
  const Device plain = ParseDevice(kToy, "toy.toml");
  EXPECT_EQ(plain.device_malloc.small, std::nullopt);
  EXPECT_EQ(plain.device_malloc.At(Bytes(0)), Duration::Microseconds(10));
  std::string text(kToy);
  text.insert(text.find("[efficiency]"), "malloc_small = \"1us\"\nfree_small = \"2us\"\n");
  const Device measured = ParseDevice(text, "toy.toml");
  EXPECT_EQ(measured.device_malloc.At(Bytes(1)), Duration::Microseconds(1));
  EXPECT_EQ(measured.device_free.At(Bytes::MiB(1) - Bytes(1)), Duration::Microseconds(2));
  EXPECT_EQ(measured.device_free.At(Bytes::MiB(1)), Duration::Microseconds(25));
  EXPECT_EQ(measured.page_map.small, std::nullopt);
  EXPECT_EQ(measured.page_unmap.small, std::nullopt);
}

TEST(DeviceTest, TheFileMaySayWhatALibraryCallCosts) {
  EXPECT_EQ(ParseDevice(kToy, "toy.toml").library_call, std::nullopt);
  std::string text(kToy);
  text.insert(text.find("[driver]"), "library_call = \"190us\"\n");
  EXPECT_EQ(ParseDevice(text, "toy.toml").library_call, Duration::Microseconds(190));
}

TEST(DeviceTest, TheFileMaySayHowLongKernelsWait) {
  std::string text(kToy);
  text.insert(text.find("[driver]"), "[stream]\nkernel_wait = \"6us\"\n");
  EXPECT_EQ(ParseDevice(text, "toy.toml").kernel_wait, Duration::Microseconds(6));
}

TEST(DeviceTest, TheFileMaySayWhatCopiesCostKernels) {
  std::string text(kToy);
  EXPECT_EQ(ParseDevice(text, "toy.toml").beside_copy, (std::array<double, 4>{}));
  const auto with = [&](const std::string& section) {
    std::string changed = text;
    return ParseDevice(changed.insert(text.find("[driver]"), "[beside_copy]\n" + section + "\n"),
                       "toy.toml");
  };
  EXPECT_EQ(with("products = 0.15\nattention = 1").beside_copy, (std::array{0.15, 0.0, 1.0, 0.0}));
  EXPECT_THROW(with("products = 1.5"), InputError);
  EXPECT_THROW(with("products = \"0.1\""), InputError);
  EXPECT_THROW(with("sums = 0.1"), InputError);
  EXPECT_EQ(BesideKindOf(OpType::kLinear, Arithmetic::kBf16), BesideKind::kProducts);
  EXPECT_EQ(BesideKindOf(OpType::kLinear, Arithmetic::kTf32), BesideKind::kOther);
  EXPECT_EQ(BesideKindOf(OpType::kConv2d, Arithmetic::kBf16), BesideKind::kConvolutions);
  EXPECT_EQ(BesideKindOf(OpType::kAttention, Arithmetic::kFp16), BesideKind::kAttention);
  EXPECT_EQ(BesideKindOf(OpType::kGelu, Arithmetic::kFp32), BesideKind::kOther);
}

TEST(DeviceTest, TheFileMaySayHowGpusAreLinked) {
  std::string text(kToy);
  EXPECT_FALSE(ParseDevice(text, "toy.toml").cluster);
  const auto with = [&](const std::string& section) {
    std::string changed = text;
    return ParseDevice(changed.insert(text.find("[driver]"), "[cluster]\n" + section + "\n"),
                       "toy.toml");
  };
  const std::string links = R"(inside = "100GB/s"
inside_latency = "1us"
outside = "10GB/s"
outside_latency = "5us"
start = "20us"
)";
  const Cluster cluster = with("gpus = \"4\"\nbeside = 0.2\n" + links).cluster.value();
  EXPECT_EQ(cluster.gpus, 4);
  EXPECT_EQ(cluster.inside.bandwidth.bytes_per_second, 100'000'000'000);
  EXPECT_EQ(cluster.outside.latency, Duration::Microseconds(5));
  EXPECT_EQ(cluster.start, Duration::Microseconds(20));
  EXPECT_EQ(cluster.beside, 0.2);
  EXPECT_EQ(with("gpus = \"8\"\n" + links).cluster->beside, 0);
  EXPECT_THROW(with("gpus = \"0\"\n" + links), InputError);
  EXPECT_THROW(with("gpus = \"8\"\nbeside = 2\n" + links), InputError);
  EXPECT_THROW(with("gpus = \"8\"\nswitches = \"2\"\n" + links), InputError);
}

TEST(DeviceTest, TheFileMaySayTheRatesOfMatrixProducts) {
  EXPECT_EQ(MatrixRate(ParseDevice(kToy, "toy.toml"), Arithmetic::kBf16), 2'000'000'000);
  std::string text(kToy);
  text.insert(text.find("[link]"), "bf16 = \"5GFLOP/s\"\n");
  const Device device = ParseDevice(text, "toy.toml");
  EXPECT_EQ(MatrixRate(device, Arithmetic::kBf16), 5'000'000'000);
  EXPECT_EQ(MatrixRate(device, Arithmetic::kFp32), 2'000'000'000);
  EXPECT_EQ(MatrixRate(device, Arithmetic::kFp8), 2'000'000'000);
}

// Returns the error of reading `kToy` with `from` replaced by `to`, without the directory.
std::string ErrorOfEdit(std::string_view from, std::string_view to) {
  const TemporaryDirectory directory;
  std::string text(kToy);
  const size_t at = text.find(from);
  EXPECT_NE(at, std::string::npos) << from;
  WriteRaw(directory / "toy.toml", text.replace(at, from.size(), to));
  const std::string message = InputErrorOf([&] { ReadDevice(directory / "toy.toml"); });
  return message.substr(message.find("toy.toml"));
}

TEST(DeviceTest, ReadsEveryKey) {
  const TemporaryDirectory directory;
  WriteRaw(directory / "toy.toml", kToy);
  const Device device = ReadDevice(directory / "toy.toml");
  EXPECT_EQ(device.name, "toy");
  EXPECT_EQ(device.description, "a toy");
  EXPECT_EQ(device.library, "toyDNN 1");
  EXPECT_EQ(device.memory, Bytes::GiB(1));
  EXPECT_EQ(device.alignment, Bytes(256));
  EXPECT_EQ(device.host_memory, Bytes::GiB(4));
  EXPECT_EQ(device.flops_per_second, 2'000'000'000);
  EXPECT_EQ(device.dram.bytes_per_second, 3'000'000'000);
  EXPECT_EQ(device.h2d.bandwidth.bytes_per_second, 4'000'000);
  EXPECT_EQ(device.h2d.latency, Duration::Microseconds(5));
  EXPECT_EQ(device.d2h.bandwidth.bytes_per_second, 6'000'000);
  EXPECT_EQ(device.d2h.latency, Duration::Microseconds(7));
  EXPECT_EQ(device.duplex.bytes_per_second, 8'000'000);
  EXPECT_EQ(device.kernel_wait, Duration());
  EXPECT_EQ(device.launch_overhead, Duration::Microseconds(9));
  EXPECT_EQ(device.launch_ahead, 0);
  EXPECT_EQ(device.device_malloc.fixed, Duration::Microseconds(10));
  EXPECT_EQ(device.device_malloc.per_mib, Duration::Microseconds(11));
  EXPECT_EQ(device.device_free.fixed, Duration::Microseconds(12));
  EXPECT_EQ(device.device_free.per_mib, Duration::Microseconds(13));
  EXPECT_EQ(device.host_malloc.fixed, Duration::Microseconds(14));
  EXPECT_EQ(device.host_malloc.At(Bytes::MiB(2)), Duration::Microseconds(44));
  EXPECT_EQ(device.host_malloc.At(Bytes::KiB(512)), Duration::Nanoseconds(21'500));
  EXPECT_EQ(device.efficiency,
            (std::map<std::string, double>{{"default", 0.5}, {"fwd.direct", 1.0}}));
}

TEST(DeviceTest, TheFileMaySayWhatDriversCallTheGpu) {
  const auto with = [](std::string_view line) { return fmt::format("{}\n{}", line, kToy); };
  const Device device =
      ParseDevice(with("gpus = [\"ACME A\", \"A\"]\ncompute_capability = \"9.0\""), "toy.toml");
  EXPECT_THAT(device.gpus, ::testing::ElementsAre("ACME A", "A"));
  EXPECT_EQ(device.compute_capability, "9.0");
  const auto error = [&](std::string_view line) {
    return InputErrorOf([&] { ParseDevice(with(line), "toy.toml"); });
  };
  EXPECT_EQ(error("gpus = \"ACME A\""), "toy.toml:1:8: gpus: expected an array of strings");
  EXPECT_EQ(error("gpus = [\"A\", 7]"), "toy.toml:1:14: gpus: expected a string");
  EXPECT_THAT(error("compute_capability = \"nine\""),
              EndsWith("'nine' is not of the form \"9.0\""));
}

TEST(DeviceTest, TheFileMayHavePoolsAndKnowLinksToOthers) {
  const std::string text = std::string(kToy) + R"([pool.peer]
in = "40GB/s"
in_latency = "1us"
out = "30GB/s"
out_latency = "2us"
duplex = "60GB/s"
[pool.nvme]
size = "1TiB"
in = "5MB/s"
in_latency = "1us"
out = "7MB/s"
out_latency = "1us"
duplex = "5MB/s"
)";
  const Device device = ParseDevice(text, "toy.toml");
  ASSERT_EQ(device.pools.size(), 1u);
  EXPECT_EQ(NameOf(device, OutsidePool(1)), "nvme");
  EXPECT_EQ(SizeOf(device, OutsidePool(1)), Bytes::GiB(1024));
  EXPECT_TRUE(device.pools[0].over_host);
  ASSERT_EQ(device.known_pools.size(), 1u);
  EXPECT_FALSE(device.known_pools[0].over_host);
  EXPECT_EQ(device.known_pools[0].out.latency, Duration::Microseconds(2));
  // The pool copies 7 MB/s, the host 6 MB/s.
  EXPECT_THAT(PoolsBySpeed(device), ::testing::ElementsAre(OutsidePool(1), PoolId::kHost));
  const auto error_with = [&](const std::string& from, const std::string& to) {
    std::string changed = text;
    changed.replace(changed.find(from), from.size(), to);
    return InputErrorOf([&] { ParseDevice(changed, "toy.toml"); });
  };
  EXPECT_THAT(error_with("[pool.nvme]", "[pool.disk]"),
              HasSubstr("unknown key 'disk' (valid: peer, remote, nvme)"));
  EXPECT_THAT(error_with("\"1TiB\"", "\"0B\""), HasSubstr("pool.nvme.size: '0B' is too small"));
  EXPECT_THAT(error_with("\"40GB/s\"", "\"0GB/s\""),
              HasSubstr("pool.peer.in: '0GB/s' is too small"));
  EXPECT_THAT(error_with("duplex = \"60GB/s\"", "over = \"air\""),
              HasSubstr("unknown link 'air' (valid: host, own)"));
}

TEST(DeviceTest, ErrorsNameLineAndColumn) {
  EXPECT_EQ(ErrorOfEdit("\"1GiB\"", "\"12 gigs\""),
            "toy.toml:4:8: memory.size: '12 gigs' is not a size: unknown unit 'gigs' (a number and "
            "one of: B KB MB GB TB KiB MiB GiB TiB)");
  EXPECT_EQ(
      ErrorOfEdit("\"5us\"", "\"5GB\""),
      "toy.toml:12:15: link.h2d_latency: '5GB' is not a duration: unknown unit 'GB' (a number "
      "and one of: ps ns us ms s)");
  EXPECT_EQ(ErrorOfEdit("\"1GiB\"", "12"),
            "toy.toml:4:8: memory.size: expected a string with a unit, like \"12GiB\" or \"9us\"");
  EXPECT_EQ(ErrorOfEdit("\"a toy\"", "7"), "toy.toml:1:15: description: expected a string");
  EXPECT_EQ(
      ErrorOfEdit("h2d_latency", "h2d_latensy"),
      "toy.toml:12:15: link: unknown key 'h2d_latensy'; did you mean 'h2d_latency'? (valid: h2d, "
      "h2d_latency, d2h, d2h_latency, duplex)");
  EXPECT_EQ(ErrorOfEdit("duplex = \"8MB/s\"", "duplex = \"8MB/s\"\nduplexx = \"8MB/s\""),
            "toy.toml:16:11: link: unknown key 'duplexx'; did you mean 'duplex'? (valid: h2d, "
            "h2d_latency, d2h, d2h_latency, duplex)");
  EXPECT_THAT(
      ErrorOfEdit("library", "colour = \"red\"\nlibrary"),
      HasSubstr("toy.toml:2:10: unknown key 'colour' (valid: description, library, memory, "));
  EXPECT_THAT(ErrorOfEdit("[host]\nlaunch_overhead = \"9us\"\n", ""),
              EndsWith("the key 'host' is missing"));
  EXPECT_EQ(ErrorOfEdit("[host]\nlaunch_overhead = \"9us\"\n[driver]", "[driver]\nhost = 1"),
            "toy.toml:1:1: the key 'host' is missing");
}

TEST(DeviceTest, RefusesValuesOutOfRange) {
  EXPECT_EQ(ErrorOfEdit("\"256B\"", "\"384B\""),
            "toy.toml:5:13: memory.alignment: 384 bytes are not a power of two");
  EXPECT_EQ(ErrorOfEdit("\"256B\"", "\"0B\""),
            "toy.toml:5:13: memory.alignment: '0B' is too small, expected at least 1 B");
  EXPECT_EQ(ErrorOfEdit("\"1GiB\"", "\"0GiB\""),
            "toy.toml:4:8: memory.size: '0GiB' is too small, expected at least 1 B");
  EXPECT_EQ(ErrorOfEdit("\"4MB/s\"", "\"0GB/s\""),
            "toy.toml:11:7: link.h2d: '0GB/s' is too small, expected at least 1 MB/s");
  EXPECT_THAT(ErrorOfEdit("\"5us\"", "\"-5us\""), HasSubstr("it is negative"));
  EXPECT_THAT(ErrorOfEdit("\"5us\"", "\"1000.1s\""), HasSubstr("expected at most 1000 s"));
  EXPECT_THAT(ErrorOfEdit("\"2GFLOP/s\"", "\"0FLOP/s\""), HasSubstr("at least 1 FLOP/s"));
  for (const char* value : {"0", "-1", "4.01", "nan", "inf", "\"1\"", "true", "[1]"}) {
    EXPECT_EQ(ErrorOfEdit("default = 0.5", std::string("default = ") + value),
              "toy.toml:26:11: efficiency.default: expected a number above 0, at most 4")
        << value;
  }
  EXPECT_EQ(ErrorOfEdit("default = 0.5", ""),
            "toy.toml:25:1: efficiency: the key 'default' is missing");
  EXPECT_THAT(ErrorOfEdit("default = 0.5", "default = 0.5\nlinear = 0.5"),
              HasSubstr("toy.toml:27:10: efficiency: unknown key 'linear'"));
  EXPECT_THAT(ErrorOfEdit("direct = 1", "direct = [1]"),
              HasSubstr("toy.toml:28:10: efficiency.fwd.direct"));
  EXPECT_THAT(ErrorOfEdit("direct = 1", "direct = 0"),
              HasSubstr("toy.toml:28:10: efficiency.fwd.direct"));
  EXPECT_THAT(ErrorOfEdit("[efficiency.bwd_data]", "[efficiency.bwd]"), HasSubstr("bwd_data"));
}

TEST(DeviceTest, RefusesBadToml) {
  EXPECT_THAT(ErrorOfEdit("[memory]", "[memory"), HasSubstr("toy.toml:3:"));
  EXPECT_THAT(ErrorOfEdit("host = \"4GiB\"", "size = \"4GiB\""), HasSubstr("toy.toml:6:"));
  EXPECT_THAT(InputErrorOf([] { ReadDevice("/nonexistent/x.toml"); }),
              HasSubstr("cannot read '/nonexistent/x.toml'"));
}

// The parser and the destructor of its result recurse, so keys of arbitrary depth must be refused.
TEST(DeviceTest, RefusesKeysThatNestTooDeep) {
  std::string key = "a";
  for (int depth = 0; depth < 1000; ++depth) key += ".a";
  const auto error_of = [](const std::string& text) {
    return InputErrorOf([&] { ParseDevice(text, "toy.toml"); });
  };
  EXPECT_THAT(error_of("[" + key + "]"), ::testing::StartsWith("toy.toml:1:1: unknown key 'a'"));
  EXPECT_EQ(
      error_of("\n[" + key + ".a]"),
      "toy.toml:2:2003: the file has more than the 1000 dots that are allowed for nested keys");
  EXPECT_THAT(error_of("x = " + std::string(100'000, '[')), HasSubstr("toy.toml:1:"));
}

TEST(DeviceTest, CostLawsStayInRange) {
  const CostLaw law{Duration::Microseconds(1), Duration::Milliseconds(1'000'000'000)};
  EXPECT_EQ(law.At(Bytes(0)), law.fixed);
  EXPECT_EQ(law.At(Bytes::MiB(1)), law.fixed + law.per_mib);
  EXPECT_GT(law.At(Bytes::Unlimited()) + law.At(Bytes::Unlimited()), law.At(Bytes::MiB(1)));
}

TEST(DeviceTest, ShippedDevicesAreValidAndSourced) {
  size_t devices = 0;
  size_t numbers = 0;
  for (const auto& file : std::filesystem::directory_iterator(kDevices)) {
    if (file.path().extension() != ".toml") continue;  // skips raw measurements
    const Device device = ReadDevice(file.path());
    EXPECT_EQ(device.name, file.path().stem());
    EXPECT_TRUE(device.efficiency.contains("default")) << device.name;
    EXPECT_GE(device.duplex, std::max(device.h2d.bandwidth, device.d2h.bandwidth)) << device.name;
    std::istringstream lines(ReadRaw(file.path()));
    for (std::string line; std::getline(lines, line);) {
      // A value without a digit needs no source.
      const size_t value = line.find(" = ");
      if (value == std::string::npos) continue;
      const std::string_view key = std::string_view(line).substr(0, value);
      // The values of these keys are names.
      if (key == "description" || key == "gpus" || key == "compute_capability") continue;
      if (line.find_first_of("0123456789", value) > line.find('#')) continue;
      EXPECT_THAT(line, ::testing::ContainsRegex("# (source|estimate): ")) << file.path();
      ++numbers;
    }
    ++devices;
  }
  EXPECT_GE(devices, 10);
  EXPECT_GE(numbers, 20 * devices);
}

// vDNN, section V-C: memory-optimal algorithms lose 55 % to 58 % on average.
TEST(DeviceTest, TitanXLosesWithMemoryOptimalAlgorithms) {
  const Device device = ReadDevice(kDevices / "titan_x_maxwell.toml");
  for (const char* fastest : {"fwd.fft", "fwd.fft_tiling", "bwd_data.fft"}) {
    for (const char* smallest : {"fwd.implicit_gemm", "bwd_data.algo_1", "bwd_filter.algo_1"}) {
      const double ratio = device.efficiency.at(fastest) / device.efficiency.at(smallest);
      EXPECT_GE(ratio, 2.2);
      EXPECT_LE(ratio, 2.4);
    }
  }
}

// The raw times of h200.calibration.json: 21.61 us for 1 MiB to the device, 20.60 us back.
TEST(DeviceTest, H200ReproducesItsMeasuredCopies) {
  const Device device = ReadDevice(kDevices / "h200.toml");
  const auto microseconds = [](const Link& link, Bytes size) {
    return 1e6 * (link.latency + TransferTime(size, link.bandwidth)).seconds();
  };
  EXPECT_NEAR(microseconds(device.h2d, Bytes::MiB(1)), 21.61, 0.3);
  EXPECT_NEAR(microseconds(device.d2h, Bytes::MiB(1)), 20.60, 0.3);
  EXPECT_NEAR(microseconds(device.h2d, Bytes::MiB(512)), 9687, 50);
}

}  // namespace
}  // namespace spillway::testing
