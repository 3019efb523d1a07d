// The limits that SuperNeurons (Wang et al., PPoPP 2018) prints for itself and for four frameworks,
// on a K40 with 12 GiB: Table 4, the deepest ResNet, 3 (n1 + n2 + n3 + n4) + 2 layers of
// resnet(6,32,n3,6) at batch 16, and Table 5, the largest batch.
//
// A framework's column depends on versions and allocators that no rule here knows, so it is shown
// and not judged. The order is judged: it is the number of pairs of frameworks with different
// printed numbers that are in the paper's order. On AlexNet the paper's order does not follow from
// the frameworks' rules: MXNet ends before Torch, though MXNet frees tensors that Torch keeps.

#include <fmt/format.h>

#include <memory>
#include <mutex>

#include "experiments/papers/superneurons_setup.h"
#include "experiments/run/device_specification.h"
#include "experiments/tools/limit/limit.h"

namespace spillway::lab::superneurons {
namespace {

// Returns the largest depth in layers or the largest batch that fits; 0 if none does.
double LimitOf(const WorkloadFamily& family, const Framework& framework, Case asked) {
  asked.preset = framework.preset;
  const LimitSearch search{family, asked, LoadDevice(asked.device), /*scan=*/1};
  const int64_t largest = FindLimit(search, framework.policy, [](int64_t) {}).limit.largest;
  if (largest == 0) return 0;
  const Workload workload = family.At(largest);
  return static_cast<double>(
      family.quantity() == LimitQuantity::kDepth ? *ResNetDepth(workload.network) : workload.batch);
}

// A limit that two items need. The first item that asks for it computes it.
class KnownLimit {
 public:
  KnownLimit(Framework framework, double printed) : framework_(framework), printed_(printed) {}

  double Find(const WorkloadFamily& family, const Case& asked) {
    std::call_once(once_, [&] { ours_ = LimitOf(family, framework_, asked); });
    return ours_;
  }
  const Framework& framework() const { return framework_; }
  double printed() const { return printed_; }

 private:
  const Framework framework_;
  const double printed_;
  std::once_flag once_;
  double ours_ = 0;
};
using KnownLimits = std::vector<std::shared_ptr<KnownLimit>>;

// Returns the number of pairs of frameworks, without SuperNeurons, that are in the paper's order.
double InOrder(const WorkloadFamily& family, const KnownLimits& limits, const Case& asked) {
  int pairs = 0;
  for (const auto& less : limits) {
    for (const auto& more : limits) {
      if (less->framework().policy == kPaper || more->framework().policy == kPaper) continue;
      if (less->printed() >= more->printed()) continue;
      pairs += less->Find(family, asked) < more->Find(family, asked) ? 1 : 0;
    }
  }
  return pairs;
}

// Returns the items of one line of the table, without items that the paper prints as "N/A".
PaperTable TableOf(const PaperValues& printed, const std::string& table, const std::string& line,
                   const std::string& unit, const WorkloadFamily& family) {
  PaperTable limits{table, Names(), {{}}, {}, PaperRequest::kPaperName, "limits", kGpu};
  KnownLimits known;
  for (const Framework& framework : kFrameworks) {
    const std::string item = fmt::format("{} {}", line, framework.name);
    const auto limit = PrintedNumber(printed, kPaper, item);
    if (!limit) continue;
    known.push_back(std::make_shared<KnownLimit>(framework, *limit));
    limits.columns.push_back({item, unit, [=, found = known.back()](const PaperRow& row) {
                                return found->Find(family, row.asked);
                              }});
  }
  limits.columns.push_back({line + " order", "count", [=](const PaperRow& row) {
                              return InOrder(family, known, row.asked);
                            }});
  return limits;
}

}  // namespace

std::vector<PaperTable> LimitTables(const PaperValues& printed) {
  std::vector<PaperTable> tables{TableOf(printed, "Tab4", "Tab4", "layers",
                                         WorkloadFamily::OfDepths("resnet(6,32,n3,6)@227:16"))};
  const PaperNames names = Names();
  for (const char* network : kNetworks) {
    const std::string name = names.Write({network, names.UsualBatch(network)});
    tables.push_back(
        TableOf(printed, "Tab5", "Tab5 " + name, "images", WorkloadFamily::OfBatches(network)));
  }
  return tables;
}

}  // namespace spillway::lab::superneurons
