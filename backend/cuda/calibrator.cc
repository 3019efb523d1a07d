#include "backend/cuda/calibrator.h"

#include <cuda_runtime_api.h>
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <fstream>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "backend/cuda/calibration_kernels.h"
#include "backend/cuda/call_timing.h"
#include "backend/cuda/cuda_error.h"
#include "backend/cuda/device_memory.h"
#include "backend/cuda/elementwise.h"
#include "backend/cuda/peer_memory.h"
#include "backend/cuda/stream.h"
#include "sim/core/cost_model.h"
#include "traces/base/error.h"

namespace spillway::cuda {
namespace {

// Short copies and kernels are timed in groups that last about this long.
constexpr Duration kGroupTime = Duration::Microseconds(500);
constexpr Duration kOverlapTime = Duration::Milliseconds(10);
constexpr int64_t kLargestGroup = 64;
constexpr int64_t kCalls = 64;  // calls whose host time is measured together
constexpr Duration kLeastHold = Duration::Microseconds(200);

constexpr Bytes kLeastCopy = Bytes::KiB(4);
constexpr Bytes kPrimeCopy = Bytes::KiB(256);
constexpr Bytes kEnqueuedCopy = Bytes::MiB(1);
constexpr Bytes kOverlapCopy = Bytes::MiB(64);
constexpr Bytes kLoadCopy = Bytes::MiB(512);
constexpr Bytes kLeastDeviceCopy = Bytes::MiB(128);  // much larger than the cache
constexpr Bytes kMostPages = Bytes::GiB(1);

// Returns the rest of the first line of a file that starts with `prefix`, without separators.
// Returns an empty string if no line does.
std::string FindLine(const std::string& path, std::string_view prefix) {
  std::ifstream file(path);
  for (std::string line; std::getline(file, line);) {
    if (!line.starts_with(prefix)) continue;
    const size_t start = line.find_first_not_of(" \t:", prefix.size());
    return start == std::string::npos ? std::string() : line.substr(start);
  }
  return {};
}

// Returns for example "32.0 GT/s PCIe x16", from the kernel's PCI tree, or an empty string if the
// tree does not say.
std::string LinkName(int device) {
  std::array<char, 32> id{};
  SPILLWAY_CUDA_CALL(cudaDeviceGetPCIBusId(id.data(), static_cast<int>(id.size()), device));
  std::string folder = "/sys/bus/pci/devices/";
  for (const char* c = id.data(); *c != 0; ++c) {
    folder += static_cast<char>(std::tolower(static_cast<unsigned char>(*c)));
  }
  const std::string speed = FindLine(folder + "/current_link_speed", "");
  const std::string width = FindLine(folder + "/current_link_width", "");
  return speed.empty() || width.empty() ? std::string() : fmt::format("{} x{}", speed, width);
}

int DeviceAttribute(cudaDeviceAttr attribute, int device) {
  int value = 0;
  SPILLWAY_CUDA_CALL(cudaDeviceGetAttribute(&value, attribute, device));
  return value;
}

// Returns how many fp32 multiply-adds a multiprocessor starts per clock, by compute capability
// (CUDA's programming guide, arithmetic instructions).
int64_t MultiplyAddsPerClock(int major, int minor) {
  if (major == 3) return 192;
  const bool half = (major == 6 && minor == 0) || major == 7 || (major == 8 && minor == 0);
  return half ? 64 : 128;
}

// A stream and the item, a kernel or copy, that it repeats.
struct Lane {
  CudaStream stream;
  TimingEvent start;
  TimingEvent end;
  TimingEvent last;
  std::function<void()> item;
  std::function<void()> prime;  // a short item: its engine then also stamps the start
  int64_t count = 1;            // items that are timed
  int64_t extra = 0;            // items behind them, which keep this lane busy for the others
};

class Calibrator {
 public:
  explicit Calibrator(const CalibrateOptions& options)
      : options_(options),
        repeats_(std::max(options.repeats, kLeastRepeats)),
        largest_copy_(std::max(options.largest_copy, kOverlapCopy)),
        host_in_(largest_copy_),
        host_out_(largest_copy_),
        device_in_(largest_copy_),
        device_out_(largest_copy_),
        load_from_(kLoadCopy),
        load_to_(kLoadCopy),
        sink_(Bytes(2 * kCalls * int64_t{sizeof(int64_t)})) {
    if (options.peer) peer_.emplace(options.device, *options.peer, 2 * largest_copy_);
    machine_ = DescribeGpu(options.device);
    multiprocessors_ = DeviceAttribute(cudaDevAttrMultiProcessorCount, options.device);
    for (const PinnedBuffer* buffer : {&host_in_, &host_out_}) {
      std::fill_n(buffer->data(), buffer->size().count(), std::byte{1});
    }
  }

  Measurements Run() {
    const Bytes largest = options_.largest_allocation;
    std::vector<std::pair<const char*, std::function<void()>>> steps{
        {"copies between host and device", [&] { result_.copies = TimeCopies(); }},
        {"copies within the device", [&] { MeasureDeviceCopies(); }},
        {"kernels beside copies", [&] { MeasureOverlaps(); }},
        {"launches and events", [&] { MeasureLatencies(); }},
        {"cudaMalloc and cudaFree",
         [&] { result_.device_memory = TimeDeviceMemory(largest, repeats_); }},
        {"mapping of pages",
         [&] { result_.page_memory = TimePageMemory(std::min(largest, kMostPages), repeats_); }},
        {"cudaMallocHost and cudaFreeHost",
         [&] { result_.pinned_memory = TimePinnedMemory(options_.largest_pinned, repeats_); }},
        {"calls of the convolution library",
         [&] { result_.library_calls = TimeLibraryCalls(repeats_); }},
    };
    if (peer_) {
      steps.emplace_back("copies to and from the peer", [&] {
        outside_is_peer_ = true;
        result_.peer_copies = TimeCopies();
        outside_is_peer_ = false;
      });
    }
    WarmUp(options_.clock_warmup);
    DescribeMachine();  // now that the link runs at full speed
    size_t index = 0;
    for (const auto& [name, measure] : steps) {
      if (options_.progress) options_.progress({index, steps.size(), name});
      ++index;
      WarmUp(Duration::Milliseconds(100));
      measure();
    }
    return std::move(result_);
  }

 private:
  using Lanes = std::span<Lane* const>;

  void DescribeMachine() {
    machine_.link = LinkName(options_.device);
    machine_.host = FindLine("/proc/cpuinfo", "model name");
    machine_.driver = DriverVersion();
    machine_.cuda = RuntimeVersion();
    machine_.date = DateNow();
    machine_.tool = ToolVersion();
    result_.machine = machine_;
  }

  // Keeps compute units and links busy for `time`.
  void WarmUp(Duration time) {
    SetLoad(Load::kCompute);
    SetCopy(Direction::kToDevice, kOverlapCopy);
    SetCopy(Direction::kToHost, kOverlapCopy);
    const Duration until = HostClock() + time;
    while (HostClock() < until) {
      for (int i = 0; i < 8; ++i) kernel_.item();
      in_.item();
      out_.item();
      SPILLWAY_CUDA_CALL(cudaDeviceSynchronize());
    }
  }

  std::vector<CopyTiming> TimeCopies();
  void MeasureDeviceCopies();
  void MeasureOverlaps();
  void MeasureLatencies();

  Lane& LaneOf(Direction direction) { return direction == Direction::kToDevice ? in_ : out_; }

  // Enqueues a copy of the first `size` bytes between the buffers of one direction.
  void EnqueueCopy(Direction direction, Bytes size, const CudaStream& stream) const {
    if (outside_is_peer_) {
      const bool in = direction == Direction::kToDevice;
      const Block block{in ? Bytes(0) : largest_copy_, size};
      peer_->Copy(direction, (in ? device_in_ : device_out_).data(), block, stream.get(), {});
      return;
    }
    const auto count = static_cast<size_t>(size.count());
    if (direction == Direction::kToDevice) {
      SPILLWAY_CUDA_CALL(cudaMemcpyAsync(device_in_.data(), host_in_.data(), count,
                                         cudaMemcpyHostToDevice, stream.get()));
    } else {
      SPILLWAY_CUDA_CALL(cudaMemcpyAsync(host_out_.data(), device_out_.data(), count,
                                         cudaMemcpyDeviceToHost, stream.get()));
    }
  }

  void SetCopy(Direction direction, Bytes size) {
    Lane& lane = LaneOf(direction);
    lane.prime = [this, direction, &lane] { EnqueueCopy(direction, kPrimeCopy, lane.stream); };
    lane.item = [this, direction, size, &lane] { EnqueueCopy(direction, size, lane.stream); };
  }

  void SetLoad(Load load) {
    const cudaStream_t stream = kernel_.stream.get();
    kernel_.prime = [stream] { LaunchEmpty(stream); };
    if (load == Load::kDram) {
      kernel_.item = [this, stream] {
        LaunchStreamCopy(load_from_.data(), load_to_.data(), kLoadCopy.count(), stream);
      };
    } else {
      kernel_.item = [this, stream] {
        result_.overlaps.kernel_flops =
            LaunchMultiplyAdd(sink_.floats(), 8 * multiprocessors_, stream);
      };
    }
  }

  // Chooses how many items the lane times, so that they last about `time` when it runs alone.
  void ChooseCount(Lane& lane, Duration time) {
    lane.count = 1;
    lane.extra = 0;
    hold_ = kLeastHold;
    Lane* const lanes[] = {&lane};
    static_cast<void>(Play(lanes));  // the first run is cold
    static_cast<void>(Play(lanes));
    const int64_t once = std::max<int64_t>(Elapsed(lane.start, lane.end).picoseconds(), 1);
    lane.count = std::clamp<int64_t>(time.picoseconds() / once, 1, kLargestGroup);
  }

  // Runs the lanes side by side, all started by one gate. Returns true iff the times are valid.
  // They are not if the host was too slow to enqueue, or a lane ended before another lane's timed
  // items did. In both cases this corrects the cause for the next run.
  bool Play(Lanes lanes) {
    const Duration before = HostClock();
    Spin(hold_.picoseconds() / 1000, gate_stream_.get());
    gate_.Record(gate_stream_);
    for (Lane* lane : lanes) {
      SPILLWAY_CUDA_CALL(cudaStreamWaitEvent(lane->stream.get(), gate_.get(), 0));
      lane->prime();
      lane->start.Record(lane->stream);
    }
    for (Lane* lane : lanes) {
      for (int64_t i = 0; i < lane->count; ++i) lane->item();
      lane->end.Record(lane->stream);
      for (int64_t i = 0; i < lane->extra; ++i) lane->item();
      lane->last.Record(lane->stream);
    }
    const Duration host = HostClock() - before;
    for (Lane* lane : lanes) lane->last.Synchronize();

    bool good = true;
    if (host > hold_ && hold_ < kLongestSpin) {
      hold_ = std::min(Divide(host * 3, 2) + kLeastHold, kLongestSpin);
      good = false;
    }
    for (const Lane* timed : lanes) {
      for (Lane* other : lanes) {
        if (Elapsed(timed->end, other->last) >= Duration()) continue;
        other->extra = std::max<int64_t>(1, 2 * other->extra);
        good = false;
      }
    }
    return good;
  }

  // Returns the time of one item of each lane when all lanes run side by side, in the order of
  // `lanes`. Throws `Error` if the host stays too slow.
  std::vector<Timing> Measure(Lanes lanes) {
    std::vector<std::vector<Duration>> times(lanes.size());
    static_cast<void>(Play(lanes));
    int failures = 0;
    while (times.front().size() < static_cast<size_t>(repeats_)) {
      if (!Play(lanes)) {
        if (++failures <= 10 + repeats_) continue;
        throw Error("calibration: the host is too slow to keep the device busy");
      }
      auto time = times.begin();
      for (const Lane* lane : lanes) {
        (time++)->push_back(Divide(Elapsed(lane->start, lane->end), lane->count));
      }
    }
    std::vector<Timing> timings;
    for (std::vector<Duration>& time : times) timings.push_back(Summarise(std::move(time)));
    return timings;
  }
  // Returns the time of one item of a lane that runs alone.
  Timing MeasureAlone(Lane& lane) {
    Lane* const lanes[] = {&lane};
    lane.extra = 0;
    return Measure(lanes).front();
  }

  // Returns the host time of `call`, which enqueues something. `hold` keeps the device busy
  // meanwhile.
  Timing EnqueueTime(const std::function<void()>& hold, const std::function<void()>& call) {
    std::vector<Duration> times;
    for (int i = 0; i <= repeats_; ++i) {
      hold();
      const Duration before = HostClock();
      for (int64_t n = 0; n < kCalls; ++n) call();
      const Duration time = HostClock() - before;
      SPILLWAY_CUDA_CALL(cudaDeviceSynchronize());
      if (i > 0) times.push_back(Divide(time, kCalls));
    }
    return Summarise(std::move(times));
  }

  // Returns the time from `start_` to `end_`, divided by `count`. `enqueue` records both events on
  // the streams of `kernel_` and `in_`, which are held until it returns.
  Timing DeviceTime(int64_t count, const std::function<void()>& enqueue) {
    std::vector<Duration> times;
    for (int i = 0; i <= repeats_; ++i) {
      Spin(Duration::Milliseconds(1).picoseconds() / 1000, gate_stream_.get());
      gate_.Record(gate_stream_);
      for (const Lane* lane : {&kernel_, &in_}) {
        SPILLWAY_CUDA_CALL(cudaStreamWaitEvent(lane->stream.get(), gate_.get(), 0));
      }
      enqueue();
      SPILLWAY_CUDA_CALL(cudaDeviceSynchronize());
      if (i > 0) times.push_back(Divide(Elapsed(start_, end_), count));
    }
    return Summarise(std::move(times));
  }

  Timing KernelGap();

  const CalibrateOptions& options_;
  const int repeats_;
  const Bytes largest_copy_;
  Machine machine_;
  int multiprocessors_ = 0;
  CudaStream gate_stream_;
  TimingEvent gate_;
  TimingEvent start_;
  TimingEvent end_;
  Lane kernel_;
  Lane in_;
  Lane out_;
  PinnedBuffer host_in_;
  PinnedBuffer host_out_;
  DeviceBuffer device_in_;
  DeviceBuffer device_out_;
  DeviceBuffer load_from_;
  DeviceBuffer load_to_;
  DeviceBuffer sink_;  // receives the compute kernel's float and the time stamps
  std::optional<PeerMemory> peer_;
  bool outside_is_peer_ = false;  // copies go to and from the peer rather than the host
  Duration hold_ = kLeastHold;
  Measurements result_;
};

std::vector<CopyTiming> Calibrator::TimeCopies() {
  std::vector<CopyTiming> points;
  for (Bytes size = kLeastCopy; size <= options_.largest_copy; size += size) {
    CopyTiming point;
    point.size = size;
    const auto alone = [&](Direction direction, Timing& grouped, Timing& single) {
      Lane& lane = LaneOf(direction);
      SetCopy(direction, size);
      ChooseCount(lane, kGroupTime);
      grouped = MeasureAlone(lane);
      const int64_t count = std::exchange(lane.count, 1);
      single = count == 1 ? grouped : MeasureAlone(lane);
      lane.count = count;
    };
    alone(Direction::kToDevice, point.h2d, point.h2d_single);
    alone(Direction::kToHost, point.d2h, point.d2h_single);
    Lane* const lanes[] = {&in_, &out_};
    for (Lane* lane : lanes) lane->extra = (lane->count + 1) / 2;
    const std::vector<Timing> both = Measure(lanes);
    point.h2d_both = both[0];
    point.d2h_both = both[1];
    points.push_back(point);
  }
  return points;
}

void Calibrator::MeasureDeviceCopies() {
  Bytes largest = options_.largest_device_copy;
  while (4 * largest > FreeDeviceMemory()) largest = Bytes(largest.count() / 2);
  if (largest < kLeastDeviceCopy) return;
  const DeviceBuffer from(largest);
  const DeviceBuffer to(largest);
  const cudaStream_t stream = kernel_.stream.get();
  for (Bytes size = kLeastDeviceCopy; size <= largest; size += size) {
    kernel_.prime = [stream] { LaunchEmpty(stream); };
    kernel_.item = [&, size] {
      SPILLWAY_CUDA_CALL(cudaMemcpyAsync(to.data(), from.data(), static_cast<size_t>(size.count()),
                                         cudaMemcpyDeviceToDevice, stream));
    };
    ChooseCount(kernel_, kGroupTime);
    result_.device_copies.push_back({size, MeasureAlone(kernel_)});
  }
}

void Calibrator::MeasureOverlaps() {
  Overlaps& overlaps = result_.overlaps;
  overlaps.kernel_traffic = 2 * kLoadCopy;
  overlaps.copy_size = kOverlapCopy;
  for (const Direction direction : {Direction::kToDevice, Direction::kToHost}) {
    SetCopy(direction, kOverlapCopy);
    ChooseCount(LaneOf(direction), kOverlapTime);
  }
  for (const Load load : {Load::kNone, Load::kDram, Load::kCompute}) {
    if (load != Load::kNone) {
      SetLoad(load);
      ChooseCount(kernel_, kOverlapTime);
    }
    for (const bool out : {false, true}) {
      for (const bool in : {false, true}) {
        Overlap point;
        point.load = load;
        std::vector<Lane*> lanes;
        std::vector<Timing*> timings;
        const auto take = [&](bool takes_part, Lane& lane, Timing& timing) {
          if (!takes_part) return;
          lanes.push_back(&lane);
          timings.push_back(&timing);
        };
        take(load != Load::kNone, kernel_, point.kernel);
        take(in, in_, point.h2d);
        take(out, out_, point.d2h);
        if (lanes.empty()) continue;
        // This is enough if a kernel or copy becomes half as fast. `Play` adds more if needed.
        for (Lane* lane : lanes) lane->extra = lanes.size() == 1 ? 0 : lane->count;
        const std::vector<Timing> measured = Measure(lanes);
        for (size_t i = 0; i < measured.size(); ++i) *timings[i] = measured[i];
        overlaps.points.push_back(point);
      }
    }
  }
}

// Returns the mean gap between the kernels of a chain. A mean is used because the device's clock
// may tick slowly.
Timing Calibrator::KernelGap() {
  const cudaStream_t stream = kernel_.stream.get();
  auto* stamps = reinterpret_cast<int64_t*>(sink_.data());
  std::array<int64_t, 2 * kCalls> host{};
  std::vector<Duration> gaps;
  for (int i = 0; i <= repeats_; ++i) {
    Spin(Duration::Milliseconds(1).picoseconds() / 1000, stream);
    for (int64_t n = 0; n < kCalls; ++n) LaunchStamp(stamps + 2 * n, stream);
    SPILLWAY_CUDA_CALL(
        cudaMemcpyAsync(host.data(), stamps, sizeof(host), cudaMemcpyDeviceToHost, stream));
    kernel_.stream.Synchronize();
    int64_t nanoseconds = 0;
    for (size_t n = 2; n < host.size(); n += 2) nanoseconds += host[n] - host[n - 1];
    const Duration sum = std::max(Duration(), Duration::Nanoseconds(nanoseconds));
    if (i > 0) gaps.push_back(Divide(sum, kCalls - 1));
  }
  return Summarise(std::move(gaps));
}

void Calibrator::MeasureLatencies() {
  Latencies& latencies = result_.latencies;
  const Duration hold = Duration::Milliseconds(2);
  const auto hold_stream = [&](const CudaStream& stream) {
    return [&stream, hold] { Spin(hold.picoseconds() / 1000, stream.get()); };
  };
  latencies.enqueue_kernel =
      EnqueueTime(hold_stream(kernel_.stream), [&] { LaunchEmpty(kernel_.stream.get()); });
  latencies.enqueue_h2d = EnqueueTime(hold_stream(in_.stream), [&] {
    EnqueueCopy(Direction::kToDevice, kEnqueuedCopy, in_.stream);
  });
  latencies.enqueue_d2h = EnqueueTime(hold_stream(out_.stream), [&] {
    EnqueueCopy(Direction::kToHost, kEnqueuedCopy, out_.stream);
  });
  latencies.record_event =
      EnqueueTime(hold_stream(kernel_.stream), [&] { start_.Record(kernel_.stream); });
  const auto hold_event = [&] {
    hold_stream(gate_stream_)();
    gate_.Record(gate_stream_);
  };
  latencies.wait_event = EnqueueTime(hold_event, [&] {
    SPILLWAY_CUDA_CALL(cudaStreamWaitEvent(kernel_.stream.get(), gate_.get(), 0));
  });

  latencies.kernel_period = DeviceTime(kCalls, [&] {
    LaunchEmpty(kernel_.stream.get());
    start_.Record(kernel_.stream);
    for (int64_t i = 0; i < kCalls; ++i) LaunchEmpty(kernel_.stream.get());
    end_.Record(kernel_.stream);
  });
  latencies.kernel_gap = KernelGap();
  const auto launch = [&] { LaunchEmpty(kernel_.stream.get()); };
  const auto copy = [&] { EnqueueCopy(Direction::kToDevice, kLeastCopy, in_.stream); };
  const auto prime = [&] { EnqueueCopy(Direction::kToDevice, kPrimeCopy, in_.stream); };
  const auto wait = [&](const CudaStream& stream) {
    SPILLWAY_CUDA_CALL(cudaStreamWaitEvent(stream.get(), start_.get(), 0));
  };
  latencies.kernel_after_event = DeviceTime(1, [&] {
    launch();
    start_.Record(kernel_.stream);
    launch();
    end_.Record(kernel_.stream);
  });
  latencies.kernel_waiting = DeviceTime(1, [&] {
    prime();
    start_.Record(in_.stream);
    wait(kernel_.stream);
    launch();
    end_.Record(kernel_.stream);
  });
  latencies.copy_after_event = DeviceTime(1, [&] {
    prime();
    start_.Record(in_.stream);
    copy();
    end_.Record(in_.stream);
  });
  latencies.copy_waiting = DeviceTime(1, [&] {
    launch();
    start_.Record(kernel_.stream);
    wait(in_.stream);
    copy();
    end_.Record(in_.stream);
  });
}

}  // namespace

Machine DescribeGpu(int device) {
  RequireDevice(device);
  cudaDeviceProp properties{};
  SPILLWAY_CUDA_CALL(cudaGetDeviceProperties(&properties, device));
  Machine machine;
  machine.gpu = properties.name;
  machine.memory = Bytes(static_cast<int64_t>(properties.totalGlobalMem));
  machine.l2_cache = Bytes(properties.l2CacheSize);
  machine.compute_capability = fmt::format("{}.{}", properties.major, properties.minor);
  const int64_t kilohertz = DeviceAttribute(cudaDevAttrClockRate, device);
  machine.flops = 2 * MultiplyAddsPerClock(properties.major, properties.minor) *
                  properties.multiProcessorCount * kilohertz * 1000;
  return machine;
}

Measurements Calibrate(const CalibrateOptions& options) {
  RequireDevice(options.device);
  SPILLWAY_CUDA_CALL(cudaSetDevice(options.device));
  return Calibrator(options).Run();
}

}  // namespace spillway::cuda
