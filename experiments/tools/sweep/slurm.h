// A sweep on a cluster that Slurm runs: an array job, a shard for each task, and a job that merges.
//
// A task works on a store of its own on the machine that it runs on, with a checkpoint in the
// shared directory, and begins with that. A task whose process is killed tries again.

#ifndef SPILLWAY_EXPERIMENTS_TOOLS_SWEEP_SLURM_H_
#define SPILLWAY_EXPERIMENTS_TOOLS_SWEEP_SLURM_H_

#include <filesystem>
#include <string>
#include <vector>

#include "experiments/tools/sweep/grid.h"

namespace spillway {

struct SlurmJob {
  std::filesystem::path program;    // absolute, as the nodes see it
  std::filesystem::path work;       // where relative paths begin
  std::filesystem::path directory;  // shared, for scripts, logs and the stores of shards
  std::filesystem::path store;      // of all, absolute
  int tasks = 1;
  int cpus = 1;                      // of a task
  std::string time = "1:00:00";      // of a task, as sbatch takes it
  std::string memory = "4G";         // likewise
  std::vector<std::string> options;  // more of sbatch: "--partition=long"
};

// The arguments of `spillway sweep` that span the same grid, quoted for a shell, without the store.
std::string ArgumentsOf(const Experiment& experiment);

// The scripts for sbatch.
std::string ArrayScript(const SlurmJob& job, const Experiment& experiment);
std::string MergeScript(const SlurmJob& job);

// Writes both scripts into the directory and submits them. The numbers of the array job and of the
// merge job, which depends on it. Throws `EnvironmentError` if there is no sbatch, or what it says
// if it refuses.
struct SubmittedJobs {
  std::string array, merge;
};
SubmittedJobs Submit(const SlurmJob& job, const Experiment& experiment);

}  // namespace spillway

#endif  // SPILLWAY_EXPERIMENTS_TOOLS_SWEEP_SLURM_H_
