#include "backend/cuda/call_timing.h"

#include <cuda_runtime_api.h>
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <memory>
#include <optional>
#include <utility>

#include "backend/cuda/calibration_kernels.h"
#include "backend/cuda/cuda_error.h"
#include "backend/cuda/device_memory.h"
#include "backend/cuda/kernels.h"
#include "backend/cuda/page_memory.h"
#include "backend/cuda/stream.h"
#include "traces/base/error.h"

namespace spillway::cuda {
namespace {

constexpr Duration kHostTime = Duration::Milliseconds(500);  // limit for a slow call's repeats

constexpr Bytes kLeastAllocation = Bytes(512);
constexpr int64_t kAllocations = 32;  // blocks that are alive at once
constexpr Bytes kLeastPinned = Bytes::MiB(1);
constexpr Bytes kPage = Bytes::MiB(2);
constexpr Bytes kOtherMemory = Bytes::MiB(64);
constexpr Bytes kLittleWorkspace = Bytes::MiB(256);

// Work that imitates the kernels that run between two calls of an iteration.
class Work {
 public:
  Work() : from_(kOtherMemory), to_(kOtherMemory) {}

  // Runs kernels that use this memory and then kernels that use other memory. Returns when they
  // have ended.
  void Use(const DeviceRange& range) const {
    SPILLWAY_CUDA_CALL(
        cudaMemsetAsync(range.data, 0, static_cast<size_t>(range.size.count()), stream_.get()));
    LaunchStreamCopy(from_.data(), to_.data(), kOtherMemory.count(), stream_.get());
    SPILLWAY_CUDA_CALL(cudaDeviceSynchronize());
  }

 private:
  CudaStream stream_;
  DeviceBuffer from_;
  DeviceBuffer to_;
};

template <typename Call>
Duration HostTime(const Call& call) {
  const Duration before = HostClock();
  call();
  return HostClock() - before;
}

// Decides when a call has been repeated often enough: after `repeats`, or after the least number
// once `kHostTime` has passed.
class Repeats {
 public:
  explicit Repeats(int repeats) : repeats_(std::max(repeats, kLeastRepeats)) {}

  bool enough(size_t count) const {
    return count >= static_cast<size_t>(repeats_) ||
           (count >= kLeastRepeats && HostClock() - start_ > kHostTime);
  }

 private:
  const int repeats_;
  const Duration start_ = HostClock();
};

// Times the allocation and release of one block at a time, while up to `at_once` blocks are alive.
// `use` runs kernels on a block after its allocation and before its release.
template <typename Buffer, typename Use>
AllocationTiming TimeAllocations(Bytes size, int64_t at_once, int repeats, const Use& use) {
  std::vector<Duration> allocate;
  std::vector<Duration> release;
  const Repeats wanted(repeats);
  bool first = true;  // the first round, untimed, initialises the driver
  while (!wanted.enough(allocate.size())) {
    std::vector<std::unique_ptr<Buffer>> blocks;
    for (int64_t i = 0; i < at_once; ++i) {
      const Duration time = HostTime([&] { blocks.push_back(std::make_unique<Buffer>(size)); });
      if (!first) allocate.push_back(time);
      use(*blocks.back());
    }
    for (std::unique_ptr<Buffer>& block : blocks) {
      use(*block);
      const Duration time = HostTime([&] { block.reset(); });
      if (!first) release.push_back(time);
    }
    first = false;
  }
  return {size, Summarise(std::move(allocate)), Summarise(std::move(release))};
}

struct Convolution {
  int64_t batch, in, height, width, out, kernel, stride;
};

// A first layer, a bottleneck and two inner layers of the kinds in VGG, ResNet and GoogLeNet. The
// batches are small, since the host's time does not depend on them.
constexpr std::array kConvolutions{
    Convolution{16, 3, 224, 224, 64, 7, 2},
    Convolution{16, 64, 56, 56, 64, 3, 1},
    Convolution{16, 256, 28, 28, 64, 1, 1},
    Convolution{16, 256, 14, 14, 512, 3, 1},
};

Op OpOf(const Convolution& c, Phase phase) {
  Op op;
  op.name = "convolution";
  op.type = OpType::kConv2d;
  op.phase = phase;
  op.batch = c.batch;
  const auto number = [](int64_t value) { return static_cast<double>(value); };
  op.attributes = {{"in_channels", number(c.in)},
                   {"in_height", number(c.height)},
                   {"in_width", number(c.width)},
                   {"out_channels", number(c.out)},
                   {"out_height", number(c.height / c.stride)},
                   {"out_width", number(c.width / c.stride)},
                   {"kernel_h", number(c.kernel)},
                   {"kernel_w", number(c.kernel)},
                   {"stride_h", number(c.stride)},
                   {"stride_w", number(c.stride)},
                   {"pad_h", number(c.kernel / 2)},
                   {"pad_w", number(c.kernel / 2)},
                   {"groups", 1},
                   {"bias", 1},
                   {"needs_dx", 1}};
  if (phase == Phase::kForward) {
    op.slots = {{"fwd", "", 0, Bytes(0)}};
  } else {
    op.slots = {{"bwd_data", "", 0, Bytes(0)}, {"bwd_filter", "", 0, Bytes(0)}};
  }
  return op;
}

// Returns the host time of one launch, or nullopt if the algorithm fails when launched.
std::optional<Timing> TimeLaunch(CudaKernels& kernels, const Op& op, const SlotLaunch& launch,
                                 const CudaStream& stream, int repeats) {
  constexpr int kWarmUp = 2;  // launches in which the library loads its kernels
  std::vector<Duration> times;
  const Repeats wanted(repeats);
  try {
    for (int i = 0; !wanted.enough(times.size()); ++i) {
      const Duration time = HostTime([&] { kernels.Launch(op, launch, stream.get()); });
      SPILLWAY_CUDA_CALL(cudaDeviceSynchronize());
      if (i >= kWarmUp) times.push_back(time);
    }
  } catch (const Error&) {
    static_cast<void>(cudaGetLastError());
    SPILLWAY_CUDA_CALL(cudaDeviceSynchronize());  // throws if the device itself failed
    return std::nullopt;
  }
  return Summarise(std::move(times));
}

}  // namespace

Timing Summarise(std::vector<Duration> times) {
  std::sort(times.begin(), times.end());
  return {Duration::Picoseconds(std::llround(Percentile(times, 0.5))), Spread(times),
          static_cast<int>(times.size())};
}

std::vector<AllocationTiming> TimeDeviceMemory(Bytes largest, int repeats) {
  const Work work;
  std::vector<AllocationTiming> timings;
  for (Bytes size = kLeastAllocation; size <= largest; size += size) {
    const int64_t fitting = FreeDeviceMemory().count() / 2 / size.count();
    if (fitting < 1) break;
    timings.push_back(
        TimeAllocations<DeviceBuffer>(size, std::min(fitting, kAllocations), repeats,
                                      [&](const DeviceBuffer& block) { work.Use(block.range()); }));
  }
  return timings;
}

std::vector<AllocationTiming> TimePinnedMemory(Bytes largest, int repeats) {
  std::vector<AllocationTiming> timings;
  for (Bytes size = kLeastPinned; size <= largest; size += size) {
    timings.push_back(TimeAllocations<PinnedBuffer>(size, 1, repeats, [](const PinnedBuffer&) {}));
  }
  return timings;
}

std::vector<PageTiming> TimePageMemory(Bytes largest, int repeats) {
  std::optional<PageMemory> pages;
  try {
    pages.emplace();
  } catch (const EnvironmentError&) {
    return {};
  }
  while (8 * largest > FreeDeviceMemory()) largest = Bytes(largest.count() / 2);
  const Work work;
  Bytes address;
  // Maps `size` bytes at addresses never used before, and uses them. Returns the host time of the
  // mapping.
  const auto map = [&](Bytes size, std::optional<Bytes> memory) {
    const Block range{address, size};
    address += size;
    const Duration time = HostTime([&] { pages->Map(range, memory); });
    work.Use({pages->At(range), size});
    return time;
  };
  std::vector<PageTiming> timings;
  for (Bytes size = kPage; size <= largest; size += size) {
    std::vector<Duration> again, created, unmapped;
    // Memory [size, 2 * size) exists from now on. Each size has its own memory, so that no page
    // gets many addresses.
    static_cast<void>(map(size, size));
    const Repeats wanted(repeats);
    for (bool first = true; !wanted.enough(again.size()); first = false) {
      const Duration of_map = map(size, size);
      const Block range{address, size};
      const Duration of_map_new = map(size, std::nullopt);
      const Duration of_unmap = HostTime([&] { pages->Unmap(range); });
      if (first) continue;
      again.push_back(of_map);
      created.push_back(of_map_new);
      unmapped.push_back(of_unmap);
    }
    timings.push_back({size, Summarise(std::move(again)), Summarise(std::move(created)),
                       Summarise(std::move(unmapped))});
  }
  return timings;
}

std::vector<LibraryCallTiming> TimeLibraryCalls(int repeats) {
  CudaKernels kernels({});
  const CudaStream stream;
  const DeviceBuffer workspace(kLittleWorkspace);
  std::vector<LibraryCallTiming> timings;
  for (const Convolution& c : kConvolutions) {
    const auto floats = [](int64_t count) {
      return DeviceBuffer(Bytes(count * static_cast<int64_t>(sizeof(float))));
    };
    const DeviceBuffer x = floats(c.batch * c.in * c.height * c.width);
    const DeviceBuffer weight = floats(c.out * c.in * c.kernel * c.kernel);
    const DeviceBuffer bias = floats(c.out);
    const DeviceBuffer dx(x.size()), dweight(weight.size()), dbias(bias.size());
    const DeviceBuffer y = floats(c.batch * c.out * (c.height / c.stride) * (c.width / c.stride));
    const std::array forward_in{x.range(), weight.range(), bias.range()};
    const std::array forward_out{y.range()};
    const std::array backward_in{x.range(), weight.range(), y.range()};
    const std::array backward_out{dx.range(), dweight.range(), dbias.range()};
    for (const Phase phase : {Phase::kForward, Phase::kBackward}) {
      const Op op = OpOf(c, phase);
      SlotLaunch launch;
      launch.batch = c.batch;
      launch.workspace = workspace.range();
      if (phase == Phase::kForward) {
        launch.inputs = forward_in;
        launch.outputs = forward_out;
      } else {
        launch.inputs = backward_in;
        launch.outputs = backward_out;
      }
      for (; launch.slot < op.slots.size(); ++launch.slot) {
        for (const Candidate& candidate : kernels.Candidates(op, launch.slot, c.batch)) {
          if (!candidate.deterministic || candidate.workspace > kLittleWorkspace) continue;
          launch.algorithm = candidate.algorithm;
          const auto time = TimeLaunch(kernels, op, launch, stream, repeats);
          if (!time) continue;
          timings.push_back(
              {fmt::format("{}.{} in={}x{}x{} out={} kernel={}x{} stride={} batch={}",
                           op.slots[launch.slot].name, candidate.algorithm, c.in, c.height, c.width,
                           c.out, c.kernel, c.kernel, c.stride, c.batch),
               *time});
        }
      }
    }
  }
  return timings;
}

}  // namespace spillway::cuda
