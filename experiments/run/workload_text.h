// The text of a workload: what runs, and the options with which it is lowered or changed.
//
// "gpt2@512:8,optimizer=adamw,precision=bf16" is a network of the zoo and its batch;
// "step.json,batch=16,precision=bf16" is a trace file, whose recorded step experiments/changes
// turns into another one. In front of the first option, a colon reads as a comma does, because a
// list of workloads may stand in one text (experiments/run/pattern.h).

#ifndef SPILLWAY_EXPERIMENTS_RUN_WORKLOAD_TEXT_H_
#define SPILLWAY_EXPERIMENTS_RUN_WORKLOAD_TEXT_H_

#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "experiments/run/case.h"

namespace spillway::lab {

struct WorkloadOption {
  const char* name;     // "clip-norm"
  const char* initial;  // the default as text; empty if there is none
  // The values for a network and for a trace file: "sgd|adam|adamw", empty if `set` alone knows
  // which are valid, or nullptr if the option concerns the other kind of workload only.
  const char* network;
  const char* file;
  const char* help;
  // Sets the value from a text. Throws `UsageError` if the text is invalid. REQUIRES: the workload
  // of the case is set.
  void (*set)(Case&, const std::string& text);
  // Returns the value as text, which is empty if no value was given.
  std::string (*get)(const Case&);
};

// Returns all options in their order in a text.
std::span<const WorkloadOption> WorkloadOptions();
// Returns the option called `name`. REQUIRES: there is such an option.
const WorkloadOption& WorkloadOptionOf(std::string_view name);

// Sets the workload of the case, and the options that the text has. Throws `UsageError`, which
// names the text, the option and the valid values, if an option is unknown or does not concern the
// workload, or if a value is invalid. Whether there is such a network or file is not checked.
void SetWorkload(Case& asked, const std::string& text);
// Returns the case with another workload.
Case WithWorkload(Case asked, const std::string& text);
// Returns the text from which `SetWorkload` sets the workload of the case and its options. Options
// with their default values are left out.
std::string WorkloadText(const Case& asked);

// Returns the values that bars separate in the text: "sgd|adam".
std::vector<std::string> Alternatives(std::string_view values);

}  // namespace spillway::lab

#endif  // SPILLWAY_EXPERIMENTS_RUN_WORKLOAD_TEXT_H_
