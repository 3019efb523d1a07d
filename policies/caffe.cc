// The memory rules of Caffe, with which SuperNeurons (Wang et al., PPoPP 2018, section 2.2)
// compares.
//
// - A blob is a pair of data and diff (Caffe, tutorial "Blobs, Layers, and Nets"). Both have
//   their memory for the whole run, and blobs reuse no memory of other blobs. In Caffe the
//   definition of the network says which layers work in place; here the preset does.
// - A blob with several readers goes through a Split layer. The outputs of this layer share the
//   blob's data, and each has its own diff; the diffs are added up in the diff of the blob
//   (Caffe, util/insert_splits, split_layer).
// - A batch normalisation keeps its normalised input, as data and diff, and one more copy. The
//   Scale layer behind it keeps another copy (batch_norm_layer, scale_layer, in place). Of these
//   four buffers, two are in the trace as input and output of one op, and two are added to its
//   output.
// - A convolution uses the fastest algorithm that needs at most 8 MiB of workspace. It has its
//   own workspace for the whole run, for three streams at once, each as large as the largest of
//   its calls (cudnn_conv_layer). Here one workspace has the size of the sum of all these
//   workspaces.

#include <algorithm>
#include <memory>
#include <vector>

#include "policies/kernels/kernel_choice.h"
#include "policies/registry.h"
#include "traces/ops/op_table.h"

namespace spillway::policies {
namespace {

constexpr int64_t kStreams = 3;  // per group of a convolution
constexpr int64_t kMost = int64_t{1} << 60;

// Returns size * count, but at most kMost, which fits nowhere.
Bytes Times(Bytes size, int64_t count) {
  return size.count() > kMost / count ? Bytes(kMost) : size * count;
}

class CaffePolicy final : public Policy {
 public:
  CaffePolicy(Bytes workspace, const KernelChooser& chooser)
      : workspace_(workspace), chooser_(chooser) {}

  void Plan(PolicyContext& context) override {
    const Trace& trace = context.trace();
    const Liveness& liveness = context.liveness();
    std::vector<int64_t> copies(trace.tensors.size(), 1);  // by storage
    std::vector<Bytes> workspaces(trace.layers.size());    // by layer, for all streams
    for (size_t i = 0; i < trace.ops.size(); ++i) {
      const auto id = static_cast<OpId>(i);
      const Op& op = trace.op(id);
      if (op.type == OpType::kBatchNorm && trace.training) {
        if (const auto y = FindOutput(op, Role::kY)) copies[Index(liveness.Root(*y))] += 2;
      }
      if (op.phase == Phase::kBackward) CountSplits(trace, liveness, op, copies);
      Bytes& workspace = workspaces[Index(op.layer)];
      const bool grouped = op.type == OpType::kConv2d && op.FindAttribute("groups").has_value();
      const int64_t groups =
          std::clamp<int64_t>(grouped ? op.IntAttribute("groups") : 1, 1, kMost / kStreams);
      const Bytes call = WorkspaceOf(ChooseKernels(context, id), context, id);
      workspace = std::max(workspace, Times(call, kStreams * groups));
    }
    for (size_t i = 0; i < trace.tensors.size(); ++i) {
      const auto id = static_cast<TensorId>(i);
      if (liveness.Root(id) != id || liveness.Uses(id).empty()) continue;
      // Returns false for parameters, which have a block already.
      context.Reserve({&id, 1}, Times(trace.tensor(id).size, copies[i]));
    }
    Bytes total;
    for (const Bytes workspace : workspaces) total = std::min(total + workspace, Bytes(kMost));
    context.ReserveWorkspace(total);
  }

  KernelPlan ChooseKernels(PolicyContext& context, OpId op) override {
    return chooser_.Within(workspace_, context, op);
  }

 private:
  // Counts the diffs of a Split layer: an op that adds to a gradient stands for one more reader,
  // and the second reader counts for the first one, too.
  static void CountSplits(const Trace& trace, const Liveness& liveness, const Op& op,
                          std::vector<int64_t>& copies) {
    for (const TensorId output : op.outputs) {
      const bool added = std::find(op.inputs.begin(), op.inputs.end(), output) != op.inputs.end();
      if (!added || trace.tensor(output).kind != TensorKind::kGradient) continue;
      int64_t& count = copies[Index(liveness.Root(output))];
      count += count == 1 ? 2 : 1;
    }
  }

  const Bytes workspace_;
  const KernelChooser chooser_;
};

std::unique_ptr<Policy> MakeCaffePolicy(Params& params) {
  const Bytes workspace = params.Size("workspace", Bytes::MiB(8), "the most workspace of a call");
  return std::make_unique<CaffePolicy>(workspace, ReadKernelChooser(params));
}

}  // namespace

void RegisterCaffe(PolicyRegistry& registry) {
  registry.Add("caffe",
               "data and gradient of every blob for the whole run, a workspace for each "
               "convolution (Caffe, as SuperNeurons compares with it)",
               MakeCaffePolicy);
}

}  // namespace spillway::policies
