// u-cuDNN (Oyama et al., CLUSTER 2018): convolutions are divided into micro-batches, so that faster
// algorithms stay within a workspace limit. Nothing leaves the device.
//
// `mode=wr`, workspace reuse (section III-B): a dynamic program over the batch finds for each
// kernel the fastest division that needs at most `workspace`. `mode=wd`, workspace division
// (section III-C): all kernels together get `workspace`. Each has a segment for the whole run, and
// an integer program decides the size of each segment.
//
// Here one compute stream runs the kernels one after the other, so with `wr` one workspace of the
// limit serves all kernels, and `wr` is never slower than `wd` with the same total. Division
// matters where each layer keeps its workspace, as in the frameworks that the paper patches, and
// where kernels run at the same time.

#include <fmt/format.h>

#include <memory>
#include <string>
#include <vector>

#include "policies/kernels/micro_batch.h"
#include "policies/kernels/workspace_division.h"
#include "policies/registry.h"
#include "traces/base/error.h"

namespace spillway::policies {
namespace {

enum class Mode : uint8_t { kReuse, kDivision };

class UcudnnPolicy final : public Policy {
 public:
  UcudnnPolicy(Mode mode, MicroBatches batches, Bytes workspace)
      : mode_(mode), workspace_(workspace), divisions_(batches) {}

  void Plan(PolicyContext& context) override {
    network_ = FrontsOf(context.trace(), context.cost(), divisions_);
    plans_.assign(context.trace().ops.size(), {});
    if (mode_ == Mode::kReuse) {
      Reuse(context);
    } else {
      Divide(context);
    }
  }

  KernelPlan ChooseKernels(PolicyContext&, OpId op) override { return plans_[Index(op)]; }

 private:
  void Take(size_t kernel, const Division& division) {
    KernelPlan& plan = plans_[Index(network_.kernels[kernel].op)];
    plan.insert(plan.end(), division.parts.begin(), division.parts.end());
  }

  void Reuse(const PolicyContext& context) {
    for (size_t k = 0; k < network_.kernels.size(); ++k) {
      const Division* division = FastestWithin(network_.fronts[k], workspace_);
      if (division == nullptr) {
        const Op& op = context.trace().op(network_.kernels[k].op);
        throw UsageError(fmt::format(
            "policy 'ucudnn': workspace: {} is less than any kernel of {}.{} needs; valid: {} ({} "
            "bytes) or more",
            FormatBytes(workspace_), op.name, op.slots[network_.kernels[k].slot].name,
            FormatBytes(network_.fronts[k].front().workspace),
            network_.fronts[k].front().workspace.count()));
      }
      Take(k, *division);
    }
  }

  void Divide(PolicyContext& context) {
    const SegmentChoice choice = DivideByIlp(network_.fronts, workspace_);
    if (!choice) {
      Bytes least;
      for (const Front front : network_.fronts) least += front.front().workspace;
      throw UsageError(fmt::format(
          "policy 'ucudnn': workspace: {} is less than all kernels together need; valid: {} ({} "
          "bytes) or more",
          FormatBytes(workspace_), FormatBytes(least), least.count()));
    }
    std::vector<Bytes> segments(plans_.size());  // by op
    for (size_t k = 0; k < network_.kernels.size(); ++k) {
      const Division& division = network_.fronts[k][(*choice)[k]];
      Take(k, division);
      segments[Index(network_.kernels[k].op)] += division.workspace;
    }
    for (size_t i = 0; i < segments.size(); ++i) {
      context.ReserveWorkspaceFor(static_cast<OpId>(i), segments[i]);
    }
  }

  const Mode mode_;
  const Bytes workspace_;
  DivisionFronts divisions_;
  KernelFronts network_;
  std::vector<KernelPlan> plans_;  // by op; empty where there is no choice
};

std::unique_ptr<Policy> MakeUcudnnPolicy(Params& params) {
  const Mode mode = params.Enum<Mode>(
      "mode", "wr", {{"wr", Mode::kReuse}, {"wd", Mode::kDivision}},
      "whether each kernel has all of the workspace (wr, reuse) or a segment of it (wd, division)");
  const auto batches =
      params.Enum<MicroBatches>("batch-size", "powerOfTwo", kMicroBatchNames,
                                "the batches that a convolution may be divided into");
  const Bytes workspace =
      params.Size("workspace", Bytes::MiB(64),
                  "the most workspace of a kernel; with wd, of all kernels together");
  if (workspace == Bytes(0)) {
    throw UsageError("policy 'ucudnn': workspace: 0 is not valid; valid: 1B or more");
  }
  return std::make_unique<UcudnnPolicy>(mode, batches, workspace);
}

}  // namespace

void RegisterUcudnn(PolicyRegistry& registry) {
  registry.Add("ucudnn",
               "nothing moved, convolutions in micro-batches within a limit of workspace (u-cuDNN, "
               "section III)",
               MakeUcudnnPolicy);
}

}  // namespace spillway::policies
