// The devices that steps run on, for run_steps.cc. It takes the headers of Python.

#pragma once

#include <ATen/core/Tensor.h>
#include <torch/csrc/utils/pybind.h>

#include <cstdint>
#include <memory>

namespace spillway_torch {

// Done when all is done that a queue held when it was recorded.
using Event = std::shared_ptr<void>;

// The state of the generator of random numbers.
struct RandomState {
  uint64_t seed = 0;
  uint64_t offset = 0;
  Event object = {};  // an object of Python, of a device that Python knows
};

// Why operators wait for a copy.
enum class Wait { kGiveUp, kFetch, kEnd };

// What a step asks of a device; see device.py.
class Device {
 public:
  virtual ~Device() = default;
  virtual void Begin() = 0;
  virtual at::Device Place() const = 0;  // of its tensors
  virtual bool IsCurrent() = 0;
  virtual at::Tensor Empty(int64_t size) = 0;
  // Both start a copy, and return what is done with it.
  virtual Event CopyOut(const at::Tensor& host, const at::Tensor& bytes) = 0;
  virtual Event CopyIn(const at::Tensor& bytes, const at::Tensor& host) = 0;
  virtual void WaitFor(const Event& copied, Wait why) = 0;
  virtual RandomState Random() = 0;
  virtual void SetRandom(const RandomState& state) = 0;
  virtual bool IsSameRandom(const RandomState& one, const RandomState& other) = 0;
  // Returns the bytes of the device that tensors take; -1 if the device does not count them.
  virtual int64_t InUse() = 0;
};

// Gives Python the devices: `Gpu`, and `PythonDevice`, which is one that Python knows.
void DefineDevices(py::module_& module);

}  // namespace spillway_torch
