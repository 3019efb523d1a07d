#include "experiments/output/layer_schedule.h"

#include <algorithm>

#include "experiments/output/columns.h"
#include "experiments/output/memory_timeline.h"
#include "traces/liveness.h"

namespace spillway::lab {
namespace {

class Schedules {
 public:
  Schedules(const Trace& trace, const Report& report)
      : trace_(trace), report_(report), liveness_(trace), layers_(trace.layers.size()) {
    for (size_t i = 0; i < layers_.size(); ++i) layers_[i].layer = static_cast<LayerId>(i);
  }

  std::vector<LayerSchedule> Run() {
    AddCommands();
    AddPrefetches();
    AddMemory();
    std::erase_if(layers_, [](const LayerSchedule& layer) { return layer.ops == 0; });
    std::ranges::stable_sort(layers_, {}, [&](const LayerSchedule& layer) {
      return std::ranges::find(trace_.ops, layer.layer, &Op::layer) - trace_.ops.begin();
    });
    return std::move(layers_);
  }

 private:
  LayerSchedule& At(OpId op) { return layers_[Index(trace_.op(op).layer)]; }

  // Returns the layer that uses the tensor next when it is brought to the device at `op`.
  LayerSchedule& UserOf(TensorId tensor, OpId op) {
    const auto uses = liveness_.Uses(liveness_.Root(tensor));
    const auto next = std::ranges::lower_bound(uses, op);
    return At(next == uses.end() ? op : *next);
  }

  void AddCommands() {
    Duration end;
    for (const TimelineEntry& entry : report_.timeline) {
      if (entry.kind == CommandKind::kToDevice) {
        UserOf(entry.tensor, entry.op).in += entry.size;
      } else if (entry.kind == CommandKind::kToHost) {
        At(entry.op).out += entry.size;
      } else {
        LayerSchedule& layer = At(entry.op);
        ++layer.ops;
        layer.stall += entry.interval.start - end;
        layer.compute += entry.interval.end - entry.interval.start;
        end = entry.interval.end;
      }
    }
  }

  void AddPrefetches() {
    for (const Decision& decision : report_.decisions) {
      if (decision.verb != Verb::kPrefetch || !decision.done) continue;
      LayerSchedule& layer = UserOf(decision.tensor, decision.op);
      ++layer.prefetches;
      if (!layer.prefetch_from) layer.prefetch_from = decision.op;
    }
  }

  // Sets the memory of each layer, from the bytes held when an op begins and each change during the
  // op.
  void AddMemory() {
    const std::vector<MemorySample> samples = MemoryTimeline(report_);
    Bytes held;
    size_t next = 0;
    for (size_t i = 0; i < trace_.ops.size(); ++i) {
      LayerSchedule& layer = At(static_cast<OpId>(i));
      layer.memory = std::max(layer.memory, held);
      for (; next < samples.size() && Index(samples[next].op) <= i; ++next) {
        held = samples[next].allocated;
        layer.memory = std::max(layer.memory, held);
      }
    }
  }

  const Trace& trace_;
  const Report& report_;
  const Liveness liveness_;
  std::vector<LayerSchedule> layers_;  // by layer
};

}  // namespace

std::vector<LayerSchedule> ScheduleOf(const Trace& trace, const Report& report) {
  SPILLWAY_CHECK(report.fits());
  return Schedules(trace, report).Run();
}

std::string FormatScheduleCsv(const Trace& trace, const Report& report) {
  const Columns<LayerSchedule> columns{
      {"layer", "", "", [&](auto& layer) { return trace.layer(layer.layer).name; }},
      {"type", "", "", [&](auto& layer) { return Name(trace.layer(layer.layer).type); }},
      {"ops", "1", "in how many parts it runs, with what gathers them", &LayerSchedule::ops},
      {"prefetches", "1", "copies that were asked for ahead", &LayerSchedule::prefetches},
      {"prefetch_from", "", "the op at which the first of them was issued",
       [&](auto& layer) {
         return layer.prefetch_from ? std::optional(trace.op(*layer.prefetch_from).name)
                                    : std::nullopt;
       }},
      {"memory_bytes", "B", "the most that is allocated meanwhile", &LayerSchedule::memory},
      {"in_bytes", "B", "copied to the device for it", &LayerSchedule::in},
      {"out_bytes", "B", "copied away meanwhile", &LayerSchedule::out},
      {"compute_ms", "ms", "of its kernels", &LayerSchedule::compute},
      {"stall_ms", "ms", "of the compute stream before them", &LayerSchedule::stall},
  };
  return FormatCsv(columns, ScheduleOf(trace, report));
}

}  // namespace spillway::lab
