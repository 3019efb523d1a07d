// Copies of a store at a place that outlives the machine: a directory that machines share.
//
// SQLite's locks and shared memory are not for network file systems, so that a store is worked on
// where the process runs, and copied: under another name, then renamed. A copy is never half
// there, and a process that ends at any moment loses a minute at most.

#ifndef SPILLWAY_EXPERIMENTS_TOOLS_SWEEP_CHECKPOINT_H_
#define SPILLWAY_EXPERIMENTS_TOOLS_SWEEP_CHECKPOINT_H_

#include <condition_variable>
#include <filesystem>
#include <mutex>
#include <thread>

#include "experiments/tools/sweep/result_store.h"

namespace spillway {

class Checkpoint {
 public:
  // Copies the store every minute as long as the object lives. A copy that fails is tried again a
  // minute later; `Write` says why. REQUIRES: the store outlives the object.
  Checkpoint(const SweepStore& store, std::filesystem::path path);
  Checkpoint(const Checkpoint&) = delete;
  Checkpoint& operator=(const Checkpoint&) = delete;
  ~Checkpoint();

  // Copies it now. Throws `InputError`.
  void Write();

  // Where there is a copy and no store, the store begins with it. Throws `InputError`.
  static void Restore(const std::filesystem::path& copy, const std::filesystem::path& store);

 private:
  void Watch();

  const SweepStore& store_;
  const std::filesystem::path path_;
  std::mutex mutex_;
  std::condition_variable stop_;
  bool stopping_ = false;
  std::thread watcher_;
};

}  // namespace spillway

#endif  // SPILLWAY_EXPERIMENTS_TOOLS_SWEEP_CHECKPOINT_H_
