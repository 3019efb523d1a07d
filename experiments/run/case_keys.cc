#include "experiments/run/case_keys.h"

#include <fmt/format.h>

#include <algorithm>

#include "experiments/run/workload_text.h"
#include "traces/base/error.h"

namespace spillway::lab {
namespace {

using Kind = CaseKey::Kind;

bool ReadFlag(const std::string& text) { return text == "true"; }
std::string WriteFlag(bool value) { return value ? "true" : ""; }

void SetTimeout(Case& asked, const std::string& text) {
  try {
    asked.timeout = ParseDuration(text);
  } catch (const InputError& error) {
    throw UsageError(fmt::format("timeout: {}", error.what()));
  }
  if (asked.timeout <= Duration()) throw UsageError("timeout: the time is more than 0s");
}

constexpr CaseKey kKeys[] = {
    {"workload", Kind::kText, "", nullptr,
     "NETWORK:BATCH (vgg16:256) or a trace file (.json, .json.zst), then ,option=value,... "
     "(gpt2:8,precision=bf16); or help",
     SetWorkload, WorkloadText},
    {"device", Kind::kText, "h200", nullptr,
     "A device name or a device file (.toml), then :key=value,... for changes (h200:link=2 has a "
     "link twice as fast); or help",
     [](Case& c, const std::string& text) { c.device = text; },
     [](const Case& c) { return c.device; }},
    {"pool", Kind::kTexts, "", nullptr,
     "Memory outside the device: peer (another GPU), remote, nvme or host, then :size=SIZE and the "
     "properties of its link that the device file lacks (in=RATE,out=RATE,...); repeat for more; "
     "or help",
     [](Case& c, const std::string& text) { c.pools.push_back(text); },
     [](const Case& c) { return fmt::format("{}", fmt::join(c.pools, " ")); }, "no pool is given"},
    {"cost", Kind::kText, "auto", nullptr,
     "Kernel times: auto (a recorded table if it has all kernels, else interpolation between "
     "recorded batches, else roofline; for a step that was recorded without a GPU, a table of "
     "operators), roofline, or the file of a cost table or of a table of operators",
     [](Case& c, const std::string& text) { c.cost = text; },
     [](const Case& c) { return c.cost.text(); }},
    {"allocator", Kind::kText, "best-fit", nullptr, "Device allocator, or help",
     [](Case& c, const std::string& text) { c.allocator = text; },
     [](const Case& c) { return c.allocator.name(); }},
    {"compress", Kind::kText, "", nullptr,
     "Keep offloaded feature maps compressed on the host: all, or hidden (where it costs no time), "
     "then :key=value,...; or help",
     [](Case& c, const std::string& text) { c.compress = ParseCompression(text); },
     [](const Case& c) { return c.compress ? c.compress->text : std::string(); }},
    {"backend", Kind::kText, kSimulator, "sim|cpu|cuda",
     "sim predicts; cpu and cuda execute on real bytes, with synthetic data",
     [](Case& c, const std::string& text) { c.backend = text; },
     [](const Case& c) { return c.backend; }},
    {"memory", Kind::kText, "", nullptr,
     "Device memory: a size (12GiB), unlimited, N% (0% is the least that any layer-wise policy "
     "needs, 100% the in-core peak), or a built-in policy (vdnn-conv) for the memory that it "
     "needs; default: all of the device's, or in a single run of a static vdnnpp the memory that "
     "vDNN needs",
     [](Case& c, const std::string& text) { c.memory = text; },
     [](const Case& c) { return c.memory ? c.memory->text() : std::string(); },
     "no size is given; leave --memory out to use all memory of the device"},
    {"deterministic", Kind::kFlag, "", nullptr,
     "Use only kernels that give the same bits on every run",
     [](Case& c, const std::string& text) { c.deterministic = ReadFlag(text); },
     [](const Case& c) { return WriteFlag(c.deterministic); }},
    {"charge-input", Kind::kFlag, "", nullptr, "Copy the inputs to the device in each iteration",
     [](Case& c, const std::string& text) { c.charge_input = ReadFlag(text); },
     [](const Case& c) { return WriteFlag(c.charge_input); }},
    {"check", Kind::kFlag, "", nullptr, "Verify every report with the independent checker",
     [](Case& c, const std::string& text) { c.check = ReadFlag(text); },
     [](const Case& c) { return WriteFlag(c.check); }},
    {"timeout", Kind::kText, "600s", nullptr,
     "Longest time of one run of a plugin's policy, which has a process of its own", SetTimeout,
     [](const Case& c) {
       return c.policy.spec().plugin.empty() ? std::string()
                                             : fmt::format("{}s", c.timeout.seconds());
     },
     "no time is given", false},
    {"in-process", Kind::kFlag, "", nullptr,
     "Run the policies of plugins in this process, for a debugger; then a crash ends it",
     [](Case& c, const std::string& text) { c.in_process = ReadFlag(text); },
     [](const Case&) { return std::string(); }, "", false},
    {"policy", Kind::kText, "liveness", nullptr,
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
  std::vector<std::string> arguments{WorkloadText(asked)};
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

}  // namespace spillway::lab
