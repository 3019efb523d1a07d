#include "traces/import/kineto.h"

#include <fmt/format.h>
#include <simdjson.h>

#include <algorithm>
#include <array>
#include <limits>
#include <optional>
#include <set>
#include <string_view>
#include <tuple>

#include "traces/base/error.h"
#include "traces/base/json.h"
#include "traces/base/json_elements.h"
#include "traces/base/units.h"
#include "traces/import/how_to_record.h"

namespace spillway::traces {
namespace {

using simdjson::ondemand::object;
using simdjson::ondemand::value;

constexpr int64_t kLatest = int64_t{1} << 62;  // nanoseconds; some traces count from 1970 on
// The longest time in nanoseconds from the first event of a trace to its last, and of all
// activities together: 53 days.
constexpr int64_t kLongest = (int64_t{1} << 62) / 1000;
constexpr int64_t kMostBytes = int64_t{1} << 60;  // sum over all memory events
// PyTorch's types of devices (c10::DeviceType) by their numbers, up to PrivateUse1.
constexpr std::array<std::string_view, 21> kDeviceTypes{
    "CPU",  "CUDA", "MKLDNN", "OpenGL", "OpenCL", "IDEEP", "HIP",
    "FPGA", "MAIA", "XLA",    "Vulkan", "Metal",  "XPU",   "MPS",
    "Meta", "HPU",  "VE",     "Lazy",   "IPU",    "MTIA",  "PrivateUse1"};
constexpr int64_t kCpu = 0, kCuda = 1, kHip = 6;
constexpr size_t kNamedProcesses = 8;  // in a message

std::string DeviceName(int64_t type) {
  const bool known = type >= 0 && type < std::ssize(kDeviceTypes);
  return known ? fmt::format("{} ({})", kDeviceTypes[static_cast<size_t>(type)], type)
               : fmt::format("{}", type);
}

// Returns the text of a number, which may stand in quotes.
std::string_view Unquoted(std::string_view token) {
  if (!token.starts_with('"')) return token;
  return token.substr(1, token.find('"', 1) - 1);
}

// Converts microseconds such as "4322416607372.949" to nanoseconds. The result is exact, which a
// double would not be. Digits below a nanosecond are cut off.
std::optional<int64_t> Nanoseconds(std::string_view token) {
  const std::string_view text = Unquoted(token);
  int64_t number = 0;
  size_t i = 0;
  const bool negative = text.starts_with('-');
  if (negative) ++i;
  int decimals = -1;
  for (; i < text.size(); ++i) {
    const char c = text[i];
    if (c == '.' && decimals < 0) {
      decimals = 0;
    } else if (c >= '0' && c <= '9') {
      if (decimals == 3) continue;
      if (number > kLatest / 16) return std::nullopt;
      number = number * 10 + (c - '0');
      if (decimals >= 0) ++decimals;
    } else if (text.find_first_not_of(" \t\r\n", i) == text.npos) {
      break;
    } else {
      return std::nullopt;
    }
  }
  for (decimals = std::max(decimals, 0); decimals < 3; ++decimals) {
    if (number > kLatest / 16) return std::nullopt;
    number *= 10;
  }
  return negative ? -number : number;
}

// The fields that are read from an event. All keys are optional.
struct Event {
  std::string_view phase, category, name, process;
  std::optional<int64_t> begin, duration;
  int64_t thread = 0;
  int64_t external_id = 0, record = -1, correlation = 0, device = 0, stream = 0, order = 0;
  int64_t device_type = kCpu, device_id = -1, bytes = 0, allocated = 0, reserved = 0;
  uint64_t address = 0;
};

class Reader {
 public:
  explicit Reader(TextStream& stream)
      : origin_(stream.origin()),
        elements_(stream, "traceEvents", "ph", "a trace of torch.profiler") {}

  KinetoTrace Read() {
    ReadHeader();
    while (const auto text = elements_.Next()) {
      if (!MayMatter(*text)) continue;
      if (!ReadEvent(*text)) ++trace_.broken;
    }
    trace_.broken += elements_.cut_off();
    if (elements_.truncated()) {
      throw InputError(fmt::format("{}: the events end too early: was the file cut off?", origin_));
    }
    if (trace_.operators.empty()) {
      throw InputError(fmt::format(
          "{}: no operators, expected a trace of torch.profiler with the activity CPU{}", origin_,
          kHowToRecord));
    }
    if (processes_.size() > 1) {
      const bool more = processes_.size() > kNamedProcesses;
      if (more) processes_.erase(std::prev(processes_.end()));
      throw InputError(fmt::format(
          "{}: operators of several processes ({}{}), expected one: import the profile that one "
          "process wrote, before profiles are merged",
          origin_, fmt::join(processes_, ", "), more ? ", and more" : ""));
    }
    CheckAmounts();
    Sort();
    return std::move(trace_);
  }

 private:
  // Returns false if the event has no use. Reads only the category near the beginning.
  static bool MayMatter(std::string_view text) {
    const std::string_view start = text.substr(0, 64);
    return start.find("\"python_function\"") == start.npos && start.find("\"ac2g\"") == start.npos;
  }

  void ReadHeader() {
    simdjson::padded_string text(elements_.header());
    simdjson::ondemand::document document;
    simdjson::ondemand::array devices;
    if (parser_.iterate(text).get(document) != simdjson::SUCCESS) return;
    if (document["deviceProperties"].get_array().get(devices) != simdjson::SUCCESS) return;
    for (auto element : devices) {
      std::string_view name;
      if (element["name"].get_string().get(name) != simdjson::SUCCESS) return;
      trace_.device = name;
      return;
    }
  }

  // Returns the integer, or 0 for a value that is not an integer.
  static int64_t Integer(value number) {
    int64_t integer = 0;
    if (number.get_int64().get(integer) == simdjson::SUCCESS) return integer;
    if (number.get_int64_in_string().get(integer) == simdjson::SUCCESS) return integer;
    return 0;
  }
  static uint64_t Address(value number) {
    uint64_t address = 0;
    if (number.get_uint64().get(address) == simdjson::SUCCESS) return address;
    if (number.get_uint64_in_string().get(address) == simdjson::SUCCESS) return address;
    return 0;
  }

  bool ReadArguments(object arguments, Event& event) {
    for (auto result : arguments) {
      simdjson::ondemand::field field;
      if (std::move(result).get(field) != simdjson::SUCCESS) return false;
      std::string_view key;
      if (field.unescaped_key().get(key) != simdjson::SUCCESS) return false;
      if (key == "External id")
        event.external_id = Integer(field.value());
      else if (key == "Record function id")
        event.record = Integer(field.value());
      else if (key == "correlation")
        event.correlation = Integer(field.value());
      else if (key == "device")
        event.device = Integer(field.value());
      else if (key == "stream")
        event.stream = Integer(field.value());
      else if (key == "Ev Idx")
        event.order = Integer(field.value());
      else if (key == "Device Type")
        event.device_type = Integer(field.value());
      else if (key == "Device Id")
        event.device_id = Integer(field.value());
      else if (key == "Bytes")
        event.bytes = Integer(field.value());
      else if (key == "Total Allocated")
        event.allocated = Integer(field.value());
      else if (key == "Total Reserved")
        event.reserved = Integer(field.value());
      else if (key == "Addr")
        event.address = Address(field.value());
    }
    return true;
  }

  bool ReadEvent(std::string_view text) {
    simdjson::ondemand::document document;
    object root;
    if (parser_.iterate(text, text.size() + JsonElements::kPadding).get(document) !=
        simdjson::SUCCESS)
      return false;
    if (document.get_object().get(root) != simdjson::SUCCESS) return false;
    Event event;
    for (auto result : root) {
      simdjson::ondemand::field field;
      if (std::move(result).get(field) != simdjson::SUCCESS) return false;
      std::string_view key;
      if (field.unescaped_key().get(key) != simdjson::SUCCESS) return false;
      value content = field.value();
      if (key == "ph") {
        if (content.get_string().get(event.phase) != simdjson::SUCCESS) return false;
      } else if (key == "cat") {
        if (content.get_string().get(event.category) != simdjson::SUCCESS) return false;
      } else if (key == "name") {
        if (content.get_string().get(event.name) != simdjson::SUCCESS) return false;
      } else if (key == "pid") {
        event.process = Unquoted(content.raw_json_token());
      } else if (key == "tid") {
        event.thread = Integer(content);
      } else if (key == "ts") {
        event.begin = Nanoseconds(content.raw_json_token());
      } else if (key == "dur") {
        event.duration = Nanoseconds(content.raw_json_token());
      } else if (key == "args") {
        object arguments;
        if (content.get_object().get(arguments) != simdjson::SUCCESS) return false;
        if (!ReadArguments(arguments, event)) return false;
      }
    }
    Keep(event);
    return true;
  }

  // Notes the process of an operator or a memory event. One more than a message names is enough.
  void NoteProcess(std::string_view process) {
    process = process.substr(0, process.find_last_not_of(" \t\r\n") + 1);
    if (process.empty() || process == last_process_ || processes_.size() > kNamedProcesses) return;
    last_process_ = process;
    processes_.insert(JsonExcerpt(process));
  }

  void Keep(const Event& event) {
    if (!event.begin) return;
    const int64_t begin = *event.begin;
    if (event.phase == "i" && event.name == "[memory]") {
      NoteProcess(event.process);
      const bool on_gpu = event.device_type == kCuda || event.device_type == kHip;
      if (!on_gpu && event.device_type != kCpu) {
        trace_.unknown_devices.insert(DeviceName(event.device_type));
        return;
      }
      trace_.memory.push_back({event.order, begin, event.thread, on_gpu ? event.device_id : -1,
                               event.address, event.bytes, event.allocated, event.reserved});
      return;
    }
    if (event.phase != "X" || !event.duration || *event.duration < 0) return;
    const int64_t end = begin + *event.duration;
    const auto is = [&](auto... names) { return ((event.category == names) || ...); };
    if (is("cpu_op", "Operator")) {  // the latter before 2022, as below
      NoteProcess(event.process);
      trace_.operators.push_back(
          {std::string(event.name), event.record, event.external_id, event.thread, begin, end});
    } else if (is("kernel", "gpu_memcpy", "gpu_memset", "Kernel", "Memcpy", "Memset")) {
      trace_.activities.push_back(
          {event.external_id, event.correlation, event.device, event.stream, begin, end});
    } else if (is("cuda_runtime", "cuda_driver")) {
      if (event.correlation != 0) trace_.launches.push_back({event.correlation, end});
    }
  }

  // Throws `InputError` if a sum over the trace could overflow.
  void CheckAmounts() const {
    const int64_t start = trace_.operators[0].begin;
    bool near = true;
    const auto check = [&](Int128 time) {
      near &= time - start <= kLongest / 2 && start - time <= kLongest / 2;
    };
    Int128 busy = 0, bytes = 0;
    for (const auto& op : trace_.operators) check(op.begin), check(op.end);
    for (const auto& launch : trace_.launches) check(launch.end);
    for (const auto& activity : trace_.activities) {
      check(activity.begin), check(activity.end);
      busy += activity.end - activity.begin;
    }
    for (const auto& memory : trace_.memory) {
      check(memory.time);
      for (const Int128 amount : {memory.bytes, memory.allocated, memory.reserved}) {
        bytes = std::max({bytes, amount, -amount});
      }
    }
    if (!near || busy > kLongest) {
      throw InputError(fmt::format("{}: the events take more than 53 days", origin_));
    }
    if (bytes * std::ssize(trace_.memory) > kMostBytes) {
      throw InputError(fmt::format("{}: memory events of more than 2^60 bytes", origin_));
    }
  }

  // Makes times start at the first begin and sorts all lists.
  void Sort() {
    int64_t first = std::numeric_limits<int64_t>::max();
    int64_t last = std::numeric_limits<int64_t>::min();
    const auto span = [&](const auto& list) {
      for (const auto& item : list) {
        first = std::min(first, item.begin);
        last = std::max(last, item.end);
      }
    };
    span(trace_.operators);
    span(trace_.activities);
    trace_.end = last - first;
    for (auto& op : trace_.operators) op.begin -= first, op.end -= first;
    for (auto& activity : trace_.activities) activity.begin -= first, activity.end -= first;
    for (auto& launch : trace_.launches) launch.end -= first;
    for (auto& memory : trace_.memory) memory.time -= first;
    std::ranges::stable_sort(trace_.operators, {}, [](const KinetoTrace::Operator& op) {
      return std::tuple(op.begin, -op.end);
    });
    std::ranges::stable_sort(trace_.activities, {}, &KinetoTrace::Activity::begin);
    std::ranges::stable_sort(trace_.launches, {}, &KinetoTrace::Launch::correlation);
    std::ranges::stable_sort(trace_.memory, {}, [](const KinetoTrace::Memory& memory) {
      return std::tuple(memory.time, memory.order);
    });
  }

  const std::string origin_;
  JsonElements elements_;
  simdjson::ondemand::parser parser_;
  KinetoTrace trace_;
  std::set<std::string> processes_;
  std::string last_process_;
};

}  // namespace

KinetoTrace ReadKineto(TextStream& stream) { return Reader(stream).Read(); }

}  // namespace spillway::traces
