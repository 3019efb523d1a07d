#include "sim/cost/records/measurements.h"

#include <fmt/format.h>

#include <array>
#include <limits>
#include <utility>
#include <vector>

#include "sim/core/device.h"
#include "traces/base/file.h"
#include "traces/base/json.h"
#include "traces/base/json_writer.h"

namespace spillway::sim {
namespace {

constexpr std::string_view kFormat = "spillway-calibration";
constexpr int kVersion = 1;
constexpr int64_t kMaxTime = Duration::Max().picoseconds() / 2;
constexpr std::array kLoads{Load::kNone, Load::kDram, Load::kCompute};

// A key of the file and the member that it holds.
template <typename Struct, typename Member>
struct Key {
  std::string_view name;
  Member Struct::*member;
};

constexpr Key<Machine, std::string> kMachineNames[] = {
    {"gpu", &Machine::gpu},       {"link", &Machine::link}, {"host", &Machine::host},
    {"driver", &Machine::driver}, {"cuda", &Machine::cuda}, {"date", &Machine::date},
    {"tool", &Machine::tool},
};
constexpr Key<Machine, Bytes> kMachineSizes[] = {
    {"memory", &Machine::memory},
    {"l2_cache", &Machine::l2_cache},
};
constexpr Key<CopyTiming, Timing> kCopyTimings[] = {
    {"h2d", &CopyTiming::h2d},
    {"d2h", &CopyTiming::d2h},
    {"h2d_single", &CopyTiming::h2d_single},
    {"d2h_single", &CopyTiming::d2h_single},
    {"h2d_both", &CopyTiming::h2d_both},
    {"d2h_both", &CopyTiming::d2h_both},
};
constexpr Key<DeviceCopyTiming, Timing> kDeviceCopyTimings[] = {
    {"time", &DeviceCopyTiming::time},
};
constexpr Key<Overlap, Timing> kOverlapTimings[] = {
    {"kernel", &Overlap::kernel},
    {"h2d", &Overlap::h2d},
    {"d2h", &Overlap::d2h},
};
constexpr Key<Latencies, Timing> kLatencies[] = {
    {"enqueue_kernel", &Latencies::enqueue_kernel},
    {"enqueue_h2d", &Latencies::enqueue_h2d},
    {"enqueue_d2h", &Latencies::enqueue_d2h},
    {"record_event", &Latencies::record_event},
    {"wait_event", &Latencies::wait_event},
    {"kernel_period", &Latencies::kernel_period},
    {"kernel_gap", &Latencies::kernel_gap},
    {"kernel_after_event", &Latencies::kernel_after_event},
    {"kernel_waiting", &Latencies::kernel_waiting},
    {"copy_after_event", &Latencies::copy_after_event},
    {"copy_waiting", &Latencies::copy_waiting},
};
constexpr Key<AllocationTiming, Timing> kAllocationTimings[] = {
    {"allocate", &AllocationTiming::allocate},
    {"release", &AllocationTiming::release},
};
constexpr Key<PageTiming, Timing> kPageTimings[] = {
    {"map", &PageTiming::map},
    {"map_new", &PageTiming::map_new},
    {"unmap", &PageTiming::unmap},
};
constexpr Key<LibraryCallTiming, Timing> kLibraryCallTimings[] = {
    {"time", &LibraryCallTiming::time},
};

class MeasurementsReader {
 public:
  using Value = JsonDocument::Value;

  MeasurementsReader(std::string_view text, const std::string& origin) : json_(text, origin) {}

  Measurements Read() {
    json_.ReadHeader(kFormat, kVersion);
    json_.ReadRoot(
        Required("format", SkipJson), Required("version", SkipJson),
        Required("machine", [this](Value v) { ReadMachine(v); }),
        Required("copies", [this](Value v) { ReadPoints(v, result_.copies, kCopyTimings); }),
        Optional("peer_copies",
                 [this](Value v) { ReadPoints(v, result_.peer_copies, kCopyTimings); }),
        Required("device_copies",
                 [this](Value v) { ReadPoints(v, result_.device_copies, kDeviceCopyTimings); }),
        Required("overlaps", [this](Value v) { ReadOverlaps(v); }),
        Required("latencies", [this](Value v) { ReadTimings(v, result_.latencies, kLatencies); }),
        Required("device_memory",
                 [this](Value v) { ReadPoints(v, result_.device_memory, kAllocationTimings); }),
        Required("pinned_memory",
                 [this](Value v) { ReadPoints(v, result_.pinned_memory, kAllocationTimings); }),
        Optional("page_memory",
                 [this](Value v) { ReadPoints(v, result_.page_memory, kPageTimings); }),
        Optional("library_calls", [this](Value v) { ReadLibraryCalls(v); }));
    return std::move(result_);
  }

 private:
  Bytes ReadSize(Value value) {
    return Bytes(json_.ReadInteger(value, 1, Bytes::Unlimited().count()));
  }

  Timing ReadTiming(Value value) {
    Timing timing;
    json_.ReadObject(
        value,
        Required("median_ps",
                 [&](Value v) {
                   timing.median = Duration::Picoseconds(json_.ReadInteger(v, 0, kMaxTime));
                 }),
        Required("spread",
                 [&](Value v) {
                   timing.spread = json_.ReadNumber(v);
                   if (timing.spread < 0) {
                     json_.Fail("expected a number from 0, got a negative one");
                   }
                 }),
        Required("repeats", [&](Value v) {
          timing.repeats =
              static_cast<int>(json_.ReadInteger(v, 1, std::numeric_limits<int>::max()));
        }));
    return timing;
  }

  // Reads the fields whose keys are in a table. A field that `other` does not take either is an
  // error.
  template <typename Struct, size_t kCount, typename Other>
  void ReadKeys(Value value, Struct& target, const Key<Struct, Timing> (&keys)[kCount],
                bool all_required, const Other& other) {
    std::array<bool, kCount> seen{};
    json_.ReadMap(value, [&](std::string_view key, Value field) {
      for (size_t i = 0; i < kCount; ++i) {
        if (keys[i].name != key) continue;
        if (std::exchange(seen[i], true)) json_.Fail("this key stands here twice");
        target.*keys[i].member = ReadTiming(field);
        return;
      }
      if (!other(key, field)) json_.Fail("unknown key");
    });
    for (size_t i = 0; i < kCount; ++i) {
      if (all_required && !seen[i]) {
        json_.Fail(fmt::format("the key '{}' is missing", keys[i].name));
      }
    }
  }

  template <typename Struct, size_t kCount>
  void ReadTimings(Value value, Struct& target, const Key<Struct, Timing> (&keys)[kCount]) {
    ReadKeys(value, target, keys, true, [](std::string_view, Value) { return false; });
  }

  template <typename Point, size_t kCount>
  void ReadPoints(Value value, std::vector<Point>& points,
                  const Key<Point, Timing> (&keys)[kCount]) {
    json_.ReadArray(value, [&](Value element) {
      Point& point = points.emplace_back();
      ReadKeys(element, point, keys, true, [&](std::string_view key, Value field) {
        if (key != "size") return false;
        point.size = ReadSize(field);
        return true;
      });
      if (point.size == Bytes(0)) json_.Fail("the key 'size' is missing");
    });
  }

  void ReadLibraryCalls(Value value) {
    json_.ReadArray(value, [&](Value element) {
      LibraryCallTiming& call = result_.library_calls.emplace_back();
      bool named = false;
      ReadKeys(element, call, kLibraryCallTimings, true, [&](std::string_view key, Value field) {
        if (key != "call") return false;
        if (std::exchange(named, true)) json_.Fail("this key stands here twice");
        call.call = json_.ReadString(field);
        return true;
      });
      if (!named) json_.Fail("the key 'call' is missing");
    });
  }

  void ReadMachine(Value value) {
    Machine& machine = result_.machine;
    size_t seen = 0;
    json_.ReadMap(value, [&](std::string_view key, Value field) {
      if (key == "compute_capability") {
        machine.compute_capability = json_.ReadString(field);
        if (!ParseCapability(machine.compute_capability)) json_.Fail("expected one like \"9.0\"");
        return;
      }
      if (key == "flops") {
        machine.flops = json_.ReadInteger(field, 1, std::numeric_limits<int64_t>::max());
        return;
      }
      ++seen;
      for (const auto& [name, member] : kMachineNames) {
        if (name == key) {
          machine.*member = json_.ReadString(field);
          return;
        }
      }
      for (const auto& [name, member] : kMachineSizes) {
        if (name == key) {
          machine.*member = ReadSize(field);
          return;
        }
      }
      json_.Fail("unknown key");
    });
    if (seen != std::size(kMachineNames) + std::size(kMachineSizes)) {
      json_.Fail(
          "expected each of gpu, link, host, driver, cuda, date, tool, memory, l2_cache once");
    }
  }

  void ReadOverlaps(Value value) {
    Overlaps& overlaps = result_.overlaps;
    json_.ReadObject(
        value, Required("kernel_traffic", [&](Value v) { overlaps.kernel_traffic = ReadSize(v); }),
        Required("kernel_flops",
                 [&](Value v) {
                   overlaps.kernel_flops =
                       json_.ReadInteger(v, 1, std::numeric_limits<int64_t>::max());
                 }),
        Required("copy_size", [&](Value v) { overlaps.copy_size = ReadSize(v); }),
        Required("points", [&](Value v) {
          json_.ReadArray(v, [&](Value element) { ReadOverlap(element); });
        }));
  }

  void ReadOverlap(Value value) {
    Overlap& point = result_.overlaps.points.emplace_back();
    bool found = false;
    ReadKeys(value, point, kOverlapTimings, false, [&](std::string_view key, Value field) {
      if (key != "load") return false;
      const std::string_view name = json_.ReadString(field);
      for (const Load load : kLoads) {
        if (Name(load) != name) continue;
        point.load = load;
        found = true;
      }
      if (!found) json_.Fail("expected \"none\", \"dram\" or \"compute\"");
      return true;
    });
    if (!found) json_.Fail("the key 'load' is missing");
  }

  JsonDocument json_;
  Measurements result_;
};

// Writes the timings that were made, each on its own line.
template <typename Struct, size_t kCount>
void PutTimings(JsonWriter& json, const Struct& source, const Key<Struct, Timing> (&keys)[kCount]) {
  for (const auto& [name, member] : keys) {
    const Timing& timing = source.*member;
    if (timing.repeats == 0) continue;
    json.Break(6).Key(name).BeginObject().Put("median_ps", timing.median.picoseconds());
    json.Put("spread", timing.spread).Put("repeats", timing.repeats).EndObject();
  }
}

template <typename Point, size_t kCount>
void PutPoints(JsonWriter& json, std::string_view key, const std::vector<Point>& points,
               const Key<Point, Timing> (&keys)[kCount]) {
  json.Key(key).BeginArray();
  for (const Point& point : points) {
    json.BeginObject().Put("size", point.size);
    PutTimings(json, point, keys);
    json.EndObject();
  }
  json.EndArray();
}

}  // namespace

std::string_view Name(Load load) {
  switch (load) {
    case Load::kDram:
      return "dram";
    case Load::kCompute:
      return "compute";
    default:
      return "none";
  }
}

Measurements ReadMeasurements(const std::filesystem::path& path) {
  return ParseMeasurements(ReadFile(path, Bytes::MiB(64)), path.string());
}

Measurements ParseMeasurements(std::string_view text, const std::string& origin) {
  return MeasurementsReader(text, origin).Read();
}

std::string FormatMeasurements(const Measurements& measurements) {
  const Machine& machine = measurements.machine;
  const Overlaps& overlaps = measurements.overlaps;
  JsonWriter json(2);
  json.BeginObject().Put("format", kFormat).Put("version", kVersion);
  json.Key("machine").BeginObjectOnOneLine();
  for (const auto& [name, member] : kMachineNames) json.Put(name, machine.*member);
  for (const auto& [name, member] : kMachineSizes) json.Put(name, machine.*member);
  if (!machine.compute_capability.empty()) {
    json.Put("compute_capability", machine.compute_capability);
  }
  if (machine.flops > 0) json.Put("flops", machine.flops);
  json.EndObject();
  PutPoints(json, "copies", measurements.copies, kCopyTimings);
  if (!measurements.peer_copies.empty()) {
    PutPoints(json, "peer_copies", measurements.peer_copies, kCopyTimings);
  }
  PutPoints(json, "device_copies", measurements.device_copies, kDeviceCopyTimings);
  json.Key("overlaps").BeginObjectOnOneLine();
  json.Put("kernel_traffic", overlaps.kernel_traffic).Put("kernel_flops", overlaps.kernel_flops);
  json.Put("copy_size", overlaps.copy_size);
  json.Key("points").BeginArray();
  for (const Overlap& point : overlaps.points) {
    json.Break(4).BeginObject().Put("load", Name(point.load));
    PutTimings(json, point, kOverlapTimings);
    json.EndObject();
  }
  json.EndArray().EndObject().Key("latencies").BeginObjectOnOneLine();
  PutTimings(json, measurements.latencies, kLatencies);
  json.EndObject();
  PutPoints(json, "device_memory", measurements.device_memory, kAllocationTimings);
  PutPoints(json, "pinned_memory", measurements.pinned_memory, kAllocationTimings);
  PutPoints(json, "page_memory", measurements.page_memory, kPageTimings);
  json.Key("library_calls").BeginArray();
  for (const LibraryCallTiming& call : measurements.library_calls) {
    json.BeginObject().Put("call", call.call);
    PutTimings(json, call, kLibraryCallTimings);
    json.EndObject();
  }
  return json.EndArray().EndObject().Take();
}

}  // namespace spillway::sim
