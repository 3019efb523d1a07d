#include "experiments/reproduce/vdnnpp_setup.h"

#include <fmt/format.h>

#include <array>
#include <cctype>
#include <map>
#include <utility>
#include <vector>

#include "experiments/run/catalogue.h"
#include "policies/registry.h"
#include "sim/cost/roofline.h"
#include "traces/base/error.h"
#include "traces/lowering/lowering.h"

namespace spillway::vdnnpp {

std::string_view TakeWord(std::string_view& text) {
  const size_t end = text.find(' ');
  const std::string_view word = text.substr(0, end);
  text.remove_prefix(end == std::string_view::npos ? text.size() : end + 1);
  return word;
}

std::optional<Workload> ParsePaperWorkload(std::string_view text) {
  const size_t open = text.rfind('(');
  if (open == std::string_view::npos || !text.ends_with(')')) return std::nullopt;
  std::string network;
  for (const char c : text.substr(0, open)) {
    network += static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  }
  constexpr std::array<std::pair<std::string_view, std::string_view>, 5> kNames{
      {{"alexnet", "alexnet-plain"},
       {"vgg-16", "vgg16"},
       {"vgg-116", "vgg116-d"},
       {"vgg-191", "vgg191-d"},
       {"resnet-152", "resnet152"}}};
  for (const auto& [paper, ours] : kNames) {
    if (network == paper) network = ours;
  }
  try {
    return ParseWorkload(
        fmt::format("{}:{}", network, text.substr(open + 1, text.size() - open - 2)));
  } catch (const UsageError&) {
    return std::nullopt;
  }
}

std::string Mode::Vdnn() const {
  return dynamic() ? "vdnn-dyn" : fmt::format("vdnn-{}:algo={}", offload, algo());
}

std::string Mode::Vdnnpp() const {
  return dynamic() ? "vdnnpp" : fmt::format("vdnnpp:offload={},algo={}", offload, algo());
}

std::optional<Mode> ParseMode(std::string_view text) {
  if (text == "dyn") return Mode{"dyn", true};
  for (const char* offload : {"all", "conv", "aconv"}) {
    if (text == fmt::format("{}(m)", offload)) return Mode{offload, false};
    if (text == fmt::format("{}(p)", offload)) return Mode{offload, true};
  }
  return std::nullopt;
}

// Convolution algorithms whose workspaces the totals of Tables II and V contain, by layer; those
// that are not named need none. The paper does not print them: the library's search chose them on
// its GPUs. Of other networks the cost model's fastest are taken.
struct DocumentedAlgorithms {
  std::string_view network;
  std::string_view device;
  std::string_view everywhere;  // the algorithm of layers that are not named
  std::map<std::string_view, std::string_view> layers;
};

namespace {

const std::vector<DocumentedAlgorithms>& Documented() {
  static const std::vector<DocumentedAlgorithms> documented{
      {"alexnet-plain",
       kLargeGpu,
       "",
       {{"conv2", "fft"}, {"conv3", "fft"}, {"conv4", "fft"}, {"conv5", "winograd_nonfused"}}},
      {"alexnet-plain", kSmallGpu, "", {{"conv2", "fft"}, {"conv4", "fft"}}},
      {"vgg16", kLargeGpu, "winograd_nonfused", {{"conv1_1", ""}, {"conv2_1", ""}}},
      {"vgg16", kSmallGpu, "winograd_nonfused", {{"conv1_1", ""}, {"conv1_2", ""}}},
  };
  return documented;
}

}  // namespace

PaperCostModel::PaperCostModel(const CostModel& model, std::string_view network,
                               std::string_view device)
    : model_(model) {
  for (const DocumentedAlgorithms& documented : Documented()) {
    if (documented.network == network && documented.device == device) documented_ = &documented;
  }
}

std::span<const Kernel> PaperCostModel::Kernels(const Op& op, size_t slot, int64_t batch) const {
  const auto kernels = model_.Kernels(op, slot, batch);
  if (documented_ == nullptr || op.type != OpType::kConv2d) return kernels;
  const std::string_view layer = std::string_view(op.name).substr(0, op.name.find('.'));
  const auto named = documented_->layers.find(layer);
  const std::string_view algorithm =
      named == documented_->layers.end() ? documented_->everywhere : named->second;
  for (const Kernel& kernel : kernels) {
    if (kernel.algorithm == algorithm) return {&kernel, 1};
  }
  return kernels.subspan(LeastWorkspace(kernels), 1);
}

Scene::Scene(const Workload& workload, const char* device_name)
    : trace(LowerNetwork(BuildNetwork(workload.network), {workload.batch, "vdnnpp", true})),
      device(LoadDevice(device_name)) {}

Outcome Play(const Setup& setup, const std::string& policy) {
  PolicyRegistry registry;
  RegisterBuiltinPolicies(registry);
  return Simulate(setup, *registry.Make(policy));
}

std::string EagerPolicy(const Mode& mode, std::string_view order, std::string_view hint) {
  return fmt::format("vdnnpp:offload={},algo={},release=eager,order={},hint={}", mode.offload,
                     mode.algo(), order, hint);
}

Report EagerRun(const Scene& scene, const Mode& mode, std::string_view order,
                std::string_view hint) {
  const RooflineCostModel modelled(scene.device);
  const PaperCostModel documented(modelled, scene.trace.network, scene.device.name);
  const CostModel& cost = mode.fastest ? static_cast<const CostModel&>(documented) : modelled;
  return Play({Borrow(scene.trace), scene.device, Borrow(cost), Bytes::Unlimited()},
              EagerPolicy(mode, order, hint))
      .report;
}

}  // namespace spillway::vdnnpp
