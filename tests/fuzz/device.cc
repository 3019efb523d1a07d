// Fuzz target: the device file reader.
//
// An accepted device has every number in its documented range. Cost laws, copies and analytic
// kernel times of any size can be computed with it.

#include <string>

#include "sim/core/device.h"
#include "sim/cost/roofline.h"
#include "tests/fuzz/property.h"

namespace spillway::fuzz {
namespace {

void CheckRanges(const Device& device) {
  constexpr Bandwidth kLeast{1'000'000};
  SPILLWAY_CHECK(device.memory >= Bytes(1) && device.host_memory >= Bytes(1));
  const int64_t alignment = device.alignment.count();
  SPILLWAY_CHECK(alignment >= 1 && (alignment & (alignment - 1)) == 0);
  SPILLWAY_CHECK(device.flops_per_second >= 1);
  for (const Bandwidth rate :
       {device.dram, device.duplex, device.h2d.bandwidth, device.d2h.bandwidth}) {
    SPILLWAY_CHECK(rate >= kLeast);
  }
  for (const Duration time : {device.h2d.latency, device.d2h.latency, device.launch_overhead,
                              device.library_call.value_or(Duration())}) {
    SPILLWAY_CHECK(time >= Duration());
  }
  SPILLWAY_CHECK(device.efficiency.contains("default"));
  for (const auto& [key, value] : device.efficiency) SPILLWAY_CHECK(value > 0 && value <= 4);
}

void CheckComputes(const Device& device) {
  const RooflineCostModel cost(device);
  for (const Bytes size : {Bytes(0), Bytes(1), Bytes::GiB(1), Bytes::Unlimited()}) {
    for (const Direction direction : {Direction::kToDevice, Direction::kToHost}) {
      SPILLWAY_CHECK(cost.CopyTime(direction, size) >= Duration());
    }
    for (const CostLaw& law : {device.device_malloc, device.device_free, device.host_malloc,
                               device.page_map, device.page_map_new, device.page_unmap}) {
      const bool small = law.small && size < CostLaw::kSmall;
      SPILLWAY_CHECK(law.At(size) >= (small ? Duration() : law.fixed));
    }
  }
  Op op;
  op.name = "conv.fwd";
  op.type = OpType::kConv2d;
  op.batch = 64;
  op.slots.push_back({"fwd", "conv2d.fwd", 1'000'000'000, Bytes::MiB(64)});
  op.attributes = {{"in_channels", 64}, {"in_height", 56}, {"in_width", 56}, {"out_channels", 64},
                   {"out_height", 56},  {"out_width", 56}, {"kernel_h", 3},  {"kernel_w", 3},
                   {"stride_h", 1},     {"stride_w", 1},   {"pad_h", 1},     {"pad_w", 1},
                   {"groups", 1},       {"bias", 1}};
  Runs([&] {
    for (const Kernel& kernel : cost.Kernels(op, 0, op.batch)) {
      SPILLWAY_CHECK(kernel.time >= Duration() && kernel.workspace >= Bytes(0));
    }
  });
}

}  // namespace
}  // namespace spillway::fuzz

int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace spillway::fuzz;
  Device device;
  const bool accepted = Accepts("any.toml", "there is no such error",
                                [&] { device = ParseDevice(Text(data, size), "any.toml"); });
  if (!accepted) return 0;
  CheckRanges(device);
  CheckComputes(device);
  return 0;
}
