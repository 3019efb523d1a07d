// Fuzz target: the cost table reader.
//
// An accepted table is written and read back unchanged, is in the documented order, and serves each
// of its entries.

#include <string>
#include <tuple>

#include "sim/core/device.h"
#include "sim/cost/table_cost.h"
#include "tests/fuzz/property.h"

namespace spillway::fuzz {
namespace {

// Returns the key by which a table orders its kernels.
auto KeyOf(const Kernel& kernel) {
  return std::tie(kernel.time, kernel.workspace, kernel.algorithm);
}

void CheckOrder(const CostTable& table) {
  for (size_t i = 0; i < table.entries.size(); ++i) {
    const CostEntry& entry = table.entries[i];
    SPILLWAY_CHECK(entry.batch >= 1 && !entry.kernels.empty());
    if (i > 0) {
      const CostEntry& before = table.entries[i - 1];
      SPILLWAY_CHECK(std::tie(before.signature, before.batch) <
                     std::tie(entry.signature, entry.batch));
    }
    for (size_t k = 0; k < entry.kernels.size(); ++k) {
      const Kernel& kernel = entry.kernels[k].kernel;
      SPILLWAY_CHECK(kernel.time > Duration() && kernel.workspace >= Bytes(0));
      if (k > 0) SPILLWAY_CHECK(KeyOf(entry.kernels[k - 1].kernel) < KeyOf(kernel));
    }
  }
}

void CheckModel(const CostTable& table) {
  Device device;
  device.h2d.bandwidth = device.d2h.bandwidth = {1'000'000'000};
  const TableCostModel model(table, device);
  for (const CostEntry& entry : table.entries) {
    Op op;
    op.batch = entry.batch;
    op.slots.push_back({.name = "fwd", .signature = entry.signature, .flops = 0, .traffic = {}});
    const auto kernels = model.Kernels(op, 0, entry.batch);
    SPILLWAY_CHECK(kernels.size() == entry.kernels.size());
    SPILLWAY_CHECK(KeyOf(kernels.front()) == KeyOf(entry.kernels.front().kernel));
  }
}

}  // namespace
}  // namespace spillway::fuzz

int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace spillway::fuzz;
  CostTable table;
  const bool accepted = Accepts("table.json", "there is no such error",
                                [&] { table = ParseCostTable(Text(data, size), "table.json"); });
  if (!accepted) return 0;
  CheckOrder(table);
  const std::string text = FormatCostTable(table);
  const CostTable again = ParseCostTable(text, "written");
  SPILLWAY_CHECK(again == table);
  SPILLWAY_CHECK(FormatCostTable(again) == text);
  CheckModel(table);
  return 0;
}
