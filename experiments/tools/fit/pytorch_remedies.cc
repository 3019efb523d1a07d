#include "experiments/tools/fit/pytorch_remedies.h"

#include <fmt/format.h>

#include <algorithm>
#include <functional>
#include <map>
#include <numeric>
#include <set>
#include <string_view>
#include <vector>

#include "policies/recorded/pytorch_plans.h"
#include "traces/blocks.h"

namespace spillway::lab {
namespace {

bool IsNumber(std::string_view text) {
  return !text.empty() && text.find_first_not_of("0123456789") == text.npos;
}

// Returns the Python expression of a module: "model.stages[0].blocks" for "stages.0.blocks".
std::string Module(std::string_view name) {
  std::string path = "model";
  while (!name.empty()) {
    const std::string_view part = name.substr(0, name.find('.'));
    path += IsNumber(part) ? fmt::format("[{}]", part) : fmt::format(".{}", part);
    name.remove_prefix(std::min(name.size(), part.size() + 1));
  }
  return path;
}

// Returns true iff the blocks are members 0, 1, 2, ... of one list: "h.0", "h.1", "h.2", ...
bool AreFirstOfList(std::span<const std::string> blocks) {
  const std::string_view list = StemOf(blocks[0]);
  if (!list.ends_with('.')) return false;
  for (size_t i = 0; i < blocks.size(); ++i) {
    if (blocks[i] != fmt::format("{}{}", list, i)) return false;
  }
  return true;
}

// Returns the operators of the trace that are costly to run again, as PyTorch dispatches them. A
// recording names the operator that launched the work, which may be an inner one.
std::set<std::string> CostlyOperators(const Trace& trace) {
  const std::map<std::string_view, std::string_view> outer = {
      {"_efficient_attention_forward", "_scaled_dot_product_efficient_attention"},
      {"_flash_attention_forward", "_scaled_dot_product_flash_attention"},
      {"_cudnn_attention_forward", "_scaled_dot_product_cudnn_attention"},
      {"cudnn_convolution", "convolution"},
  };
  constexpr std::string_view kLibrary = "aten::";
  std::set<std::string> operators;
  for (const Op& op : trace.ops) {
    std::string_view name = op.slots[0].signature;
    if (op.phase != Phase::kForward || !IsCostly(op) || !name.starts_with(kLibrary)) continue;
    name = name.substr(0, name.find(' ')).substr(kLibrary.size());
    const auto found = outer.find(name);
    operators.insert(fmt::format("aten.{}.default", found == outer.end() ? name : found->second));
  }
  return operators;
}

// Returns the Python statement that makes the mesh.
std::string Mesh(std::span<const int64_t> mesh) {
  return fmt::format("mesh = init_device_mesh(\"cuda\", ({},))", fmt::join(mesh, ", "));
}

}  // namespace

std::string ModulesOf(std::span<const std::string> blocks, std::span<const std::string> all) {
  std::vector<std::string> lists;
  for (size_t begin = 0, end = 0; begin < blocks.size(); begin = end) {
    const std::string_view list = StemOf(blocks[begin]);
    while (end < blocks.size() && StemOf(blocks[end]) == list) ++end;
    const auto members = blocks.subspan(begin, end - begin);
    if (!AreFirstOfList(members)) {
      return fmt::format("map(model.get_submodule, \"{}\".split())", fmt::join(blocks, " "));
    }
    const auto size = std::ranges::count(all, list, [](const std::string& b) { return StemOf(b); });
    const bool whole = static_cast<size_t>(size) == members.size();
    lists.push_back(Module(list.substr(0, list.size() - 1)) +
                    (whole ? "" : fmt::format("[:{}]", members.size())));
  }
  if (lists.size() == 1) return lists[0];
  return fmt::format("[*{}]", fmt::join(lists, ", *"));
}

PyTorchRemedy Checkpoint(std::span<const std::string> blocks, size_t count) {
  const bool all = count == blocks.size();
  return {"checkpoint",
          all ? fmt::format("checkpoint all {} blocks", count)
              : fmt::format("checkpoint {} of {} blocks", count, blocks.size()),
          all ? "saved-tensors:plan=checkpoint"
              : fmt::format("saved-tensors:plan=checkpoint,blocks={}", count),
          fmt::format("for b in {}: b.forward = functools.partial(checkpoint, b.forward, "
                      "use_reentrant=False)",
                      ModulesOf(blocks.first(count), blocks))};
}

PyTorchRemedy SelectiveCheckpoint(std::span<const std::string> blocks, const Trace& trace) {
  return {"selective checkpoint", fmt::format("selective checkpoint {} blocks", blocks.size()),
          "saved-tensors:plan=selective",
          fmt::format("aten = torch.ops.aten\n"
                      "keep = functools.partial(create_selective_checkpoint_contexts, [{}])\n"
                      "for b in {}: b.forward = functools.partial(checkpoint, b.forward, "
                      "use_reentrant=False, context_fn=keep)",
                      fmt::join(CostlyOperators(trace), ", "), ModulesOf(blocks, blocks))};
}

PyTorchRemedy SaveTensorsOnCpu() {
  return {"save_on_cpu", "save_on_cpu", "saved-tensors:plan=save_on_cpu",
          "with torch.autograd.graph.save_on_cpu(pin_memory=True): loss = forward()"};
}

PyTorchRemedy ExpandableSegments() {
  return {"allocator", "expandable segments", "",
          "os.environ[\"PYTORCH_CUDA_ALLOC_CONF\"] = \"expandable_segments:True\""};
}

PyTorchRemedy SmallerBatch(int64_t batch, BatchSource source) {
  const bool made = source == BatchSource::kInterpolated || source == BatchSource::kScaled;
  return {"batch", fmt::format("batch {}{}", batch, made ? fmt::format(" ({})", Name(source)) : ""),
          "", fmt::format("loader = DataLoader(dataset, batch_size={})", batch)};
}

PyTorchRemedy MicroBatches(int64_t batch, int64_t count) {
  return {"micro-batches", fmt::format("{} micro-batches of {}", count, batch / count), "",
          fmt::format("for part in batch.chunk({0}): (forward(part) / {0}).backward()\n"
                      "optimizer.step()",
                      count)};
}

PyTorchRemedy MoreGpus(std::span<const int64_t> mesh, int64_t times, const Device& device) {
  const int64_t world =
      std::accumulate(mesh.begin(), mesh.end(), int64_t{1}, std::multiplies<int64_t>());
  std::string start = fmt::format("with {} processes", world);
  if (device.cluster) {
    int64_t nodes = (world + device.cluster->gpus - 1) / device.cluster->gpus;
    while (world % nodes != 0) ++nodes;
    start = fmt::format("--nnodes={} --nproc_per_node={}", nodes, world / nodes);
  }
  return {"more GPUs", fmt::format("{} GPUs (FSDP over {} times as many)", world, times), "",
          fmt::format("{}  # torchrun {}", Mesh(mesh), start)};
}

PyTorchRemedy MoreShards(std::span<const int64_t> mesh, int64_t times) {
  return {"more shards", fmt::format("{} times as many shards, fewer replicas", times), "",
          Mesh(mesh)};
}

PyTorchRemedy ReshardAfterForward() {
  return {"reshard", "reshard after forward", "",
          "for part in model.modules():\n"
          "    if isinstance(part, FSDPModule) and part is not model:\n"
          "        part.set_reshard_after_forward(True, recurse=False)"};
}

PyTorchRemedy ReduceInBfloat16() {
  return {"bf16 reduction", "reduce gradients in bf16 (other numerics)", "",
          "mixed = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.bfloat16)"};
}

PyTorchRemedy Bfloat16() {
  return {"bf16", "bf16 weights (other numerics)", "", "model.bfloat16()"};
}

PyTorchRemedy AutocastToBfloat16() {
  return {"autocast", "autocast to bf16 (other numerics)", "",
          "with torch.autocast(\"cuda\", torch.bfloat16): loss = forward()"};
}

PyTorchRemedy BuildElsewhere() {
  return {"construction", "build in bf16 or on the CPU", "",
          "torch.set_default_dtype(torch.bfloat16)\n"
          "model = make()  # or on the CPU: model = make().bfloat16().cuda()\n"
          "torch.set_default_dtype(torch.float32)"};
}

PyTorchRemedy EightBitOptimizer() {
  return {"8-bit optimizer", "8-bit AdamW (other numerics)", "",
          "optimizer = bitsandbytes.optim.AdamW8bit(model.parameters())"};
}

PyTorchRemedy OffloadedOptimizer(Bandwidth rate) {
  return {"offloaded optimizer",
          fmt::format("optimizer on host ({:.0f} GB/s)",
                      static_cast<double>(rate.bytes_per_second) * 1e-9),
          "",
          "optimizer = torchao.optim.CPUOffloadOptimizer(model.parameters(), torch.optim.AdamW, "
          "offload_gradients=True)"};
}

PyTorchRemedy BySpillway(Bytes budget, HostedTensors host, bool early, bool chunks) {
  const std::string_view what = host.trained                 ? "state and weights too"
                                : host.state && host.weights ? "state and frozen weights too"
                                : host.state                 ? "activations and state"
                                : host.weights               ? "activations and frozen weights"
                                                             : "activations";
  return {"spillway", fmt::format("Spillway: {}", what), "",
          fmt::format("{}\nspillway_torch.fit(model, optimizer, memory=\"{}MiB\"{}{}{})",
                      ExpandableSegments().python, budget.count() / Bytes::MiB(1).count(),
                      host.from_cpu ? ", device=\"cuda\"" : "", early ? ", early_updates=True" : "",
                      chunks ? ", allow=\"chunked_loss\"" : "")};
}

PyTorchRemedy Compile() {
  return {"compile", "torch.compile", "",
          fmt::format("{}\nmodel.compile()", ExpandableSegments().python)};
}

PyTorchRemedy CompileWithin(Bytes budget) {
  return {"compile within the budget", "torch.compile within the budget", "",
          fmt::format("{}\nspillway_torch.compile(model, memory=\"{}MiB\")",
                      ExpandableSegments().python, budget.count() / Bytes::MiB(1).count())};
}

PyTorchRemedy LossInChunks(int64_t chunks) {
  return {"loss chunks", fmt::format("loss in {} chunks of tokens", chunks), "",
          fmt::format("rows, labels = body(batch)\n"
                      "grad = torch.empty_like(rows)\n"
                      "for x, y, g in zip(*(t.detach().chunk({}) for t in (rows, labels, grad))):\n"
                      "    loss = cross_entropy(head(x.requires_grad_()), y, reduction=\"sum\")\n"
                      "    (loss / len(labels)).backward()\n"
                      "    g.copy_(x.grad)\n"
                      "rows.backward(grad)",
                      chunks)};
}

}  // namespace spillway::lab
