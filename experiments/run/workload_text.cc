#include "experiments/run/workload_text.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <filesystem>
#include <iterator>
#include <set>
#include <utility>

#include "experiments/run/pattern.h"
#include "traces/base/error.h"
#include "traces/base/params.h"
#include "traces/zoo/zoo.h"

namespace spillway::lab {
namespace {

constexpr std::pair<const char*, HostTimes> kHostTimes[] = {
    {"plain", {}}, {"recorded", {HostTimes::Kind::kRecorded}}, {"none", {HostTimes::Kind::kNone}}};
constexpr std::array<std::string_view, 2> kAttentionNames{"fused", "math"};
// By value of the changes of a step; the first value is no change.
constexpr std::array<std::string_view, 3> kNumbersNames{"", "bf16", "autocast"};
constexpr std::array<std::string_view, 5> kUpdateNames{"", "8bit", "offloaded", "parts", "early"};

// Returns the value whose name is the text. REQUIRES: the text is among the names.
template <typename Enum, size_t kCount>
Enum ValueOf(const std::array<std::string_view, kCount>& names, const std::string& text) {
  return static_cast<Enum>(std::ranges::find(names, text) - names.begin());
}
template <typename Enum, size_t kCount>
std::string NameOf(const std::array<std::string_view, kCount>& names, Enum value) {
  return std::string(names[static_cast<size_t>(value)]);
}

// Returns a number of samples, micro-batches or chunks.
int64_t ReadCount(const char* option, const std::string& text) {
  int64_t count = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), count);
  if (error != std::errc() || end != text.data() + text.size() || count < 1 ||
      count > kLargestBatch) {
    throw UsageError(
        fmt::format("{}: '{}' is not a whole number from 1 to {}", option, text, kLargestBatch));
  }
  return count;
}
std::string CountText(std::optional<int64_t> count) {
  return count ? fmt::format("{}", *count) : std::string();
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

void SetOptimizer(Case& asked, const std::string& text) {
  if (IsTraceFile(asked.workload)) {
    asked.changes.update = ValueOf<StepChanges::Update>(kUpdateNames, text);
  } else {
    asked.optimizer = ParseOpType(text);
  }
}
void SetPrecision(Case& asked, const std::string& text) {
  if (IsTraceFile(asked.workload)) {
    asked.changes.numbers = ValueOf<StepChanges::Numbers>(kNumbersNames, text);
  } else {
    asked.precision = ValueOf<Precision>(kPrecisionNames, text);
  }
}
void SetAccumulate(Case& asked, const std::string& text) {
  const int64_t count = ReadCount("accumulate", text);
  (IsTraceFile(asked.workload) ? asked.changes.passes : asked.accumulate) = count;
}
void SetLossChunks(Case& asked, const std::string& text) {
  const int64_t count = ReadCount("loss-chunks", text);
  (IsTraceFile(asked.workload) ? asked.changes.loss_chunks : asked.loss_chunks) = count;
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
std::string HostText(const Case& asked) {
  const auto* const named =
      std::ranges::find(kHostTimes, asked.host, &std::pair<const char*, HostTimes>::second);
  if (named != std::end(kHostTimes)) return named->first;
  std::string text = FormatDuration(asked.host.per_operator);
  std::erase(text, ' ');
  return text;
}

constexpr WorkloadOption kOptions[] = {
    {"batch", "", nullptr, "", "Another number of samples than the file's",
     [](Case& c, const std::string& text) { c.changes.batch = ReadCount("batch", text); },
     [](const Case& c) { return CountText(c.changes.batch); }},
    {"preset", "torch", "", "", "Memory accounting of the lowering; see spillway list presets",
     [](Case& c, const std::string& text) { c.preset = text; },
     [](const Case& c) { return c.preset.value_or(""); }},
    {"mode", "training", "training|inference", "training|inference", "Kind of iteration",
     [](Case& c, const std::string& text) { c.training = text == "training"; },
     [](const Case& c) {
       return std::string(!c.training ? "" : *c.training ? "training" : "inference");
     }},
    {"attention", "", "fused|math", nullptr,
     "Attention of transformers: fused (the default) is one op that keeps no scores; math is a "
     "product, a softmax and a product, whose scores are tensors",
     [](Case& c, const std::string& text) {
       c.attention = ValueOf<AttentionKind>(kAttentionNames, text);
     },
     [](const Case& c) {
       return c.attention ? NameOf(kAttentionNames, *c.attention) : std::string();
     }},
    {"optimizer", "", "sgd|adam|adamw", "8bit|offloaded|parts|early",
     "Update rule: sgd (with momentum, the default), adam or adamw; of a recorded step like "
     "Adam's, 8bit keeps the moments in 8 bits, offloaded keeps them and updates on the host, "
     "parts updates part by part, so that a policy can have the moments of the others on the "
     "host, and early does so while backward runs",
     SetOptimizer,
     [](const Case& c) {
       return c.optimizer ? std::string(Name(*c.optimizer))
                          : NameOf(kUpdateNames, c.changes.update);
     }},
    {"precision", "", "fp32|tf32|bf16", "bf16|autocast",
     "Arithmetic of matrix products: fp32 (the default), tf32 (not on the CPU), or bf16, which "
     "halves all tensors but those of normalisations, softmax and loss; Adam then keeps fp32 "
     "weights, too. Of a recorded step in fp32, bf16 converts the model, and autocast runs its "
     "forward under autocast to bf16",
     SetPrecision,
     [](const Case& c) {
       return c.precision ? NameOf(kPrecisionNames, *c.precision)
                          : NameOf(kNumbersNames, c.changes.numbers);
     }},
    {"accumulate", "", "", "",
     "Number of micro-batches whose gradients are added before one update; each has the batch of "
     "the workload, so that an iteration has this many times its samples",
     SetAccumulate,
     [](const Case& c) { return CountText(c.accumulate ? c.accumulate : c.changes.passes); }},
    {"clip-norm", "", "", nullptr,
     "Scale all gradients before the update so that their norm is at most this number",
     [](Case& c, const std::string& text) { c.clip_norm = ReadNorm(text); },
     [](const Case& c) { return c.clip_norm ? fmt::format("{}", *c.clip_norm) : ""; }},
    {"loss-chunks", "", "", "",
     "Number of parts of a batch's tokens for which language models compute logits, loss and their "
     "gradients one after the other",
     SetLossChunks,
     [](const Case& c) {
       return CountText(c.loss_chunks ? c.loss_chunks : c.changes.loss_chunks);
     }},
    {"world", "", nullptr, "",
     "Number of processes of which the recorded one is to be one: the groups that reach from the "
     "first to the last process grow, and shards of parameters, gradients and state get smaller",
     [](Case& c, const std::string& text) { c.changes.world = ReadCount("world", text); },
     [](const Case& c) { return CountText(c.changes.world); }},
    {"nodes", "", nullptr, "",
     "The same, as a number of hosts, each with the GPUs that the device's file says",
     [](Case& c, const std::string& text) { c.changes.nodes = ReadCount("nodes", text); },
     [](const Case& c) { return CountText(c.changes.nodes); }},
    {"shards", "", nullptr, "",
     "Number of processes among which the parameters are to be shared out, with fewer replicas of "
     "them among as many processes as were recorded",
     [](Case& c, const std::string& text) { c.changes.shards = ReadCount("shards", text); },
     [](const Case& c) { return CountText(c.changes.shards); }},
    {"reshard", "", nullptr, "forward",
     "forward frees the parameters that FSDP2 gathered behind each module's forward, but not those "
     "of the root, and gathers them again in backward, as reshard_after_forward=True does",
     [](Case& c, const std::string&) { c.changes.reshard = true; },
     [](const Case& c) { return std::string(c.changes.reshard ? "forward" : ""); }},
    {"reduce", "", nullptr, "bf16",
     "bf16 reduces the gradients of parameters in bf16 as they are, where FSDP2 did in fp32, as "
     "reduce_dtype=torch.bfloat16 does",
     [](Case& c, const std::string&) { c.changes.short_reduction = true; },
     [](const Case& c) { return std::string(c.changes.short_reduction ? "bf16" : ""); }},
    {"host", "plain", nullptr, "",
     "Host time before each launch of a recorded trace: plain (without the profiler, at most 7us "
     "for each operator), a time in place of these 7us (5us), recorded (with the profiler), or "
     "none. Where no time was recorded, run and fit give the range of those that were measured",
     SetHost, HostText},
};

// Returns the position of the comma or colon before the first option; the size of the text if it
// has none. The name of a trace file may contain all of these characters.
size_t EndOfName(const std::string& text) {
  std::error_code ignored;
  if (IsTraceFile(text) && std::filesystem::exists(text, ignored)) return text.size();
  for (size_t at = 0; at <= text.size(); ++at) {
    const bool ends = at == text.size() || text[at] == ',' || text[at] == ':';
    if (ends && IsTraceFile(text.substr(0, at))) return at;
  }
  int depth = 0;  // the number of open brackets, in which networks have parameters
  for (size_t at = 0; at < text.size(); ++at) {
    if (text[at] == '(') ++depth;
    if (text[at] == ')') --depth;
    const bool ends = depth == 0 && (text[at] == ',' || text[at] == ':');
    if (ends && IsParameter(std::string_view(text).substr(at + 1))) return at;
  }
  return text.size();
}

// Sets one option from a text such as "optimizer=adamw".
void SetOption(Case& asked, std::string_view item, std::set<std::string>& given) {
  const size_t equals = item.find('=');
  if (equals == item.npos) {
    throw UsageError(fmt::format("'{}' is not option=value", item));
  }
  const std::string name(item.substr(0, equals)), value(item.substr(equals + 1));
  const bool is_file = IsTraceFile(asked.workload);
  const auto values_of = [&](const WorkloadOption& option) {
    return is_file ? option.file : option.network;
  };
  std::vector<std::string> names;  // that are valid
  for (const WorkloadOption& option : kOptions) {
    if (values_of(option) != nullptr) names.emplace_back(option.name);
  }
  const auto* const option = std::ranges::find(kOptions, name, &WorkloadOption::name);
  if (option == std::end(kOptions)) throw UsageError(UnknownName("option", name, names));
  if (values_of(*option) == nullptr) {
    throw UsageError(fmt::format(
        "{}: the option is for {} (valid: {})", name,
        is_file ? "networks that spillway builds" : "trace files; a network has NETWORK:BATCH",
        fmt::join(names, ", ")));
  }
  if (!given.insert(name).second) throw UsageError(fmt::format("{} is given twice", name));
  if (value.empty()) throw UsageError(fmt::format("{}: no value is given", name));
  const std::vector<std::string> values = Alternatives(values_of(*option));
  if (!values.empty() && std::ranges::count(values, value) == 0) {
    throw UsageError(UnknownName(name, value, values));
  }
  option->set(asked, value);
}

}  // namespace

std::span<const WorkloadOption> WorkloadOptions() { return kOptions; }

const WorkloadOption& WorkloadOptionOf(std::string_view name) {
  const auto* const found = std::ranges::find(kOptions, name, &WorkloadOption::name);
  SPILLWAY_CHECK(found != std::end(kOptions));
  return *found;
}

void SetWorkload(Case& asked, const std::string& text) {
  const size_t end = EndOfName(text);
  asked.workload = text.substr(0, end);
  std::set<std::string> given;
  for (size_t at = end; at < text.size();) {
    const std::string_view rest = std::string_view(text).substr(++at);
    const std::string_view item = rest.substr(0, FindComma(rest));
    WithContext([&] { SetOption(asked, item, given); },
                [&] { return fmt::format("workload '{}'", text); });
    at += item.size();
  }
}

Case WithWorkload(Case asked, const std::string& text) {
  SetWorkload(asked, text);
  return asked;
}

std::string WorkloadText(const Case& asked) {
  std::string text = asked.workload;
  for (const WorkloadOption& option : kOptions) {
    const std::string value = option.get(asked);
    if (!value.empty() && value != option.initial) {
      text += fmt::format(",{}={}", option.name, value);
    }
  }
  return text;
}

std::vector<std::string> Alternatives(std::string_view values) {
  std::vector<std::string> alternatives;
  while (!values.empty()) {
    const std::string_view one = values.substr(0, values.find('|'));
    alternatives.emplace_back(one);
    values.remove_prefix(std::min(values.size(), one.size() + 1));
  }
  return alternatives;
}

}  // namespace spillway::lab
