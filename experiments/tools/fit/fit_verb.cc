// The verb `spillway fit` tells for each device if a workload fits under PyTorch's allocator, and
// which changes make it fit.

#include "experiments/tools/fit/fit.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <memory>
#include <string>
#include <vector>

#include "experiments/cli/frame/arguments.h"
#include "experiments/cli/frame/case_options.h"
#include "experiments/cli/frame/format_option.h"
#include "experiments/cli/frame/policies_option.h"
#include "experiments/cli/frame/session.h"
#include "experiments/cli/frame/verbs.h"
#include "experiments/run/case_keys.h"
#include "experiments/run/data_files.h"
#include "experiments/run/device_specification.h"
#include "experiments/run/inputs.h"
#include "experiments/run/workload_text.h"
#include "experiments/tools/fit/largest.h"
#include "traces/base/error.h"

namespace spillway::cli {
namespace {

struct FitVerbOptions {
  std::vector<std::string> workloads;
  Case asked;
  std::vector<std::string> devices;
  std::string memory;
  std::string outside;
  std::string batch = "1x";
  std::vector<std::string> worlds, nodes;
  std::string vary;
  FormatOption format;
  PoliciesOption policies;
  std::string output;
};

// Returns the specifications of the devices, each with the memory that was asked for.
std::vector<std::string> DevicesOf(const FitVerbOptions& options) {
  if (options.memory.empty()) return options.devices.empty() ? DeviceNames() : options.devices;
  ParseSize("memory", options.memory);  // a bad size fails early
  std::vector<std::string> devices = options.devices;
  if (devices.empty()) devices.push_back(options.asked.device);
  for (std::string& device : devices) {
    device += fmt::format("{}memory={}", device == DeviceBase(device) ? ':' : ',', options.memory);
  }
  return devices;
}

// Returns the memory that is not the allocator's. A device has a context and libraries beside it; a
// memory that is given is the allocator's own.
std::string OutsideOf(const FitVerbOptions& options) {
  if (!options.outside.empty()) return options.outside;
  return fmt::format("{}B", options.memory.empty() ? kOutsideAllocator.count() : 0);
}

// Describes the cases, each with every policy that is tried.
void Describe(const FitVerbOptions& options, const std::vector<LoadedCase>& cases,
              const std::vector<std::string>& policies, Manifest& manifest) {
  std::vector<LoadedCase> all = cases;
  for (LoadedCase loaded : cases) {
    for (const std::string& policy : policies) {
      loaded.asked.policy = policy;
      all.push_back(loaded);
    }
  }
  DescribeCases(all, manifest);
  manifest.configuration.emplace_back("outside", OutsideOf(options));
  manifest.configuration.emplace_back("batch", options.batch);
  manifest.configuration.emplace_back("world", fmt::format("{}", fmt::join(options.worlds, ",")));
  manifest.configuration.emplace_back("nodes", fmt::format("{}", fmt::join(options.nodes, ",")));
  manifest.configuration.emplace_back("vary", options.vary);
}

// Returns the largest width of a table, 80 characters where no terminal says another; 0 if it has
// no limit.
size_t WidthOf(const FormatOption& format) {
  constexpr size_t kUsual = 80;
  if (format.wide) return 0;
  return format.width() > 0 ? format.width() : kUsual;
}

// Returns the batch that `text` asks for, a number ("8") or a factor ("0.5x"), for a workload of
// `batch`. Throws `UsageError` if the text is neither, or if the batch is not in [1,
// `kLargestValue`].
int64_t ParseBatch(const std::string& text, int64_t batch) {
  constexpr auto kMost = static_cast<double>(kLargestValue);
  const bool is_factor = text.ends_with('x');
  double number = 0;
  const char* const end = text.data() + text.size() - (is_factor ? 1 : 0);
  const auto [rest, error] = std::from_chars(text.data(), end, number);
  if (error != std::errc() || rest != end) {
    throw UsageError(fmt::format(
        "batch: '{}' is neither a number of samples (8) nor a factor (2x, 0.5x)", text));
  }
  const double wanted = is_factor ? number * static_cast<double>(batch) : number;
  if (!(wanted >= 1 && wanted <= kMost) || wanted != std::floor(wanted)) {
    throw UsageError(
        fmt::format("batch: '{}' makes {:g} samples of {}; expected a whole number from 1 to {}",
                    text, wanted, batch, kMost));
  }
  return static_cast<int64_t>(wanted);
}

// Makes the traces of the workloads, which have the batches that were given, those of the batch
// that `text` asks for.
void SetBatch(const std::string& text, std::vector<FitWorkload>& workloads) {
  std::vector<std::shared_ptr<const Trace>> given;
  for (const FitWorkload& workload : workloads) given.push_back(workload.given);
  for (FitWorkload& workload : workloads) {
    const BatchTrace at = AtBatch(workload, given, ParseBatch(text, workload.given->batch));
    workload.trace = at.trace;
    workload.batch_source = at.source;
  }
}

StepQuantity ParseQuantity(const std::string& text) {
  for (const StepQuantity quantity : {StepQuantity::kBatch, StepQuantity::kLength}) {
    if (text == Name(quantity)) return quantity;
  }
  throw UsageError(fmt::format("vary: '{}' is neither batch nor length", text));
}

// Returns the workloads, each with the steps that it varies among. Two recordings of one program
// are one workload. Throws `UsageError` if these do not differ in the quantity alone.
std::vector<std::pair<FitWorkload, StepFamily>> FamiliesOf(
    StepQuantity quantity, const std::vector<FitWorkload>& workloads) {
  std::vector<std::pair<FitWorkload, StepFamily>> families;
  std::vector<bool> seen(workloads.size());
  for (size_t i = 0; i < workloads.size(); ++i) {
    if (seen[i]) continue;
    const FitWorkload& one = workloads[i];
    if (!IsTraceFile(one.asked.workload)) {
      families.emplace_back(one, FamilyOfNetwork(quantity, one));
      continue;
    }
    const FitWorkload* other = nullptr;
    for (size_t j = i + 1; j < workloads.size(); ++j) {
      if (!IsTraceFile(workloads[j].asked.workload) ||
          (workloads[j].given->network != one.given->network &&
           !AreOfOneProgram(*one.given, *workloads[j].given))) {
        continue;
      }
      if (other) {
        throw UsageError(fmt::format("vary: '{}', '{}' and '{}' are of one network; expected two",
                                     one.name, other->name, workloads[j].name));
      }
      other = &workloads[j];
      seen[j] = true;
    }
    families.emplace_back(
        one, other ? StepFamily(quantity, one.given, one.name, other->given, other->name)
                   : StepFamily(quantity, one.given, one.name));
  }
  return families;
}

// Returns the name of a question for progress.
std::string NameOf(const Question& one) {
  return fmt::format("{} on {}", one.workload().name, one.loaded().asked.device);
}

// Returns the texts of the workloads, each once for each number of processes that is asked for.
std::vector<std::string> WorkloadsOf(const FitVerbOptions& options) {
  if (options.worlds.empty() && options.nodes.empty()) return options.workloads;
  std::vector<std::string> texts;
  for (const std::string& workload : options.workloads) {
    for (const auto& [option, values] :
         {std::pair("world", &options.worlds), std::pair("nodes", &options.nodes)}) {
      for (const std::string& value : *values) {
        texts.push_back(fmt::format("{},{}={}", workload, option, value));
      }
    }
  }
  return texts;
}

// Loads the workloads with the changes of their steps on the device.
std::vector<FitWorkload> LoadWorkloads(const FitVerbOptions& options, const std::string& device) {
  std::vector<FitWorkload> workloads;
  for (const std::string& workload : WorkloadsOf(options)) {
    Case asked = WithWorkload(options.asked, workload);
    asked.device = device;
    const auto trace = std::make_shared<const Trace>(LoadTrace(asked));
    workloads.push_back({WorkloadText(asked), trace, BatchSource::kGiven, trace, asked});
  }
  return workloads;
}

// Answers for the largest value of a quantity.
int ExecuteVary(const FitVerbOptions& options, Session& session) {
  if (options.batch != "1x" || !options.policies.given.empty()) {
    throw UsageError(fmt::format("vary: it cannot be combined with --{}",
                                 options.batch != "1x" ? "batch" : "policy"));
  }
  CheckView(options.format.view(), LargestColumns());
  const StepQuantity quantity = ParseQuantity(options.vary);
  const std::vector<std::string> devices = DevicesOf(options);
  for (const std::string& device : devices) LoadDevice(device);
  const Bytes outside = ParseSize("outside", OutsideOf(options));
  std::vector<LoadedCase> cases;
  std::vector<Largest> results;
  bool any = false;
  for (const std::string& device : devices) {
    for (const auto& [workload, family] : FamiliesOf(quantity, LoadWorkloads(options, device))) {
      const Question one(workload, device, outside);
      cases.push_back(one.loaded());
      session.progress().Say(NameOf(one));
      std::vector<Largest> found = FindLargest(one, family, {{}, options.policies.jobs});
      any |= found.front().value > 0;
      std::ranges::move(found, std::back_inserter(results));
    }
  }
  session.progress().Wipe();
  constexpr std::string_view kUsual[] = {"device", "limit",        "remedy",
                                         "next",   "iteration_ms", "peak_reserved_bytes"};
  return session.Finish(
      FormatAs(
          options.format.view(), LargestColumns(), results, "spillway.fit-vary/v1",
          [&] { return FormatLargest(results, WidthOf(options.format)); }, kUsual),
      options.output, {}, any ? kOk : kNegative,
      [&](Manifest& manifest) { Describe(options, cases, {}, manifest); });
}

bool IsAnalytic(const Question& one) { return one.cost().Provenance().starts_with("analytic"); }

// Asks again with analytic times about each workload whose times are analytic on some devices and
// recorded on others: their ranking would compare models, not devices. `asked` has the same
// workloads for each device.
void TakeOneMeasure(Bytes outside, std::vector<std::vector<Question>>& asked) {
  for (size_t i = 0; i < asked.front().size(); ++i) {
    const auto analytic = [&](const auto& questions) { return IsAnalytic(questions[i]); };
    if (std::ranges::all_of(asked, analytic) || std::ranges::none_of(asked, analytic)) continue;
    for (std::vector<Question>& questions : asked) {
      Question& one = questions[i];
      if (IsAnalytic(one) || !one.loaded().asked.cost.automatic()) continue;
      FitWorkload workload = one.workload();
      workload.asked.cost = "roofline";
      workload.leaves_recorded = true;
      one = Question(workload, one.loaded().asked.device, outside);
    }
  }
}

int Execute(const FitVerbOptions& options, Session& session) {
  if (!options.vary.empty()) return ExecuteVary(options, session);
  CheckView(options.format.view(), FitColumns());
  const std::vector<std::string> devices = DevicesOf(options);
  for (const std::string& device : devices) LoadDevice(device);
  std::vector<FitWorkload> workloads = LoadWorkloads(options, devices.front());
  std::vector<std::shared_ptr<const Trace>> traces;
  for (const FitWorkload& workload : workloads) traces.push_back(workload.given);
  const std::vector<std::string> policies = options.policies.policies(ModeOf(traces));
  CheckPolicies(policies, options.asked,
                std::ranges::any_of(traces, [](auto& trace) { return trace->training; }), session);
  const FitOptions search{{policies.begin(), policies.end()}, options.policies.jobs};
  const Bytes outside = ParseSize("outside", OutsideOf(options));

  const bool changes = std::ranges::any_of(
      workloads, [](const FitWorkload& workload) { return workload.asked.changes.any(); });
  SetBatch(options.batch, workloads);
  std::vector<LoadedCase> cases;
  std::vector<Fit> fits;
  std::vector<std::vector<Question>> asked;
  for (const std::string& device : devices) {
    if (changes && device != devices.front()) {
      workloads = LoadWorkloads(options, device);
      SetBatch(options.batch, workloads);
    }
    std::vector<Question>& questions = asked.emplace_back();
    for (const FitWorkload& workload : workloads) questions.emplace_back(workload, device, outside);
  }
  TakeOneMeasure(outside, asked);
  for (const std::vector<Question>& questions : asked) {
    for (const Question& one : questions) cases.push_back(one.loaded());
    std::ranges::move(FindFits(questions, search,
                               [&](const Question& one) { session.progress().Say(NameOf(one)); }),
                      std::back_inserter(fits));
  }
  session.progress().Wipe();
  const bool any = std::ranges::any_of(
      fits, [](const Fit& fit) { return fit.as_it_is.status != FitStatus::kNot; });
  const bool failed =
      std::ranges::any_of(fits, [](const Fit& fit) { return !fit.failures.empty(); });
  constexpr std::string_view kUsual[] = {
      "policy",       "status",   "margin_bytes", "peak_reserved_bytes",
      "iteration_ms", "slowdown", "remedy"};
  return session.Finish(FormatAs(
                            options.format.view(), FitColumns(), RowsOf(fits), "spillway.fit/v1",
                            [&] { return FormatFits(fits, WidthOf(options.format)); }, kUsual),
                        options.output, {},
                        failed ? kPolicyFailure
                        : any  ? kOk
                               : kNegative,
                        [&](Manifest& manifest) { Describe(options, cases, policies, manifest); });
}

}  // namespace

void AddFit(Command& program, Session& session) {
  Command& verb = program.Add(
      "fit",
      "Predict if a workload fits under PyTorch's allocator, and which "
      "changes make it fit (the function spillway_torch.fit predicts "
      "nothing: it keeps training in a budget); exit code 1 if no unchanged workload fits "
      "on any device, 4 if a policy failed, which costs only its own row");
  verb.examples = {"fit gpt2.json.zst --memory 4GiB",
                   "fit gpt2:8 --vary length --device h100,h200"};
  auto& options = verb.Runs(Execute, session);
  verb.Texts("workloads", options.workloads,
             std::string(CaseKeyOf("workload").help) +
                 "; one or more: a network with a smaller batch is a change that may make the one "
                 "with a larger batch fit")
      .Required();
  AddCaseOptions(verb, {"cost", "timeout", "in-process"}, options.asked);
  verb.Texts("--device", options.devices,
             "NAME or FILE.toml, then :key=value,... for changes; or help; one or more (default: "
             "every device that comes with the program)");
  verb.Text(
          "--memory", options.memory,
          "Memory that PyTorch's allocator may take, a size (24GiB), in place of the devices' own; "
          "the default device is then h200")
      .NotEmpty("no size is given");
  verb.Text("--outside", options.outside,
            "Device memory that is used outside the allocator, by contexts, libraries and other "
            "processes (default: 760MiB, and 0B with --memory)");
  verb.Text(
      "--batch", options.batch,
      "Answer for another batch: a number of samples, or a factor such as 2x or 0.5x. Networks "
      "are lowered at that batch. A recording is interpolated if two of different batches are "
      "given, else all sizes and times that are proportional to the batch are scaled");
  verb.Texts("--world", options.worlds,
             "Answer for a recorded process among other numbers of processes (8,64,512), one for "
             "each GPU: the option world of the workload");
  verb.Texts("--nodes", options.nodes,
             "Answer for a recorded process on other numbers of hosts: the option nodes of the "
             "workload");
  verb.Text(
          "--vary", options.vary,
          "Answer for the largest value with which a workload fits, as it is and with each "
          "change in PyTorch: batch, or length. Two recordings of one program that differ in it "
          "alone are one workload. For the length of a recording, two are needed; a network of the "
          "program for text needs its batch alone (gpt2:8)")
      .NotEmpty("no quantity is given");
  options.format.Add(verb);
  options.format.AddPivot(verb);
  options.policies.Add(verb);
  verb.Declared("--policy")
      .Help(
          "Policies to try if the workload does not fit as it is: NAME or PLUGIN.so:NAME, then "
          ":key=value,...; or help; one or more (default: all of the mode but joint)");
  AddOutput(verb, options.output, options.format);
}

}  // namespace spillway::cli
