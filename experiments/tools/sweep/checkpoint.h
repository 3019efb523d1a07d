// Copies a store to a place that outlives the machine: a directory that machines share.
//
// SQLite's locks and shared memory do not work on network file systems. A process therefore works
// on a store on its own machine, and copies it to another name that is then renamed. A copy is
// never incomplete, and a process that ends at any moment loses at most the results of one minute.

#ifndef SPILLWAY_EXPERIMENTS_TOOLS_SWEEP_CHECKPOINT_H_
#define SPILLWAY_EXPERIMENTS_TOOLS_SWEEP_CHECKPOINT_H_

#include <condition_variable>
#include <filesystem>
#include <mutex>
#include <thread>

#include "experiments/tools/sweep/result_store.h"

namespace spillway::lab {

// A `Checkpoint` keeps a copy of a store up to date.
class Checkpoint {
 public:
  // Copies the store every minute while the object lives. A copy that fails is tried again a minute
  // later; only `Write` reports the reason. REQUIRES: the store outlives the object.
  Checkpoint(const SweepStore& store, std::filesystem::path path);
  Checkpoint(const Checkpoint&) = delete;
  Checkpoint& operator=(const Checkpoint&) = delete;
  ~Checkpoint();

  // Copies the store now. Throws `InputError` if the copy fails.
  void Write();

  // Copies `copy` to `store` if `copy` exists and `store` does not. Throws `InputError` if `copy`
  // is no valid store or cannot be copied.
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

}  // namespace spillway::lab

#endif  // SPILLWAY_EXPERIMENTS_TOOLS_SWEEP_CHECKPOINT_H_
