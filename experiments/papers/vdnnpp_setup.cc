#include "experiments/papers/vdnnpp_setup.h"

#include <fmt/format.h>

#include <map>

namespace spillway::lab::vdnnpp {
namespace {

// The convolution algorithms whose workspaces the totals of Tables II and V contain. The paper does
// not print them: cuDNN's search chose them on the paper's GPUs.
struct DocumentedAlgorithms {
  std::string_view network;
  std::string_view device;
  std::string_view everywhere;  // the algorithm of layers that `layers` lacks; empty: no workspace
  std::map<std::string_view, std::string_view> layers;
};

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

// A cost model that has one kernel for each slot of a convolution: the documented algorithm, or the
// kernel with the least workspace if the model lacks the algorithm.
class PaperCostModel final : public CostModel {
 public:
  PaperCostModel(std::shared_ptr<const CostModel> model, const DocumentedAlgorithms& documented)
      : model_(std::move(model)), documented_(documented) {}

  std::vector<int64_t> Batches(const Op& op, size_t) const override { return {op.batch}; }
  std::span<const Kernel> Kernels(const Op& op, size_t slot, int64_t batch) const override {
    const auto kernels = model_->Kernels(op, slot, batch);
    if (op.type != OpType::kConv2d) return kernels;
    const auto named = documented_.layers.find(op.name.substr(0, op.name.find('.')));
    const std::string_view algorithm =
        named == documented_.layers.end() ? documented_.everywhere : named->second;
    for (const Kernel& kernel : kernels) {
      if (kernel.algorithm == algorithm) return {&kernel, 1};
    }
    return kernels.subspan(LeastWorkspace(kernels), 1);
  }
  Duration CopyTime(Direction direction, Bytes size) const override {
    return model_->CopyTime(direction, size);
  }
  std::string Provenance() const override { return "algorithms documented for vDNN++"; }

 private:
  const std::shared_ptr<const CostModel> model_;
  const DocumentedAlgorithms& documented_;
};

}  // namespace

PaperNames Names() {
  return {{{"AlexNet", "alexnet-plain"},
           {"VGG-16", "vgg16"},
           {"VGG-116", "vgg116-d"},
           {"VGG-191", "vgg191-d"},
           {"ResNet-152", "resnet152"},
           {"Constructed", "constructed(5)"}}};
}

std::string Mode::Name() const {
  return dynamic() ? "dyn" : fmt::format("{}({})", offload, fastest ? "p" : "m");
}

std::string Mode::Vdnn() const {
  return dynamic() ? "vdnn-dyn" : fmt::format("vdnn-{}:algo={}", offload, algo());
}

std::string Mode::Vdnnpp() const {
  return dynamic() ? "vdnnpp" : fmt::format("vdnnpp:offload={},algo={}", offload, algo());
}

std::string Mode::Eager(std::string_view order, std::string_view hint) const {
  return fmt::format("vdnnpp:offload={},algo={},release=eager,order={},hint={}", offload, algo(),
                     order, hint);
}

Draft CountedRun(const Inputs& inputs, const Mode& mode) {
  const DocumentedAlgorithms* of_totals = nullptr;
  for (const DocumentedAlgorithms& documented : Documented()) {
    const bool known =
        documented.network == inputs.trace()->network && documented.device == inputs.device().name;
    if (mode.fastest && known) of_totals = &documented;
  }
  Draft run = inputs.DraftOf({});
  run.memory = Bytes::Unlimited();
  if (of_totals != nullptr) run.cost = std::make_shared<PaperCostModel>(run.cost, *of_totals);
  return run;
}

Report EagerRun(const Inputs& inputs, const Mode& mode, std::string_view order,
                std::string_view hint) {
  return ReportOf(CountedRun(inputs, mode), mode.Eager(order, hint));
}

}  // namespace spillway::lab::vdnnpp
