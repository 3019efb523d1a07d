// What the items of vDNN++ (Shriram et al., IPDPS 2019) have in common: the paper's names of
// networks and modes, its GPUs and algorithms, and the run whose requests it counts. Private to
// vdnnpp*.cc.

#ifndef SPILLWAY_EXPERIMENTS_REPRODUCE_VDNNPP_SETUP_H_
#define SPILLWAY_EXPERIMENTS_REPRODUCE_VDNNPP_SETUP_H_

#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "experiments/run/simulate.h"
#include "sim/core/cost_model.h"
#include "sim/core/device.h"
#include "sim/core/report.h"
#include "traces/trace.h"
#include "traces/zoo/zoo.h"

namespace spillway::vdnnpp {

inline constexpr const char* kLargeGpu = "gtx_1080ti";
inline constexpr const char* kSmallGpu = "gtx_970";

// Takes what stands before the first blank off `text`.
std::string_view TakeWord(std::string_view& text);

// "VGG-16(64)" as the paper writes it, or nullopt.
std::optional<Workload> ParsePaperWorkload(std::string_view text);

// What leaves and by which algorithms: "all(m)", "conv(p)" or "dyn".
struct Mode {
  std::string offload;  // as the policies name it
  bool fastest = true;  // (p); else (m)

  bool dynamic() const { return offload == "dyn"; }
  std::string algo() const { return fastest ? "performance" : "memory"; }
  std::string Vdnn() const;  // the policies
  std::string Vdnnpp() const;
};

std::optional<Mode> ParseMode(std::string_view text);

struct DocumentedAlgorithms;

// Offers, for the convolutions of a network, the documented algorithm alone.
class PaperCostModel final : public CostModel {
 public:
  // `model` outlives this one.
  PaperCostModel(const CostModel& model, std::string_view network, std::string_view device);

  std::span<const Kernel> Kernels(const Op& op, size_t slot, int64_t batch) const override;
  Duration CopyTime(Direction direction, Bytes size) const override {
    return model_.CopyTime(direction, size);
  }
  std::string Provenance() const override { return "algorithms documented for vDNN++"; }

 private:
  const CostModel& model_;
  const DocumentedAlgorithms* documented_ = nullptr;
};

struct Scene {
  Scene(const Workload& workload, const char* device_name);

  Trace trace;
  Device device;
};

Outcome Play(const Setup& setup, const std::string& policy);

// vDNN++ that releases as vDNN does.
std::string EagerPolicy(const Mode& mode, std::string_view order, std::string_view hint);

// The run whose requests Tables II and V count, in unlimited memory.
Report EagerRun(const Scene& scene, const Mode& mode, std::string_view order,
                std::string_view hint);

}  // namespace spillway::vdnnpp

#endif  // SPILLWAY_EXPERIMENTS_REPRODUCE_VDNNPP_SETUP_H_
