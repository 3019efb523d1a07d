#include "experiments/run/case.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <utility>

#include "traces/base/error.h"
#include "traces/zoo/zoo.h"

namespace spillway {
namespace {

using Kind = CaseKey::Kind;

constexpr std::pair<const char*, HostTimes> kHostTimes[] = {
    {"plain", {}}, {"recorded", {HostTimes::Kind::kRecorded}}, {"none", {HostTimes::Kind::kNone}}};

bool ReadFlag(const std::string& text) { return text == "true"; }
std::string WriteFlag(bool value) { return value ? "true" : ""; }

void SetMode(Case& asked, const std::string& text) {
  if (text != "training" && text != "inference") {
    throw UsageError(UnknownName("mode", text, {"training", "inference"}));
  }
  asked.training = text == "training";
}

constexpr std::array<std::string_view, 2> kAttentionNames{"fused", "math"};
constexpr std::array<std::string_view, 3> kOptimizerNames{Name(OpType::kSgd), Name(OpType::kAdam),
                                                          Name(OpType::kAdamW)};

// Returns the index of the text in `names`. Throws `UsageError` if it is not among them.
template <size_t kCount>
size_t IndexIn(const std::array<std::string_view, kCount>& names, const char* key,
               const std::string& text) {
  const auto* const found = std::ranges::find(names, text);
  if (found != names.end()) return static_cast<size_t>(found - names.begin());
  throw UsageError(UnknownName(key, text, {names.begin(), names.end()}));
}

void SetAttention(Case& asked, const std::string& text) {
  asked.attention = static_cast<AttentionKind>(IndexIn(kAttentionNames, "attention", text));
}
void SetOptimizer(Case& asked, const std::string& text) {
  static_cast<void>(IndexIn(kOptimizerNames, "optimizer", text));
  asked.optimizer = ParseOpType(text);
}
void SetPrecision(Case& asked, const std::string& text) {
  asked.precision = static_cast<Precision>(IndexIn(kPrecisionNames, "precision", text));
}

// Returns the number of micro-batches or chunks. Throws `UsageError` if the text is not a whole
// number from 1 on.
int64_t ReadCount(const char* key, const std::string& text) {
  int64_t count = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), count);
  if (error != std::errc() || end != text.data() + text.size() || count < 1 ||
      count > kLargestBatch) {
    throw UsageError(
        fmt::format("{}: '{}' is not a whole number from 1 to {}", key, text, kLargestBatch));
  }
  return count;
}

double ReadNorm(const std::string& text) {
  double norm = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), norm);
  if (error != std::errc() || end != text.data() + text.size() || !std::isfinite(norm) ||
      norm <= 0) {
    throw UsageError(fmt::format("clip-norm: '{}' is not a positive number", text));
  }
  return norm;
}

void SetHost(Case& asked, const std::string& text) {
  std::vector<std::string> names;
  for (const auto& [name, host] : kHostTimes) {
    names.emplace_back(name);
    if (text == name) asked.host = host;
  }
  if (std::ranges::count(names, text) != 0) return;
  try {
    asked.host = {HostTimes::Kind::kPlain, ParseDuration(text)};
  } catch (const InputError&) {
    throw UsageError(UnknownName("host", text, names) + ", or a time for each operator (5us)");
  }
}

void SetTimeout(Case& asked, const std::string& text) {
  try {
    asked.timeout = ParseDuration(text);
  } catch (const InputError& error) {
    throw UsageError(fmt::format("timeout: {}", error.what()));
  }
  if (asked.timeout <= Duration()) throw UsageError("timeout: the time is more than 0s");
}

std::string HostOf(const Case& asked) {
  const auto* const named =
      std::ranges::find(kHostTimes, asked.host, &std::pair<const char*, HostTimes>::second);
  if (named != std::end(kHostTimes)) return named->first;
  std::string text = FormatDuration(asked.host.per_operator);
  std::erase(text, ' ');
  return text;
}

constexpr CaseKey kKeys[] = {
    {"workload", "workload", Kind::kText, "", nullptr,
     "NETWORK:BATCH (vgg16:256) or a trace file (.json, .json.zst)",
     [](Case& c, const std::string& text) { c.workload = text; },
     [](const Case& c) { return c.workload; }},
    {"preset", "preset", Kind::kText, "torch", nullptr,
     "Memory accounting of the lowering; see spillway list presets",
     [](Case& c, const std::string& text) { c.preset = text; },
     [](const Case& c) { return c.preset.value_or(""); }},
    {"mode", "mode", Kind::kText, "training", "training|inference",
     "Kind of iteration: training or inference", SetMode,
     [](const Case& c) {
       return std::string(!c.training ? "" : *c.training ? "training" : "inference");
     }},
    {"attention", "attention", Kind::kText, "", "fused|math",
     "Attention of transformers: fused (the default) is one op that keeps no scores; math is a "
     "product, a softmax and a product, whose scores are tensors",
     SetAttention,
     [](const Case& c) {
       return std::string(c.attention ? kAttentionNames[static_cast<size_t>(*c.attention)] : "");
     }},
    {"optimizer", "optimizer", Kind::kText, "", "sgd|adam|adamw",
     "Update rule: sgd (with momentum, the default), adam or adamw", SetOptimizer,
     [](const Case& c) { return std::string(c.optimizer ? Name(*c.optimizer) : ""); }},
    {"precision", "precision", Kind::kText, "", "fp32|tf32|bf16",
     "Arithmetic of matrix products: fp32 (the default), tf32 (not on the CPU), or bf16, which "
     "halves all tensors but those of normalisations, softmax and loss; Adam then keeps fp32 "
     "weights, too",
     SetPrecision,
     [](const Case& c) {
       return std::string(c.precision ? kPrecisionNames[static_cast<size_t>(*c.precision)] : "");
     }},
    {"accumulate", "accumulate", Kind::kText, "", nullptr,
     "Number of micro-batches whose gradients are added before one update; each has the BATCH of "
     "the workload, so that an iteration has this many times its samples",
     [](Case& c, const std::string& text) { c.accumulate = ReadCount("accumulate", text); },
     [](const Case& c) { return c.accumulate ? fmt::format("{}", *c.accumulate) : ""; }},
    {"clip-norm", "clip_norm", Kind::kText, "", nullptr,
     "Scale all gradients before the update so that their norm is at most this number",
     [](Case& c, const std::string& text) { c.clip_norm = ReadNorm(text); },
     [](const Case& c) { return c.clip_norm ? fmt::format("{}", *c.clip_norm) : ""; }},
    {"loss-chunks", "loss_chunks", Kind::kText, "", nullptr,
     "Number of parts of a batch's tokens for which language models compute logits, loss and their "
     "gradients one after the other",
     [](Case& c, const std::string& text) { c.loss_chunks = ReadCount("loss-chunks", text); },
     [](const Case& c) { return c.loss_chunks ? fmt::format("{}", *c.loss_chunks) : ""; }},
    {"host", nullptr, Kind::kText, "plain", nullptr,
     "Host time before each launch of a recorded trace: plain (without the profiler, at most 7us "
     "for each operator), a time in place of these 7us (5us), recorded (with the profiler), or "
     "none",
     SetHost, HostOf},
    {"device", "device", Kind::kText, "h200", nullptr,
     "A device name or a device file (.toml), then :key=value,... for changes (h200:link=2 has a "
     "link twice as fast); or help",
     [](Case& c, const std::string& text) { c.device = text; },
     [](const Case& c) { return c.device; }},
    {"pool", nullptr, Kind::kTexts, "", nullptr,
     "Memory outside the device: peer (another GPU), remote, nvme or host, then :size=SIZE and the "
     "properties of its link that the device file lacks (in=RATE,out=RATE,...); repeat for more; "
     "or help",
     [](Case& c, const std::string& text) { c.pools.push_back(text); },
     [](const Case& c) { return fmt::format("{}", fmt::join(c.pools, " ")); }, "no pool is given"},
    {"cost", "cost", Kind::kText, "auto", nullptr,
     "Kernel times: auto (a recorded table if it has all kernels, else interpolation between "
     "recorded batches, else roofline; for a step that was recorded without a GPU, a table of "
     "operators), roofline, or the file of a cost table or of a table of operators",
     [](Case& c, const std::string& text) { c.cost = text; },
     [](const Case& c) { return c.cost.text(); }},
    {"allocator", "allocator", Kind::kText, "best-fit", nullptr, "Device allocator, or help",
     [](Case& c, const std::string& text) { c.allocator = text; },
     [](const Case& c) { return c.allocator.name(); }},
    {"compress", nullptr, Kind::kText, "", nullptr,
     "Keep offloaded feature maps compressed on the host: all, or hidden (where it costs no time), "
     "then :key=value,...; or help",
     [](Case& c, const std::string& text) { c.compress = ParseCompression(text); },
     [](const Case& c) { return c.compress ? c.compress->text : std::string(); }},
    {"backend", "backend", Kind::kText, kSimulator, "sim|cpu|cuda",
     "sim predicts; cpu and cuda execute on real bytes, with synthetic data",
     [](Case& c, const std::string& text) { c.backend = text; },
     [](const Case& c) { return c.backend; }},
    {"memory", "memory_request", Kind::kText, "", nullptr,
     "Device memory: a size (12GiB), unlimited, N% (0% is the least that any layer-wise policy "
     "needs, 100% the in-core peak), or a built-in policy (vdnn-conv) for the memory that it "
     "needs; default: all of the device's, or in a single run of a static vdnnpp the memory that "
     "vDNN needs",
     [](Case& c, const std::string& text) { c.memory = text; },
     [](const Case& c) { return c.memory ? c.memory->text() : std::string(); },
     "no size is given; leave --memory out to use all memory of the device"},
    {"deterministic", nullptr, Kind::kFlag, "", nullptr,
     "Use only kernels that give the same bits on every run",
     [](Case& c, const std::string& text) { c.deterministic = ReadFlag(text); },
     [](const Case& c) { return WriteFlag(c.deterministic); }},
    {"charge-input", nullptr, Kind::kFlag, "", nullptr,
     "Copy the inputs to the device in each iteration",
     [](Case& c, const std::string& text) { c.charge_input = ReadFlag(text); },
     [](const Case& c) { return WriteFlag(c.charge_input); }},
    {"check", nullptr, Kind::kFlag, "", nullptr, "Verify every report with the independent checker",
     [](Case& c, const std::string& text) { c.check = ReadFlag(text); },
     [](const Case& c) { return WriteFlag(c.check); }},
    {"timeout", nullptr, Kind::kText, "600s", nullptr,
     "Longest time of one run of a plugin's policy, which has a process of its own", SetTimeout,
     [](const Case& c) {
       return c.policy.spec().plugin.empty() ? std::string()
                                             : fmt::format("{}s", c.timeout.seconds());
     },
     "no time is given", false},
    {"in-process", nullptr, Kind::kFlag, "", nullptr,
     "Run the policies of plugins in this process, for a debugger; then a crash ends it",
     [](Case& c, const std::string& text) { c.in_process = ReadFlag(text); },
     [](const Case&) { return std::string(); }, "", false},
    {"policy", "policy", Kind::kText, "liveness", nullptr,
     "NAME or PLUGIN.so:NAME, then :key=value,...; or help",
     [](Case& c, const std::string& text) { c.policy = text; },
     [](const Case& c) { return c.policy.name(); }},
};

}  // namespace

std::span<const CaseKey> CaseKeys() { return kKeys; }

const CaseKey& CaseKeyOf(std::string_view name) {
  const auto found = std::ranges::find(kKeys, name, &CaseKey::name);
  SPILLWAY_CHECK(found != std::end(kKeys));
  return *found;
}

std::vector<std::string> ArgumentsOf(const Case& asked) {
  return ArgumentsOf(asked, {asked.policy.name()});
}

std::vector<std::string> ArgumentsOf(const Case& asked, const std::vector<std::string>& policies) {
  std::vector<std::string> arguments{asked.workload};
  const auto add = [&](const CaseKey& key, const std::string& value) {
    arguments.push_back(fmt::format("--{}", key.name));
    if (key.kind != Kind::kFlag) arguments.push_back(value);
  };
  for (const CaseKey& key : kKeys) {
    const std::string_view name = key.name;
    const std::string value = key.get(asked);
    if (key.kind == Kind::kTexts) {
      for (const std::string& pool : asked.pools) add(key, pool);
    } else if (name != "workload" && name != "policy" && !value.empty() && value != key.initial) {
      add(key, value);
    }
  }
  for (const std::string& policy : policies) add(CaseKeyOf("policy"), policy);
  return arguments;
}

std::string CommandOf(const Case& asked) { return CommandOf(asked, {asked.policy.name()}); }

std::string CommandOf(const Case& asked, const std::vector<std::string>& policies) {
  std::string command;
  for (const std::string& argument : ArgumentsOf(asked, policies)) {
    command += (command.empty() ? "" : " ") + Quoted(argument);
  }
  return command;
}

std::string Quoted(const std::string& text) {
  constexpr std::string_view kPlain =
      "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_@%+=:,./-";
  if (!text.empty() && text.find_first_not_of(kPlain) == std::string::npos) return text;
  std::string quoted = "'";
  for (const char c : text) quoted += c == '\'' ? "'\\''" : std::string(1, c);
  return quoted + "'";
}

bool IsTraceFile(std::string_view workload) {
  return workload.ends_with(".json") || workload.ends_with(".zst");
}

}  // namespace spillway
