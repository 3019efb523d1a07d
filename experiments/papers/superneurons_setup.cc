#include "experiments/papers/superneurons_setup.h"

#include <fmt/format.h>

#include "policies/parts/superneurons_steps.h"

namespace spillway::lab::superneurons {

PaperNames Names(int64_t alexnet, int64_t others) {
  return {{{"AlexNet", "alexnet-227", alexnet},
           {"VGG16", "vgg16@227"},
           {"ResNet50", "resnet50@227"},
           {"ResNet50/101", "resnet50@227"},
           {"ResNet101", "resnet101@227"},
           {"ResNet152", "resnet152@227"},
           {"\"ResNet151\"", "resnet152@227"},
           {"ResNet2500", "resnet(6,32,788,6)", 1},
           {"InceptionV4", "inception-v4"},
           {"Inception v4", "inception-v4"},
           {"DenseNet121", "densenet121"}},
          others};
}

std::vector<PaperRow> RowsOf(const PaperNames& names, std::span<const char* const> networks) {
  std::vector<PaperRow> rows;
  for (const char* network : networks) rows.push_back({{network, names.UsualBatch(network)}});
  return rows;
}

std::string NameOf(std::string_view network) {
  return Names().Write({std::string(network), Names().UsualBatch(network)});
}

std::optional<int64_t> PrintedBatch(const PaperValues& printed, std::string_view network,
                                    const Framework& framework) {
  const auto batch =
      PrintedNumber(printed, kPaper, fmt::format("Tab5 {} {}", NameOf(network), framework.name));
  return batch ? std::optional(static_cast<int64_t>(*batch)) : std::nullopt;
}

Total CountedStorages(const Trace& trace) {
  const std::vector<bool> counted = SuperNeuronsCounted(trace);
  std::vector<bool> seen(trace.tensors.size());
  Total total;
  for (size_t i = 0; i < counted.size(); ++i) {
    const TensorId root = trace.Root(static_cast<TensorId>(i));
    if (!counted[i] || seen[Index(root)]) continue;
    seen[Index(root)] = true;
    ++total.tensors;
    total.bytes += trace.tensor(root).size;
  }
  return total;
}

Bytes NetworkMemory(const Trace& trace) {
  Bytes bytes = CountedStorages(trace).bytes;
  for (const Op& op : trace.ops) {
    const bool forks = op.type == OpType::kFork && op.phase == Phase::kForward;
    if (forks) bytes -= trace.tensor(op.outputs.front()).size;
  }
  for (const Tensor& tensor : trace.tensors) {
    if (tensor.kind == TensorKind::kParameter) bytes += tensor.size * 3;
  }
  return bytes;
}

}  // namespace spillway::lab::superneurons
