// Prints the number of ops of a network and the memory of a device.

#include <cstdio>

#include "experiments/run/device_specification.h"
#include "experiments/run/inputs.h"

int main() {
  const spillway::traces::Trace trace = spillway::lab::LoadTrace({"alexnet:4"});
  const spillway::sim::Device device = spillway::lab::LoadDevice("h200");
  std::printf("%zu ops, %lld bytes\n", trace.ops.size(),
              static_cast<long long>(device.memory.count()));
  return 0;
}
