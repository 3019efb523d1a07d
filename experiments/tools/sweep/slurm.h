// Runs a sweep on a Slurm cluster: an array job with one shard per task, and a job that merges the
// results.
//
// Each task works on its own store on the local disk of its machine. It keeps a checkpoint in the
// shared directory and starts from it if it exists. A task whose process is killed is retried.

#ifndef SPILLWAY_EXPERIMENTS_TOOLS_SWEEP_SLURM_H_
#define SPILLWAY_EXPERIMENTS_TOOLS_SWEEP_SLURM_H_

#include <filesystem>
#include <string>
#include <vector>

#include "experiments/tools/sweep/grid.h"

namespace spillway::lab {

struct SlurmJob {
  std::filesystem::path program;    // absolute path of spillway on the nodes
  std::filesystem::path work;       // the directory to which relative paths refer
  std::filesystem::path directory;  // shared directory for scripts, logs and the stores of shards
  std::filesystem::path store;      // absolute path of the merged store
  int tasks = 1;
  int cpus = 1;                      // CPUs per task
  std::string time = "1:00:00";      // time limit per task, in the format of sbatch
  std::string memory = "4G";         // memory per task, in the format of sbatch
  std::vector<std::string> options;  // further options of sbatch: "--partition=long"
};

// Returns the arguments of `spillway sweep` that span the grid of the experiment, quoted for a
// shell. The store is not included.
std::string ArgumentsOf(const Experiment& experiment);

// Return the sbatch scripts of the array job and of the merge job.
std::string ArrayScript(const SlurmJob& job, const Experiment& experiment);
std::string MergeScript(const SlurmJob& job);

// The numbers of the array job and of the merge job, which depends on the array job.
struct SubmittedJobs {
  std::string array, merge;
};
// Writes both scripts into `job.directory` and submits them. Throws `EnvironmentError` if sbatch
// cannot be run, or with the output of sbatch if it refuses a job.
SubmittedJobs Submit(const SlurmJob& job, const Experiment& experiment);

}  // namespace spillway::lab

#endif  // SPILLWAY_EXPERIMENTS_TOOLS_SWEEP_SLURM_H_
