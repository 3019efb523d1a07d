#include "experiments/tools/sweep/slurm.h"

#include <fmt/format.h>
#include <sys/wait.h>

#include <array>
#include <cstdio>
#include <memory>

#include "traces/base/error.h"
#include "traces/base/file.h"

namespace spillway::lab {
namespace {

constexpr int kTries = 5;

std::string Head(const SlurmJob& job, const std::string& name, const std::string& own,
                 const std::string& log) {
  std::string text = "#!/bin/bash\n";
  const auto add = [&](const std::string& option) { text += fmt::format("#SBATCH {}\n", option); };
  add("--job-name=" + name);
  if (!own.empty()) add(own);
  add(fmt::format("--time={}", job.time));
  add(fmt::format("--mem={}", job.memory));
  add(fmt::format("--output={}", Quoted((job.directory / log).string())));
  add("--open-mode=append");
  for (const std::string& option : job.options) add(option);
  return text +
         fmt::format("set -uo pipefail\ncd {}\nlocal=$(mktemp -d)\ntrap 'rm -rf \"$local\"' EXIT\n",
                     Quoted(job.work.string()));
}

// Returns the output of a command without trailing newlines. Throws `EnvironmentError` if the
// command fails.
std::string OutputOf(const std::string& command) {
  FILE* const pipe = ::popen((command + " 2>&1").c_str(), "re");
  if (pipe == nullptr) throw EnvironmentError(fmt::format("cannot run {}", command));
  std::string text;
  std::array<char, 256> part{};
  while (std::fgets(part.data(), part.size(), pipe) != nullptr) text += part.data();
  const int status = ::pclose(pipe);
  while (text.ends_with('\n')) text.pop_back();
  if (WIFEXITED(status) && WEXITSTATUS(status) == 127) {
    throw EnvironmentError(
        "no sbatch on this machine: submit where Slurm is (Debian: slurm-client), or see the "
        "scripts with --dry-run");
  }
  if (status != 0) throw EnvironmentError(fmt::format("sbatch refused: {}", text));
  return text;
}

}  // namespace

std::string ArgumentsOf(const Experiment& experiment) {
  std::string text;
  for (const CaseKey& key : CaseKeys()) {
    const auto found = experiment.values.find(key.name);
    if (found == experiment.values.end()) continue;
    for (const std::string& value : found->second) {
      if (key.kind == CaseKey::Kind::kFlag) {
        if (value == "true") text += fmt::format(" --{}", key.name);
        continue;
      }
      const bool named = key.name != std::string_view("workload");
      text += named ? fmt::format(" --{} {}", key.name, Quoted(value)) : " " + Quoted(value);
    }
  }
  return text.substr(1);
}

std::string ArrayScript(const SlurmJob& job, const Experiment& experiment) {
  const std::string own = fmt::format(
      "--array=1-{}\n#SBATCH --cpus-per-task={}\n#SBATCH --requeue\n"
      "#SBATCH --signal=B:TERM@60",
      job.tasks, job.cpus);
  return Head(job, "spillway-sweep", own, "task-%a.log") +
         fmt::format(
             "task=$SLURM_ARRAY_TASK_ID\n"
             "child=\n"
             "stopped=\n"
             "trap 'stopped=1; kill -TERM \"$child\"' TERM  # it writes its checkpoint then\n"
             "for try in $(seq {}); do\n"
             "  rm -f \"$local\"/r.sqlite*\n"
             "  {} sweep {} \\\n"
             "    --shard \"$task/{}\" --jobs {} -o \"$local/r.sqlite\" \\\n"
             "    --checkpoint {}/shard-\"$task\".sqlite &\n"
             "  child=$!\n"
             "  wait \"$child\"\n"
             "  code=$?\n"
             "  while [ -n \"$stopped\" ] && kill -0 \"$child\" 2>/dev/null; do wait \"$child\"; "
             "done\n"
             "  # 4: a policy failed, its rows say so. Above 128: killed; what is there is gone on "
             "from.\n"
             "  [ \"$code\" -eq 4 ] && code=0\n"
             "  [ \"$code\" -lt 128 ] || [ -n \"$stopped\" ] && break\n"
             "done\n"
             "exit \"$code\"\n",
             kTries, Quoted(job.program.string()), ArgumentsOf(experiment), job.tasks, job.cpus,
             Quoted(job.directory.string()));
}

std::string MergeScript(const SlurmJob& job) {
  const std::string store = Quoted(job.store.string());
  const std::string program = Quoted(job.program.string());
  return Head(job, "spillway-merge", "", "merge.log") +
         fmt::format(
             "set -e\n"
             "[ ! -e {0} ] || {1} sweep merge \"$local/r.sqlite\" {0}\n"
             "{1} sweep merge \"$local/r.sqlite\" {2}/shard-*.sqlite\n"
             "cp \"$local/r.sqlite\" {0}.new\n"
             "mv {0}.new {0}\n",
             store, program, Quoted(job.directory.string()));
}

SubmittedJobs Submit(const SlurmJob& job, const Experiment& experiment) {
  std::error_code error;
  std::filesystem::create_directories(job.directory, error);
  if (error) {
    throw InputError(fmt::format("cannot create the directory '{}': {}", job.directory.string(),
                                 error.message()));
  }
  const std::filesystem::path array = job.directory / "array.sh",
                              merge = job.directory / "merge.sh";
  WriteFile(array, ArrayScript(job, experiment));
  WriteFile(merge, MergeScript(job));
  SubmittedJobs jobs;
  jobs.array = OutputOf(fmt::format("sbatch --parsable {}", Quoted(array.string())));
  jobs.merge = OutputOf(fmt::format("sbatch --parsable --dependency=afterok:{} {}",
                                    Quoted(jobs.array), Quoted(merge.string())));
  return jobs;
}

}  // namespace spillway::lab
