#include "sim/core/device.h"

#include <fmt/format.h>
#include <toml++/toml.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <filesystem>
#include <optional>
#include <string_view>
#include <utility>
#include <vector>

#include "traces/base/error.h"
#include "traces/base/file.h"

namespace spillway::sim {
namespace {

constexpr Bytes kMaxDeviceFile = Bytes::MiB(1);
constexpr size_t kMaxDots = 1000;  // ten times the dots of the existing files
constexpr double kMaxEfficiency = 4;

// The optional tables of efficiencies of transformers, with their keys.
constexpr std::array<std::pair<std::string_view, std::array<std::string_view, 6>>, 2> kSequences{
    {{"product", {"fp32", "tf32", "tf32_unaligned", "short", "short_4_bytes", "short_2_bytes"}},
     {"attention", {"fwd", "bwd"}}}};

// One table of the file. Keys are taken one by one; then unknown keys and missing keys are errors.
class Section {
 public:
  Section(const toml::table& table, std::string name, std::string origin)
      : table_(table), name_(std::move(name)), origin_(std::move(origin)) {}

  // Returns the string of `key`. A missing key gives a meaningless value, and `ExpectNothingElse`
  // reports it.
  std::string String(std::string_view key) {
    const toml::node* node = Take(key);
    if (node == nullptr) return {};
    const toml::value<std::string>* text = node->as_string();
    if (text == nullptr) Fail(*node, key, "expected a string");
    return text->get();
  }

  // Returns the strings of the array `key`; empty if the key is missing.
  std::vector<std::string> Strings(std::string_view key) {
    std::vector<std::string> strings;
    if (!Has(key)) return strings;
    const toml::node& node = *Take(key);
    const toml::array* array = node.as_array();
    if (array == nullptr) Fail(node, key, "expected an array of strings");
    for (const toml::node& element : *array) {
      const toml::value<std::string>* text = element.as_string();
      if (text == nullptr) Fail(element, key, "expected a string");
      strings.push_back(text->get());
    }
    return strings;
  }

  // Returns the value of `key`, parsed with `parse`. Fails if it is less than `least`.
  template <typename Quantity>
  Quantity Get(std::string_view key, Quantity (*parse)(std::string_view), Quantity least,
               std::string_view least_name) {
    const toml::node* node = Take(key);
    if (node == nullptr) return least;
    const toml::value<std::string>* text = node->as_string();
    if (text == nullptr)
      Fail(*node, key, "expected a string with a unit, like \"12GiB\" or \"9us\"");
    Quantity quantity{};
    try {
      quantity = parse(text->get());
    } catch (const InputError& error) {
      Fail(*node, key, error.what());
    }
    if (quantity < least) {
      Fail(*node, key,
           fmt::format("'{}' is too small, expected at least {}", text->get(), least_name));
    }
    return quantity;
  }
  Bytes Size(std::string_view key) { return Get(key, ParseBytes, Bytes(1), "1 B"); }
  Duration Time(std::string_view key) {
    const Duration time = Get(key, ParseDuration, Duration(), "0 s");
    if (time > Device::kMaxTime) {
      Fail(*table_.get(key), key, "the time is too long, expected at most 1000 s");
    }
    return time;
  }
  Bandwidth Rate(std::string_view key) {
    return Get(key, ParseBandwidth, Device::kLeastBandwidth, "1 MB/s");
  }

  // Returns a whole number from 1 to `most`, written as a string like all values.
  int Count(std::string_view key, int most) {
    const std::string text = String(key);
    int count = 0;
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), count);
    if (error != std::errc() || end != text.data() + text.size() || count < 1 || count > most) {
      Fail(*table_.get(key), key,
           fmt::format("'{}' is not a whole number from 1 to {}", text, most));
    }
    return count;
  }

  Section Subsection(std::string_view key) {
    static const toml::table kNothing;
    const toml::node* node = Take(key);
    const toml::table* table = node == nullptr ? &kNothing : node->as_table();
    if (table == nullptr) Fail(*node, key, "expected a table");
    const std::string prefix = name_.empty() ? "" : name_ + ".";
    return Section(*table, prefix + std::string(key), origin_);
  }

  bool Has(std::string_view key) const { return table_.contains(key); }
  // Returns `Has(key)` and makes `key` a known optional key.
  bool May(std::string_view key) {
    if (!Has(key)) taken_.emplace_back(key);
    return Has(key);
  }

  // Returns the number of `key`, which must be in (0, kMaxEfficiency].
  double Efficiency(std::string_view key) {
    const toml::node* node = Take(key);
    if (node == nullptr) return kMaxEfficiency;
    const std::optional<double> number =
        node->is_number() ? node->value<double>() : std::optional<double>();
    if (!number || !(*number > 0 && *number <= kMaxEfficiency)) {
      Fail(*node, key, fmt::format("expected a number above 0, at most {}", kMaxEfficiency));
    }
    return *number;
  }

  // Returns the number of the optional `key`, which must be from 0 to 1; 0 without it.
  double Share(std::string_view key) {
    if (!May(key)) return 0;
    const toml::node& node = *Take(key);
    const std::optional<double> number =
        node.is_number() ? node.value<double>() : std::optional<double>();
    if (!number || !(*number >= 0 && *number <= 1))
      Fail(node, key, "expected a number from 0 to 1");
    return *number;
  }

  // Puts the numbers of all keys into `efficiencies`, under `prefix` + key.
  void ReadEfficiencies(const std::string& prefix, std::map<std::string, double>& efficiencies) {
    for (const auto& [key, node] : table_) {
      const std::string_view name = key.str();
      efficiencies.emplace(prefix + std::string(name), Efficiency(name));
    }
  }

  void ExpectNothingElse() const {
    for (const auto& [key, node] : table_) {
      const std::string_view name = key.str();
      if (std::find(taken_.begin(), taken_.end(), name) == taken_.end()) {
        Fail(node, "", UnknownName("key", name, taken_));
      }
    }
    if (!missing_.empty()) Fail(table_, "", fmt::format("the key '{}' is missing", missing_));
  }

  [[noreturn]] void Fail(const toml::node& node, std::string_view key,
                         std::string_view what) const {
    std::string element = name_;
    if (!key.empty()) element += fmt::format("{}{}", element.empty() ? "" : ".", key);
    throw InputError(fmt::format("{}:{}:{}: {}{}{}", origin_, node.source().begin.line,
                                 node.source().begin.column, element, element.empty() ? "" : ": ",
                                 what));
  }

  const toml::node& Node(std::string_view key) const { return *table_.get(key); }

 private:
  // Returns the key's node, or null if it is missing. The error waits until all keys have been
  // taken: the key may have been misspelled, and an unknown key is the better message.
  const toml::node* Take(std::string_view key) {
    taken_.emplace_back(key);
    const toml::node* node = table_.get(key);
    if (node == nullptr && missing_.empty()) missing_ = key;
    return node;
  }

  const toml::table& table_;
  std::string name_;  // empty for the root
  std::string origin_;
  std::vector<std::string> taken_;
  std::string missing_;  // the first key that was taken but is missing
};

Link ReadLink(Section& section, std::string_view direction) {
  return {section.Rate(direction), section.Time(fmt::format("{}_latency", direction))};
}

CostLaw ReadLaw(Section& section, std::string_view call) {
  return {section.Time(fmt::format("{}_fixed", call)),
          section.Time(fmt::format("{}_per_mib", call))};
}

// Returns the law of an optional call; `other` if the file does not have it.
CostLaw ReadLaw(Section& section, std::string_view call, const CostLaw& other) {
  const bool given =
      section.Has(fmt::format("{}_fixed", call)) || section.Has(fmt::format("{}_per_mib", call));
  return given ? ReadLaw(section, call) : other;
}

void ReadPools(Section& pools, Device& device) {
  using Kind = ExternalPool::Kind;
  for (const Kind kind : {Kind::kPeer, Kind::kRemote, Kind::kNvme}) {
    if (!pools.May(Name(kind))) continue;
    Section section = pools.Subsection(Name(kind));
    ExternalPool pool;
    pool.kind = kind;
    pool.in = ReadLink(section, "in");
    pool.out = ReadLink(section, "out");
    pool.duplex = section.Rate("duplex");
    const bool sized = section.Has("size");
    if (sized) pool.size = section.Size("size");
    pool.over_host = kind != Kind::kPeer;
    if (section.Has("over")) {
      const std::string over = section.String("over");
      if (over != "host" && over != "own") {
        section.Fail(section.Node("over"), "over",
                     fmt::format("unknown link '{}' (valid: host, own)", over));
      }
      pool.over_host = over == "host";
    }
    section.ExpectNothingElse();
    if (!sized) {
      device.known_pools.push_back(pool);
      continue;
    }
    if (device.pools.size() + 1 == kMaxPools) {
      pools.Fail(pools.Node(Name(kind)), Name(kind),
                 fmt::format("a device has at most {} pools besides the host's", kMaxPools - 1));
    }
    device.pools.push_back(pool);
  }
  pools.ExpectNothingElse();
}

// Limits the number of dots, because the parser recurses into dotted keys like "a.b.c" without a
// limit.
void CheckDepth(std::string_view text, const std::string& origin) {
  size_t dots = 0;
  size_t line = 1;
  size_t column = 1;
  for (const char c : text) {
    if (c == '.' && ++dots > kMaxDots) {
      throw InputError(fmt::format(
          "{}:{}:{}: the file has more than the {} dots that are allowed for nested keys", origin,
          line, column, kMaxDots));
    }
    ++column;
    if (c == '\n') {
      ++line;
      column = 1;
    }
  }
}

// Throws `InputError` with the place of the error if the text is not TOML.
toml::table ParseToml(std::string_view contents, const std::string& origin) {
  const std::string_view text = PlainText(contents, origin);
  CheckDepth(text, origin);
  try {
    return toml::parse(text, origin);
  } catch (const toml::parse_error& error) {
    const toml::source_position at = error.source().begin;
    throw InputError(fmt::format("{}:{}:{}: {}", origin, at.line, at.column, error.description()));
  }
}

void ReadIdentity(Section& top, Device& device) {
  device.description = top.String("description");
  device.library = top.String("library");
  device.gpus = top.Strings("gpus");
  if (top.Has("compute_capability")) {
    device.compute_capability = top.String("compute_capability");
    if (!ParseCapability(device.compute_capability)) {
      top.Fail(top.Node("compute_capability"), "compute_capability",
               fmt::format("'{}' is not of the form \"9.0\"", device.compute_capability));
    }
  }
}

void ReadMemory(Section& memory, Device& device) {
  device.memory = memory.Size("size");
  device.alignment = memory.Size("alignment");
  if ((device.alignment.count() & (device.alignment.count() - 1)) != 0) {
    memory.Fail(memory.Node("alignment"), "alignment",
                fmt::format("{} bytes are not a power of two", device.alignment.count()));
  }
  device.host_memory = memory.Size("host");
}

void ReadCompute(Section& compute, Device& device) {
  device.flops_per_second = compute.Get<int64_t>("flops", ParseFlopRate, 1, "1 FLOP/s");
  device.dram = compute.Rate("dram");
  for (const Arithmetic arithmetic :
       {Arithmetic::kTf32, Arithmetic::kBf16, Arithmetic::kFp16, Arithmetic::kFp8}) {
    if (!compute.May(Name(arithmetic))) continue;
    device.matrix_flops_per_second[arithmetic] =
        compute.Get<int64_t>(Name(arithmetic), ParseFlopRate, 1, "1 FLOP/s");
  }
}

void ReadHost(Section& host, Device& device) {
  device.launch_overhead = host.Time("launch_overhead");
  if (host.Has("library_call")) device.library_call = host.Time("library_call");
  if (host.Has("compress")) device.codec.compress = host.Rate("compress");
  if (host.Has("decompress")) device.codec.decompress = host.Rate("decompress");
  if (host.Has("update")) device.host_update = host.Rate("update");
  if (host.Has("launch_ahead")) device.launch_ahead = host.Count("launch_ahead", 1024);
  if (host.Has("codec_threads")) device.codec.threads = host.Count("codec_threads", 1024);
}

void ReadDriver(Section& driver, Device& device) {
  device.device_malloc = ReadLaw(driver, "malloc");
  device.device_free = ReadLaw(driver, "free");
  device.host_malloc = ReadLaw(driver, "pinned");
  device.page_map = ReadLaw(driver, "map", device.device_malloc);
  device.page_map_new = ReadLaw(driver, "map_new", device.page_map);
  device.page_unmap = ReadLaw(driver, "unmap", device.device_free);
  // Read after the page laws, which copy the malloc and free laws but have no `small`.
  if (driver.Has("malloc_small")) device.device_malloc.small = driver.Time("malloc_small");
  if (driver.Has("free_small")) device.device_free.small = driver.Time("free_small");
}

void ReadEfficiency(Section& efficiency, Device& device) {
  device.efficiency["default"] = efficiency.Efficiency("default");
  for (const char* key : {"linear.fwd", "linear.bwd"}) {
    if (efficiency.Has(key)) device.efficiency[key] = efficiency.Efficiency(key);
  }
  // The values of kernels that the file leaves out are those of "linear.fwd".
  for (const auto& [name, keys] : kSequences) {
    if (!efficiency.May(name)) continue;
    Section table = efficiency.Subsection(name);
    for (const std::string_view key : keys) {
      if (key.empty() || !table.May(key)) continue;
      device.efficiency[fmt::format("{}.{}", name, key)] = table.Efficiency(key);
    }
    table.ExpectNothingElse();
  }
  for (const char* slot : {"fwd", "bwd_data", "bwd_filter"}) {
    Section algorithms = efficiency.Subsection(slot);
    algorithms.ReadEfficiencies(std::string(slot) + ".", device.efficiency);
  }
}

}  // namespace

std::string_view Name(ExternalPool::Kind kind) {
  constexpr std::array<std::string_view, 3> kNames{"peer", "remote", "nvme"};
  return kNames[static_cast<size_t>(kind)];
}

int64_t MatrixRate(const Device& device, Arithmetic arithmetic) {
  const auto found = device.matrix_flops_per_second.find(arithmetic);
  return found == device.matrix_flops_per_second.end() ? device.flops_per_second : found->second;
}

BesideKind BesideKindOf(OpType type, Arithmetic arithmetic) {
  if (arithmetic == Arithmetic::kFp32 || arithmetic == Arithmetic::kTf32) return BesideKind::kOther;
  switch (type) {
    case OpType::kConv2d:
    case OpType::kConvolution:
      return BesideKind::kConvolutions;
    case OpType::kAttention:
      return BesideKind::kAttention;
    case OpType::kLinear:
    case OpType::kMatmul:
    case OpType::kAttentionScores:
    case OpType::kAttentionValues:
      return BesideKind::kProducts;
    default:
      return BesideKind::kOther;
  }
}

std::vector<PoolId> PoolsBySpeed(const Device& device) {
  std::vector<PoolId> pools{PoolId::kHost};
  for (size_t i = 0; i < device.pools.size(); ++i) {
    pools.push_back(OutsidePool(i + 1));
  }
  std::stable_sort(pools.begin(), pools.end(), [&](PoolId a, PoolId b) {
    return LinkOf(device, a, Direction::kToHost).bandwidth >
           LinkOf(device, b, Direction::kToHost).bandwidth;
  });
  return pools;
}

const Link& LinkOf(const Device& device, PoolId pool, Direction direction) {
  const bool in = direction == Direction::kToDevice;
  if (pool == PoolId::kHost) return in ? device.h2d : device.d2h;
  const ExternalPool& other = device.pools.at(NumberOf(pool) - 1);
  return in ? other.in : other.out;
}

Bandwidth DuplexOf(const Device& device, PoolId pool) {
  return pool == PoolId::kHost ? device.duplex : device.pools.at(NumberOf(pool) - 1).duplex;
}

Bytes SizeOf(const Device& device, PoolId pool) {
  return pool == PoolId::kHost ? device.host_memory : device.pools.at(NumberOf(pool) - 1).size;
}

std::string_view NameOf(const Device& device, PoolId pool) {
  return pool == PoolId::kHost ? "host" : Name(device.pools.at(NumberOf(pool) - 1).kind);
}

Duration CopyTimeOf(const CostModel& cost, const Device& device, PoolId pool, Direction direction,
                    Bytes size) {
  if (pool == PoolId::kHost) return cost.CopyTime(direction, size);
  const Link& link = LinkOf(device, pool, direction);
  return link.latency + TransferTime(size, link.bandwidth);
}

std::optional<int> ParseCapability(std::string_view text) {
  int major = 0;
  int minor = 0;
  const char* end = text.data() + text.size();
  const auto dot = std::from_chars(text.data(), end, major);
  if (dot.ec != std::errc() || dot.ptr == end || *dot.ptr != '.') return std::nullopt;
  const auto rest = std::from_chars(dot.ptr + 1, end, minor);
  if (rest.ec != std::errc() || rest.ptr != end) return std::nullopt;
  if (major < 0 || major > 999 || minor < 0 || minor > 9) return std::nullopt;
  return 10 * major + minor;
}

Device ReadDevice(const std::string& path) {
  return ParseDevice(ReadFile(path, kMaxDeviceFile), path);
}

Device ParseDevice(std::string_view contents, const std::string& origin) {
  const toml::table root = ParseToml(contents, origin);
  Device device;
  device.name = std::filesystem::path(origin).stem().string();
  Section top(root, "", origin);
  ReadIdentity(top, device);
  Section memory = top.Subsection("memory");
  ReadMemory(memory, device);
  Section compute = top.Subsection("compute");
  ReadCompute(compute, device);
  Section link = top.Subsection("link");
  device.h2d = ReadLink(link, "h2d");
  device.d2h = ReadLink(link, "d2h");
  device.duplex = link.Rate("duplex");
  if (top.Has("stream")) {
    Section stream = top.Subsection("stream");
    device.kernel_wait = stream.Time("kernel_wait");
  }
  if (top.May("beside_copy")) {
    Section beside = top.Subsection("beside_copy");
    for (size_t i = 0; i < kBesideKindNames.size(); ++i) {
      device.beside_copy[i] = beside.Share(kBesideKindNames[i]);
    }
    beside.ExpectNothingElse();
  }
  if (top.Has("pool")) {
    Section pools = top.Subsection("pool");
    ReadPools(pools, device);
  }
  if (top.May("cluster")) {
    Section section = top.Subsection("cluster");
    Cluster& cluster = device.cluster.emplace();
    cluster.gpus = section.Count("gpus", 1024);
    cluster.inside = ReadLink(section, "inside");
    cluster.outside = ReadLink(section, "outside");
    cluster.start = section.Time("start");
    cluster.beside = section.Share("beside");
    section.ExpectNothingElse();
  }
  Section host = top.Subsection("host");
  ReadHost(host, device);
  Section driver = top.Subsection("driver");
  ReadDriver(driver, device);
  Section efficiency = top.Subsection("efficiency");
  ReadEfficiency(efficiency, device);
  for (const Section* section : {&top, &memory, &compute, &link, &host, &driver, &efficiency}) {
    section->ExpectNothingElse();
  }
  return device;
}

}  // namespace spillway::sim
