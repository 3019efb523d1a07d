// A GPU, and a device that Python knows.

#include <devices.h>  // of this folder

#include <ATen/Context.h>
#include <ATen/core/Generator.h>
#include <ATen/ops/empty.h>
#include <c10/core/CachingDeviceAllocator.h>
#include <c10/core/DeviceGuard.h>
#include <c10/core/Event.h>

#include <mutex>
#include <tuple>
#include <utility>
#include <vector>

namespace spillway_torch {
namespace {

using at::Tensor;

// A GPU with two streams for copies. It uses no header of CUDA.
class Gpu : public Device {
 public:
  using StreamIds = std::tuple<int64_t, int64_t, int64_t>;

  Gpu(int64_t index, const StreamIds& out, const StreamIds& in)
      : device_(c10::kCUDA, static_cast<c10::DeviceIndex>(index)),
        streams_(c10::kCUDA),
        compute_(streams_.getStream(device_)),
        out_(Stream(out)),
        in_(Stream(in)),
        generator_(at::globalContext().defaultGenerator(device_)) {}

  void Begin() override { compute_ = streams_.getStream(device_); }

  c10::Device Place() const override { return device_; }

  bool IsCurrent() override { return streams_.getStream(device_) == compute_; }

  Tensor Empty(int64_t size) override {
    return at::empty({size}, at::TensorOptions(device_).dtype(at::kByte));
  }

  Event CopyOut(const Tensor& host, const Tensor& bytes) override {
    return Copy(out_, host, bytes);
  }

  Event CopyIn(const Tensor& bytes, const Tensor& host) override { return Copy(in_, bytes, host); }

  void WaitFor(const Event& copied, Wait) override { Inner(copied).block(compute_); }

  RandomState Random() override {
    const std::lock_guard lock(generator_.mutex());
    return {generator_.current_seed(), generator_.get_offset()};
  }

  void SetRandom(const RandomState& state) override {
    const std::lock_guard lock(generator_.mutex());
    if (generator_.current_seed() != state.seed) generator_.set_current_seed(state.seed);
    generator_.set_offset(state.offset);
  }

  bool IsSameRandom(const RandomState& one, const RandomState& other) override {
    return one.seed == other.seed && one.offset == other.offset;
  }

  int64_t InUse() override {
    const auto stats = c10::getDeviceAllocator(c10::kCUDA)->getDeviceStats(device_.index());
    return stats.allocated_bytes[static_cast<size_t>(c10::CachingAllocator::StatType::AGGREGATE)]
        .current;
  }

 private:
  using Pool = std::vector<std::unique_ptr<c10::Event>>;

  static c10::Stream Stream(const StreamIds& ids) {
    return c10::Stream::unpack3(std::get<0>(ids), static_cast<c10::DeviceIndex>(std::get<1>(ids)),
                                static_cast<c10::DeviceType>(std::get<2>(ids)));
  }

  static c10::Event& Inner(const Event& event) { return *static_cast<c10::Event*>(event.get()); }

  Event Record(const c10::Stream& stream) {
    std::unique_ptr<c10::Event> event;
    if (pool_->empty()) {
      event = std::make_unique<c10::Event>(c10::kCUDA);
    } else {
      event = std::move(pool_->back());
      pool_->pop_back();
    }
    event->record(stream);
    // Another copy takes it over when nobody holds it: waits refer to the last recording before.
    return {event.release(),
            [pool = pool_](void* used) { pool->emplace_back(static_cast<c10::Event*>(used)); }};
  }

  Event Copy(const c10::Stream& stream, const Tensor& into, const Tensor& source) {
    const c10::DeviceGuard guard(device_);
    Inner(Record(compute_)).block(stream);
    const c10::Stream before = streams_.exchangeStream(stream);
    try {
      into.copy_(source, /*non_blocking=*/true);
    } catch (...) {
      streams_.exchangeStream(before);
      throw;
    }
    streams_.exchangeStream(before);
    return Record(stream);
  }

  c10::Device device_;
  c10::impl::VirtualGuardImpl streams_;
  c10::Stream compute_;
  c10::Stream out_;
  c10::Stream in_;
  at::Generator generator_;
  std::shared_ptr<Pool> pool_ = std::make_shared<Pool>();
};

// A device that Python knows: `calls` are those of executor.py. Operators run without Python's
// lock.
class PythonDevice : public Device {
 public:
  explicit PythonDevice(py::object calls)
      : calls_(std::move(calls)), place_(calls_.attr("place").cast<c10::Device>()) {}

  void Begin() override {}
  c10::Device Place() const override { return place_; }
  bool IsCurrent() override { return Call("current").cast<bool>(); }
  Tensor Empty(int64_t size) override {
    const py::gil_scoped_acquire lock;
    return Call("empty", size).cast<Tensor>();
  }

  Event CopyOut(const Tensor& host, const Tensor& bytes) override {
    return Hold("copy_out", host, bytes);
  }

  Event CopyIn(const Tensor& bytes, const Tensor& host) override {
    return Hold("copy_in", bytes, host);
  }

  void WaitFor(const Event& copied, Wait why) override {
    static constexpr const char* kNames[] = {"give_up", "fetch", "end"};
    const py::gil_scoped_acquire lock;
    Call(kNames[static_cast<int>(why)], Inner(copied));
  }

  RandomState Random() override { return {0, 0, Hold("random_state")}; }
  void SetRandom(const RandomState& state) override {
    const py::gil_scoped_acquire lock;
    Call("set_random_state", Inner(state.object));
  }
  bool IsSameRandom(const RandomState& one, const RandomState& other) override {
    const py::gil_scoped_acquire lock;
    return Call("same_random_state", Inner(one.object), Inner(other.object)).cast<bool>();
  }
  int64_t InUse() override {
    const py::gil_scoped_acquire lock;
    return Call("in_use").cast<int64_t>();
  }

 private:
  static const py::object& Inner(const Event& object) {
    return *static_cast<const py::object*>(object.get());
  }

  // REQUIRES: Python's lock.
  template <typename... Arguments>
  py::object Call(const char* name, Arguments&&... arguments) {
    return calls_.attr(name)(std::forward<Arguments>(arguments)...);
  }

  template <typename... Arguments>
  Event Hold(const char* name, Arguments&&... arguments) {
    const py::gil_scoped_acquire lock;
    return {new py::object(Call(name, std::forward<Arguments>(arguments)...)),
            [](py::object* held) {
              const py::gil_scoped_acquire again;
              delete held;
            }};
  }

  py::object calls_;
  c10::Device place_;
};

}  // namespace

void DefineDevices(py::module_& module) {
  py::class_<Device, std::shared_ptr<Device>>(module, "Device");
  py::class_<Gpu, Device, std::shared_ptr<Gpu>>(module, "Gpu")
      .def(py::init<int64_t, const Gpu::StreamIds&, const Gpu::StreamIds&>());
  py::class_<PythonDevice, Device, std::shared_ptr<PythonDevice>>(module, "PythonDevice")
      .def(py::init<py::object>());
}

}  // namespace spillway_torch
