#include "experiments/tools/measure/calibration_fit.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdlib>
#include <map>
#include <tuple>
#include <utility>

#include "experiments/tools/measure/linear_fit.h"
#include "sim/cost/records/measurements.h"
#include "traces/base/error.h"

namespace spillway::lab {
namespace {

constexpr double kMebibyte = 1 << 20;
// cudaMalloc cuts smaller blocks from a block of this size.
constexpr Bytes kDriverGranularity = Bytes::MiB(2);
constexpr double kLargestRate = 1e15;  // bytes per second; no memory is that fast

double Seconds(const Timing& timing) { return timing.median.seconds(); }
double Count(Bytes size) { return static_cast<double>(size.count()); }

void Require(const Timing& timing, std::string_view what) {
  if (timing.repeats == 0) throw InputError(fmt::format("{} was not measured", what));
}

Quantity OfTiming(std::string name, const Timing& timing) {
  Require(timing, name);
  Quantity quantity;
  quantity.name = std::move(name);
  quantity.value = Seconds(timing);
  quantity.spread = timing.spread;
  return quantity;
}

Quantity OfFit(std::string name, double value, Unit unit, const LinearFit& fit) {
  Quantity quantity;
  quantity.name = std::move(name);
  quantity.value = value;
  quantity.unit = unit;
  quantity.points = fit.points;
  quantity.mean_error = fit.mean_error;
  quantity.max_error = fit.max_error;
  return quantity;
}

class Fitter {
 public:
  explicit Fitter(const Measurements& measurements) : m_(measurements) {}

  std::vector<Quantity> Run() {
    AddMachine();
    AddLink(m_.copies, {"link.h2d", "link.d2h", "link.duplex"});
    Add(OfTiming("host.launch_overhead", m_.latencies.enqueue_kernel));
    AddLibraryCalls();
    AddAllocations();
    AddPages();
    if (!m_.peer_copies.empty()) {
      AddLink(m_.peer_copies, {"pool.peer.in", "pool.peer.out", "pool.peer.duplex"});
    }
    for (Quantity& quantity : quantities_) quantity.in_device = true;
    for (Quantity& quantity : further_) quantities_.push_back(std::move(quantity));
    further_.clear();
    AddLatencies();
    AddOverlaps();
    return std::move(quantities_);
  }

 private:
  void Add(Quantity quantity) { quantities_.push_back(std::move(quantity)); }
  void AddFurther(Quantity quantity) { further_.push_back(std::move(quantity)); }

  void AddMachine() {
    Quantity memory;
    memory.name = "memory.size";
    memory.value = std::floor(m_.machine.memory.mib()) * kMebibyte;
    memory.unit = Unit::kBytes;
    Add(memory);
    std::vector<Point> points;
    for (const DeviceCopyTiming& copy : m_.device_copies) {
      points.push_back({2 * Count(copy.size), Seconds(copy.time)});
    }
    const LinearFit fit = FitLine(points, "copies within the device");
    Add(OfFit("compute.dram", Rate(fit, "compute.dram"), Unit::kBytesPerSecond, fit));
  }

  static LinearFit FitCopies(const std::vector<CopyTiming>& copies, Timing CopyTiming::*member,
                             std::string_view what) {
    std::vector<Point> points;
    for (const CopyTiming& copy : copies) {
      points.push_back({Count(copy.size), Seconds(copy.*member)});
    }
    return FitLine(points, what);
  }

  static double Rate(const LinearFit& fit, std::string_view what) {
    if (fit.slope < 1 / kLargestRate) {
      throw InputError(fmt::format("cannot fit {}: time does not grow with size", what));
    }
    return 1 / fit.slope;
  }

  // The keys of a link in a device file: to the device, from the device, and both directions.
  struct LinkKeys {
    std::string in;
    std::string out;
    std::string duplex;
  };

  void AddLink(const std::vector<CopyTiming>& copies, const LinkKeys& keys) {
    const auto fit = [&](Timing CopyTiming::*member, const std::string& what) {
      return FitCopies(copies, member, "copies of " + what);
    };
    const LinearFit in = fit(&CopyTiming::h2d, keys.in);
    const LinearFit out = fit(&CopyTiming::d2h, keys.out);
    const LinearFit in_both = fit(&CopyTiming::h2d_both, keys.in + "_both");
    const LinearFit out_both = fit(&CopyTiming::d2h_both, keys.out + "_both");
    const double in_rate = Rate(in, keys.in);
    const double out_rate = Rate(out, keys.out);
    const double in_both_rate = Rate(in_both, keys.in + "_both");
    const double out_both_rate = Rate(out_both, keys.out + "_both");
    Add(OfFit(keys.in, in_rate, Unit::kBytesPerSecond, in));
    Add(OfFit(keys.in + "_latency", in.intercept, Unit::kSeconds, in));
    Add(OfFit(keys.out, out_rate, Unit::kBytesPerSecond, out));
    Add(OfFit(keys.out + "_latency", out.intercept, Unit::kSeconds, out));
    // Both directions together carry at least the rate of the faster direction alone, and at most
    // the sum of both rates.
    LinearFit both;
    both.points = in_both.points + out_both.points;
    both.mean_error = (in_both.mean_error + out_both.mean_error) / 2;
    both.max_error = std::max(in_both.max_error, out_both.max_error);
    const double duplex =
        std::clamp(in_both_rate + out_both_rate, std::max(in_rate, out_rate), in_rate + out_rate);
    Add(OfFit(keys.duplex, duplex, Unit::kBytesPerSecond, both));
    AddFurther(OfFit(keys.in + "_both", in_both_rate, Unit::kBytesPerSecond, in_both));
    AddFurther(OfFit(keys.out + "_both", out_both_rate, Unit::kBytesPerSecond, out_both));
    const LinearFit in_single = fit(&CopyTiming::h2d_single, keys.in + "_single");
    const LinearFit out_single = fit(&CopyTiming::d2h_single, keys.out + "_single");
    AddFurther(OfFit(keys.in + "_single_latency", in_single.intercept, Unit::kSeconds, in_single));
    AddFurther(
        OfFit(keys.out + "_single_latency", out_single.intercept, Unit::kSeconds, out_single));
  }

  // Adds one quantity for several calls: the median of `times`, with the relative errors of using
  // it for each call. Adds nothing if `times` is empty.
  void AddTypical(const std::string& name, std::vector<double> times) {
    if (times.empty()) return;
    std::sort(times.begin(), times.end());
    const size_t middle = times.size() / 2;
    LinearFit fit;
    fit.intercept = times.size() % 2 == 1 ? times[middle] : (times[middle - 1] + times[middle]) / 2;
    fit.points = times.size();
    for (const double time : times) {
      if (time <= 0) throw InputError(fmt::format("{}: a time of 0 was measured", name));
      const double error = std::abs(fit.intercept - time) / time;
      fit.mean_error += error / static_cast<double>(times.size());
      fit.max_error = std::max(fit.max_error, error);
    }
    Add(OfFit(name, fit.intercept, Unit::kSeconds, fit));
  }

  void AddLibraryCalls() {
    std::vector<double> times;
    for (const LibraryCallTiming& call : m_.library_calls) times.push_back(Seconds(call.time));
    AddTypical("host.library_call", std::move(times));
  }

  // Returns the fit of time over size in MiB, for the calls of at least `least` bytes.
  template <typename Call>
  static LinearFit FitCalls(const std::vector<Call>& calls, Timing Call::*member, Bytes least,
                            std::string_view what) {
    std::vector<Point> points;
    for (const Call& call : calls) {
      if (call.size < least) continue;
      points.push_back({Count(call.size) / kMebibyte, Seconds(call.*member)});
    }
    return FitLine(points, what);
  }

  static void AddLaw(std::vector<Quantity>& list, const std::string& name, const LinearFit& fit) {
    list.push_back(OfFit(name + "_fixed", fit.intercept, Unit::kSeconds, fit));
    list.push_back(OfFit(name + "_per_mib", fit.slope, Unit::kSeconds, fit));
  }

  void AddAllocations() {
    AddLaw(
        quantities_, "driver.malloc",
        FitCalls(m_.device_memory, &AllocationTiming::allocate, kDriverGranularity, "cudaMalloc"));
    AddLaw(quantities_, "driver.free",
           FitCalls(m_.device_memory, &AllocationTiming::release, kDriverGranularity, "cudaFree"));
    AddSmall("driver.malloc_small", &AllocationTiming::allocate);
    AddSmall("driver.free_small", &AllocationTiming::release);
    AddLaw(quantities_, "driver.pinned",
           FitCalls(m_.pinned_memory, &AllocationTiming::allocate, Bytes(0), "cudaMallocHost"));
    AddLaw(further_, "driver.pinned_free",
           FitCalls(m_.pinned_memory, &AllocationTiming::release, Bytes(0), "cudaFreeHost"));
  }

  void AddSmall(const std::string& name, Timing AllocationTiming::*member) {
    std::vector<double> times;
    for (const AllocationTiming& call : m_.device_memory) {
      if (call.size < CostLaw::kSmall) times.push_back(Seconds(call.*member));
    }
    AddTypical(name, std::move(times));
  }

  void AddPages() {
    if (m_.page_memory.empty()) return;
    AddLaw(quantities_, "driver.map",
           FitCalls(m_.page_memory, &PageTiming::map, Bytes(0), "the mapping of pages"));
    AddLaw(quantities_, "driver.map_new",
           FitCalls(m_.page_memory, &PageTiming::map_new, Bytes(0), "the mapping of new pages"));
    AddLaw(quantities_, "driver.unmap",
           FitCalls(m_.page_memory, &PageTiming::unmap, Bytes(0), "the unmapping of pages"));
  }

  void AddLatencies() {
    const Latencies& l = m_.latencies;
    Add(OfTiming("host.enqueue_h2d", l.enqueue_h2d));
    Add(OfTiming("host.enqueue_d2h", l.enqueue_d2h));
    Add(OfTiming("host.record_event", l.record_event));
    Add(OfTiming("host.wait_event", l.wait_event));
    Add(OfTiming("stream.kernel_period", l.kernel_period));
    Add(OfTiming("stream.kernel_gap", l.kernel_gap));
    AddDelay("stream.kernel_wait", l.kernel_waiting, l.kernel_after_event);
    AddDelay("stream.copy_wait", l.copy_waiting, l.copy_after_event);
  }

  // Adds the time by which a kernel or copy ends later because it waits for an event of another
  // stream.
  void AddDelay(const std::string& name, const Timing& waiting, const Timing& same_stream) {
    Require(same_stream, name);
    Quantity delay = OfTiming(name, waiting);
    delay.value = std::max(0.0, Seconds(waiting) - Seconds(same_stream));
    Add(std::move(delay));
  }

  const Overlap* FindOverlap(Load load, bool h2d, bool d2h) const {
    for (const Overlap& point : m_.overlaps.points) {
      if (point.load == load && (point.h2d.repeats > 0) == h2d && (point.d2h.repeats > 0) == d2h) {
        return &point;
      }
    }
    return nullptr;
  }

  void AddOverlaps() {
    const Overlaps& overlaps = m_.overlaps;
    if (const Overlap* alone = FindOverlap(Load::kDram, false, false)) {
      AddRate("compute.stream_copy", Count(overlaps.kernel_traffic), alone->kernel,
              Unit::kBytesPerSecond);
    }
    if (const Overlap* alone = FindOverlap(Load::kCompute, false, false)) {
      AddRate("compute.multiply_add", static_cast<double>(overlaps.kernel_flops), alone->kernel,
              Unit::kFlopsPerSecond);
    }
    for (const Overlap& point : overlaps.points) {
      const bool h2d = point.h2d.repeats > 0;
      const bool d2h = point.d2h.repeats > 0;
      const std::string name =
          fmt::format("slowdown.{}{}{}{}{}", point.load == Load::kNone ? "" : Name(point.load),
                      point.load == Load::kNone ? "" : "+", h2d ? "h2d" : "", h2d && d2h ? "+" : "",
                      d2h ? "d2h" : "");
      AddSlowdown(name + ".kernel", point.kernel, FindOverlap(point.load, false, false),
                  &Overlap::kernel);
      AddSlowdown(name + ".h2d", point.h2d, FindOverlap(Load::kNone, true, false), &Overlap::h2d);
      AddSlowdown(name + ".d2h", point.d2h, FindOverlap(Load::kNone, false, true), &Overlap::d2h);
    }
  }

  void AddRate(const std::string& name, double amount, const Timing& timing, Unit unit) {
    if (timing.repeats == 0 || timing.median <= Duration()) return;
    Quantity rate = OfTiming(name, timing);
    rate.value = amount / Seconds(timing);
    rate.unit = unit;
    Add(std::move(rate));
  }

  // Adds the ratio of the time during other work to the time alone.
  void AddSlowdown(const std::string& name, const Timing& timing, const Overlap* alone,
                   Timing Overlap::*member) {
    if (timing.repeats == 0 || alone == nullptr) return;
    const Timing& base = alone->*member;
    if (&base == &timing || base.median <= Duration()) return;
    Quantity slowdown = OfTiming(name, timing);
    slowdown.value = Seconds(timing) / Seconds(base);
    slowdown.unit = Unit::kRatio;
    Add(std::move(slowdown));
  }

  const Measurements& m_;
  std::vector<Quantity> quantities_;
  std::vector<Quantity> further_;
};

struct NamedScale {
  std::string_view name;
  double scale;
};
constexpr std::array kTimes{NamedScale{"ns", 1e-9}, NamedScale{"us", 1e-6}, NamedScale{"ms", 1e-3},
                            NamedScale{"s", 1}};
constexpr std::array kRates{NamedScale{"MB/s", 1e6}, NamedScale{"GB/s", 1e9},
                            NamedScale{"TB/s", 1e12}};
constexpr std::array kFlops{NamedScale{"GFLOP/s", 1e9}, NamedScale{"TFLOP/s", 1e12}};

// Returns the value with four significant digits, in the largest unit in which the rounded number
// is at least 1.
std::string SpellScaled(double value, std::span<const NamedScale> units) {
  const NamedScale* unit = &units.front();
  for (const NamedScale& candidate : units) {
    if (value >= 0.99995 * candidate.scale) unit = &candidate;
  }
  const double number = value / unit->scale;
  const int whole = number < 1 ? 1 : static_cast<int>(std::floor(std::log10(number))) + 1;
  std::string text = fmt::format("{:.{}f}", number, std::max(0, 4 - whole));
  if (text.find('.') != std::string::npos) {
    text.erase(text.find_last_not_of('0') + 1);
    if (text.back() == '.') text.pop_back();
  }
  return text + std::string(unit->name);
}

// A `Line` is one line of a device file. It has "key = value", a comment, both or neither.
struct Line {
  std::string code;
  std::string comment;  // begins with '#'; may be empty
  std::string table;    // the table of the key; empty at the top level
  std::string key;      // empty for a line without a key

  std::string Name() const { return table.empty() ? key : fmt::format("{}.{}", table, key); }
};

std::string_view Trim(std::string_view text) {
  const size_t first = text.find_first_not_of(" \t\r");
  if (first == std::string_view::npos) return {};
  return text.substr(first, text.find_last_not_of(" \t\r") - first + 1);
}

// Returns the offset of the comment, or the size of the line if it has none.
size_t FindComment(std::string_view line) {
  bool quoted = false;
  for (size_t i = 0; i < line.size(); ++i) {
    if (line[i] == '"') quoted = !quoted;
    if (line[i] == '#' && !quoted) return i;
  }
  return line.size();
}

std::vector<Line> SplitLines(std::string_view text) {
  std::vector<Line> lines;
  std::string table;
  while (!text.empty()) {
    const size_t end = std::min(text.find('\n'), text.size());
    const std::string_view whole = text.substr(0, end);
    text.remove_prefix(std::min(end + 1, text.size()));
    const size_t comment = FindComment(whole);
    Line line;
    line.code = Trim(whole.substr(0, comment));
    line.comment = Trim(whole.substr(comment));
    const size_t equals = line.code.find('=');
    if (line.code.starts_with('[')) {
      table = Trim(std::string_view(line.code).substr(1, line.code.find(']') - 1));
    } else if (equals != std::string::npos) {
      line.table = table;
      line.key = Trim(std::string_view(line.code).substr(0, equals));
    }
    lines.push_back(std::move(line));
  }
  return lines;
}

// Returns the lines as text, with the comments of each table aligned.
std::string JoinLines(const std::vector<Line>& lines) {
  std::map<std::string, size_t> widths;
  for (const Line& line : lines) {
    if (line.key.empty() || line.comment.empty()) continue;
    size_t& width = widths[line.table];
    width = std::max(width, line.code.size());
  }
  std::string out;
  for (const Line& line : lines) {
    if (line.comment.empty() || line.code.empty()) {
      out += fmt::format("{}{}\n", line.code, line.comment);
    } else {
      out += fmt::format("{:{}}  {}\n", line.code, line.key.empty() ? 0 : widths[line.table],
                         line.comment);
    }
  }
  return out;
}

// Returns `text` as comment lines that are broken at blanks.
std::string CommentLines(std::string_view text) {
  constexpr size_t kWidth = 98;
  std::string out;
  while (!text.empty()) {
    size_t length = text.size();
    if (length > kWidth) {
      length = text.rfind(' ', kWidth);
      if (length == std::string_view::npos) length = std::min(text.find(' '), text.size());
    }
    out += fmt::format("# {}\n", text.substr(0, length));
    text.remove_prefix(std::min(text.size(), length + 1));
  }
  return out;
}

}  // namespace

std::vector<Quantity> FitMeasurements(const Measurements& measurements) {
  return Fitter(measurements).Run();
}

std::string Spell(const Quantity& quantity) {
  switch (quantity.unit) {
    case Unit::kBytes:
      return fmt::format("{}MiB", std::llround(quantity.value / kMebibyte));
    case Unit::kSeconds:
      return SpellScaled(quantity.value, kTimes);
    case Unit::kBytesPerSecond:
      return SpellScaled(quantity.value, kRates);
    case Unit::kFlopsPerSecond:
      return SpellScaled(quantity.value, kFlops);
    default:
      return fmt::format("{:.3f}", quantity.value);
  }
}

std::string Residual(const Quantity& quantity) {
  if (quantity.mean_error && quantity.max_error) {
    return fmt::format("{} points, error mean {:.1f} % max {:.1f} %", quantity.points,
                       100 * *quantity.mean_error, 100 * *quantity.max_error);
  }
  return quantity.spread ? fmt::format("spread {:.1f} %", 100 * *quantity.spread) : std::string();
}

Columns<Quantity> CalibrationColumns() {
  return {
      {"name", "", "of the number", &Quantity::name},
      {"value", "", "in the unit", &Quantity::value},
      {"unit", "", "B, s, B/s, FLOP/s or 1",
       [](auto& quantity) {
         constexpr std::string_view kUnits[] = {"B", "s", "B/s", "FLOP/s", "1"};
         return kUnits[static_cast<size_t>(quantity.unit)];
       }},
      {"points", "1", "that it was fitted to", &Quantity::points},
      {"mean_error", "1", "relative, of a fit", &Quantity::mean_error},
      {"max_error", "1", "relative, of a fit", &Quantity::max_error},
      {"spread", "1", "relative, of a median", &Quantity::spread},
      {"in_device", "", "device files have it", &Quantity::in_device},
  };
}

bool Describes(const Device& device, std::string_view gpu) {
  return std::find(device.gpus.begin(), device.gpus.end(), gpu) != device.gpus.end();
}

const Device* NearestDevice(std::span<const Device> devices, const Machine& machine) {
  for (const Device& device : devices) {
    if (Describes(device, machine.gpu)) return &device;
  }
  const std::optional<int> capability = ParseCapability(machine.compute_capability);
  if (!capability) return nullptr;
  // A smaller distance means a nearer device.
  const auto distance = [&](const Device& device) {
    const int above = *ParseCapability(device.compute_capability) - *capability;
    const int64_t memory = (device.memory - machine.memory).count();
    return std::tuple(above > 0, std::abs(above), std::abs(memory));
  };
  const Device* nearest = nullptr;
  for (const Device& device : devices) {
    if (device.compute_capability.empty()) continue;
    if (nearest == nullptr || distance(device) < distance(*nearest)) nearest = &device;
  }
  return nearest;
}

std::string MergeDevice(std::string_view base, const std::string& base_name,
                        const Measurements& measurements, const std::vector<Quantity>& quantities,
                        const std::string& raw_name) {
  const Machine& machine = measurements.machine;
  const std::string day = machine.date.substr(0, machine.date.find('T'));
  std::vector<Line> lines = SplitLines(base);
  const auto first =
      std::find_if(lines.begin(), lines.end(), [](const Line& line) { return !line.code.empty(); });
  lines.erase(lines.begin(), first);
  // Returns the line of a key. Inserts a missing key behind the other keys of its table, because
  // device files need not have all keys.
  const auto find = [&](const std::string& name) -> Line& {
    size_t next = 0;
    const size_t dot = name.rfind('.');
    const std::string table = dot == std::string::npos ? "" : name.substr(0, dot);
    for (size_t i = 0; i < lines.size(); ++i) {
      if (lines[i].key.empty()) continue;
      if (lines[i].Name() == name) return lines[i];
      if (lines[i].table == table) next = i + 1;
    }
    if (next == 0 && table == "pool.peer") {
      lines.emplace_back();
      lines.emplace_back().code = "[pool.peer]";
      next = lines.size();
    }
    if (next > 0) {
      Line line;
      line.table = table;
      line.key = dot == std::string::npos ? name : name.substr(dot + 1);
      return *lines.insert(lines.begin() + static_cast<std::ptrdiff_t>(next), std::move(line));
    }
    throw InputError(fmt::format(
        "{}: no line of its own for '{}', which the calibration would replace", base_name, name));
  };
  if (!Describes(ParseDevice(base, base_name), machine.gpu)) {
    find("description").code = fmt::format("description = \"{}\"", machine.gpu);
    find("gpus").code = fmt::format("gpus = [\"{}\"]", machine.gpu);
    if (!machine.compute_capability.empty()) {
      find("compute_capability").code =
          fmt::format("compute_capability = \"{}\"", machine.compute_capability);
    }
    if (machine.flops > 0) {
      Line& line = find("compute.flops");
      line.code =
          fmt::format("flops = \"{}\"", SpellScaled(static_cast<double>(machine.flops), kFlops));
      line.comment = "# source: its multiprocessors at their highest clock";
    }
  }
  for (const Quantity& quantity : quantities) {
    if (!quantity.in_device) continue;
    Line& line = find(quantity.name);
    const std::string residual = Residual(quantity);
    line.code = fmt::format("{} = \"{}\"", line.key, Spell(quantity));
    line.comment = fmt::format("# source: measured, {}{}{}, driver {}, {}", residual,
                               residual.empty() ? "" : "; ", machine.gpu, machine.driver, day);
  }

  std::string out = CommentLines(fmt::format(
      "{} with CUDA {}{}{}{}{}, calibrated by {} on {}. Numbers that say \"measured\" with this "
      "GPU, a driver and a date are fits to the raw times in {}, with their relative error, or "
      "medians, with their spread: 90th less 10th percentile over the median. The others are what "
      "{} said before.",
      machine.gpu, machine.cuda, machine.link.empty() ? "" : ", link ", machine.link,
      machine.host.empty() ? "" : ", host ", machine.host, machine.tool, day, raw_name, base_name));
  out += "\n" + JoinLines(lines);
  ParseDevice(out,
              fmt::format("{} with measurements", base_name));  // throws if the result is invalid
  return out;
}

}  // namespace spillway::lab
