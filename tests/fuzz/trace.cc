// Fuzz target: the trace reader, and the code that trusts an accepted trace.
//
// An accepted trace is written and read back unchanged. Its liveness agrees with a naive walk. The
// analytic cost models either know each slot's time or refuse the op.

#include <algorithm>
#include <string>

#include "sim/core/device.h"
#include "sim/cost/roofline.h"
#include "tests/fuzz/property.h"
#include "traces/format.h"
#include "traces/liveness.h"

namespace spillway::fuzz {
namespace {

void CheckRoundTrip(const Trace& trace) {
  const std::string text = FormatTrace(trace);
  const Trace again = ParseTrace(text, "written");
  SPILLWAY_CHECK(again == trace);
  SPILLWAY_CHECK(FormatTrace(again) == text);
}

void CheckLiveness(const Trace& trace) {
  const Liveness liveness(trace);
  for (size_t i = 0; i < trace.tensors.size(); ++i) {
    const auto id = static_cast<TensorId>(i);
    const TensorId root = liveness.Root(id);
    SPILLWAY_CHECK(root == trace.Root(id));
    SPILLWAY_CHECK(liveness.Root(root) == root);
    if (root != id) SPILLWAY_CHECK(liveness.Uses(id).empty());
  }
  for (size_t i = 0; i < trace.ops.size(); ++i) {
    const auto id = static_cast<OpId>(i);
    const Op& op = trace.op(id);
    for (const auto* list : {&op.inputs, &op.outputs, &op.scratch}) {
      for (const TensorId tensor : *list) {
        const TensorId root = liveness.Root(tensor);
        const auto uses = liveness.Uses(root);
        const auto storages = liveness.Storages(id);
        SPILLWAY_CHECK(std::binary_search(uses.begin(), uses.end(), id));
        SPILLWAY_CHECK(std::count(storages.begin(), storages.end(), root) == 1);
        SPILLWAY_CHECK(*liveness.FirstUse(root) <= id && id <= *liveness.LastUse(root));
      }
    }
    for (const TensorId tensor : op.outputs) {
      const auto writers = liveness.Writers(liveness.Root(tensor));
      SPILLWAY_CHECK(std::binary_search(writers.begin(), writers.end(), id));
    }
  }
}

void CheckCosts(const Trace& trace, const Device& device) {
  const RooflineCostModel cost(device);
  for (const Op& op : trace.ops) {
    for (size_t slot = 0; slot < op.slots.size(); ++slot) {
      for (const int64_t batch : {op.batch, int64_t{1}}) {
        Runs([&] {
          const auto kernels = cost.Kernels(op, slot, batch);
          SPILLWAY_CHECK(!kernels.empty());
          for (const Kernel& kernel : kernels) {
            SPILLWAY_CHECK(kernel.time >= Duration() && kernel.workspace >= Bytes(0));
          }
        });
      }
    }
  }
}

// Returns a device with every algorithm. `library` selects the generation of the formulas.
Device AnyDevice(std::string library) {
  Device device;
  device.name = "any";
  device.library = std::move(library);
  device.flops_per_second = 1'000'000'000'000;
  device.dram = {1'000'000'000};
  device.efficiency["default"] = 0.5;
  for (const char* slot : {"fwd", "bwd_data", "bwd_filter"}) {
    for (const char* algorithm :
         {"implicit_gemm", "implicit_precomp_gemm", "gemm", "direct", "fft", "fft_tiling",
          "winograd", "winograd_nonfused", "algo_0", "algo_1", "algo_3"}) {
      device.efficiency[std::string(slot) + "." + algorithm] = 0.5;
    }
  }
  return device;
}

}  // namespace
}  // namespace spillway::fuzz

int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace spillway::fuzz;
  Trace trace;
  const bool accepted =
      Accepts("trace.json", "trace '", [&] { trace = ParseTrace(Text(data, size), "trace.json"); });
  if (!accepted) return 0;
  CheckRoundTrip(trace);
  CheckLiveness(trace);
  for (const char* library : {"cuDNN 4", "cuDNN 7", "cuDNN 9"}) {
    CheckCosts(trace, AnyDevice(library));
  }
  return 0;
}
