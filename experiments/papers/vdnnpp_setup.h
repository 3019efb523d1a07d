// The names of networks and modes, GPUs and algorithms of vDNN++ (Shriram et al., IPDPS 2019), and
// the run whose requests the paper counts. Private to vdnnpp*.cc.

#ifndef SPILLWAY_EXPERIMENTS_PAPERS_VDNNPP_SETUP_H_
#define SPILLWAY_EXPERIMENTS_PAPERS_VDNNPP_SETUP_H_

#include <array>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "experiments/papers/paper.h"

namespace spillway::lab::vdnnpp {

inline constexpr const char* kLargeGpu = "gtx_1080ti";
inline constexpr const char* kSmallGpu = "gtx_970";

// Returns the paper's names of networks. AlexNet, VGG-16, VGG-116 and VGG-191 are its own variants.
PaperNames Names();

// A mode of the paper: which tensors are offloaded, and which algorithms run.
struct Mode {
  std::string_view offload;  // as in the policies' parameter `offload`
  bool fastest = true;       // the fastest algorithms, (p); otherwise the least workspace, (m)

  bool dynamic() const { return offload == "dyn"; }
  std::string algo() const { return fastest ? "performance" : "memory"; }
  std::string Name() const;  // "all(m)", "conv(p)" or "dyn"
  std::string Vdnn() const;  // the policy of vDNN
  std::string Vdnnpp() const;
  // Returns the policy of vDNN++ that releases when vDNN does.
  std::string Eager(std::string_view order, std::string_view hint) const;
};

// Returns the run whose requests Tables II and V count, before its policy is chosen. Memory is
// unlimited. The run has only the documented algorithms, if the mode wants the fastest algorithms
// and some are documented for network and GPU; otherwise it has all algorithms.
Draft CountedRun(const Inputs& inputs, const Mode& mode);

// Returns the report of that run under a policy of vDNN++ that releases when vDNN does.
Report EagerRun(const Inputs& inputs, const Mode& mode, std::string_view order = "prefetch-first",
                std::string_view hint = "none");

// Returns the time that a thread of the host takes to compress in forward, and to decompress in
// backward, all feature maps that all(m) offloads, in percent of the phase's time.
std::array<double, 2> CompressionCpu(const Inputs& inputs);

// Returns Fig. 10 and the savings of compression.
std::vector<PaperTable> CompressionTables(const PaperValues& printed);

}  // namespace spillway::lab::vdnnpp

#endif  // SPILLWAY_EXPERIMENTS_PAPERS_VDNNPP_SETUP_H_
