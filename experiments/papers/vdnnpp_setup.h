// What the tables of vDNN++ (Shriram et al., IPDPS 2019) have in common: the paper's names of
// networks and modes, its GPUs and algorithms, and the run whose requests it counts. Private to
// vdnnpp*.cc.

#ifndef SPILLWAY_EXPERIMENTS_PAPERS_VDNNPP_SETUP_H_
#define SPILLWAY_EXPERIMENTS_PAPERS_VDNNPP_SETUP_H_

#include <array>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "experiments/papers/paper.h"
#include "experiments/papers/scene.h"

namespace spillway::vdnnpp {

inline constexpr const char* kLargeGpu = "gtx_1080ti";
inline constexpr const char* kSmallGpu = "gtx_970";

// AlexNet, VGG-16, VGG-116 and VGG-191 mean the paper's variants.
PaperNames Names();

// What leaves and by which algorithms.
struct Mode {
  std::string_view offload;  // as the policies name it
  bool fastest = true;       // (p); else (m)

  bool dynamic() const { return offload == "dyn"; }
  std::string algo() const { return fastest ? "performance" : "memory"; }
  std::string Name() const;  // "all(m)", "conv(p)" or "dyn"
  std::string Vdnn() const;  // the policies
  std::string Vdnnpp() const;
  // vDNN++ that releases as vDNN does.
  std::string Eager(std::string_view order, std::string_view hint) const;
};

// Where the GPU does not matter: on the larger one.
Scene SceneOf(const Workload& workload);
// Where it does.
Scene SceneOf(const PaperRow& row);

// The algorithms that the paper's totals contain where they are documented and the mode wants the
// fastest, else the model's. Refers to the scene.
std::unique_ptr<const CostModel> CostOf(const Scene& scene, const Mode& mode);

// The run whose requests Tables II and V count, in unlimited memory.
Report EagerRun(const Scene& scene, const Mode& mode, std::string_view order = "prefetch-first",
                std::string_view hint = "none");

// What threads of the host would take to compress in forward, and to decompress in backward, all
// feature maps that all(m) offloads, in percent of one core over the phase's time.
std::array<double, 2> CompressionCpu(const PaperRow& row);

// Compression: Fig. 10 and the savings.
std::vector<PaperTable> CompressionTables(const PaperValues& printed);

}  // namespace spillway::vdnnpp

#endif  // SPILLWAY_EXPERIMENTS_PAPERS_VDNNPP_SETUP_H_
