// Ends the program on Ctrl-C at a moment when no file is half-written.
//
// While an object lives, its thread takes SIGINT and SIGTERM and exits with 128 plus the signal's
// number (130 for SIGINT). The thread waits for the lock of `Hold`, so that files that are written
// under a temporary name and renamed leave nothing behind. A verb that has finished a part of its
// work can print the part before the program ends.

#ifndef SPILLWAY_EXPERIMENTS_CLI_FRAME_INTERRUPTS_H_
#define SPILLWAY_EXPERIMENTS_CLI_FRAME_INTERRUPTS_H_

#include <atomic>
#include <csignal>
#include <functional>
#include <mutex>
#include <thread>

namespace spillway::cli {

class Interrupts {
 public:
  // REQUIRES: the program has no other thread yet. A signal that is ignored (nohup) stays ignored.
  Interrupts();
  Interrupts(const Interrupts&) = delete;
  Interrupts& operator=(const Interrupts&) = delete;
  ~Interrupts();

  // Returns a lock. An interrupt waits while the lock lives. The lock is not recursive.
  [[nodiscard]] std::unique_lock<std::mutex> Hold() { return std::unique_lock(writing_); }

  // Sets the function that an interrupt calls before it ends the program; an empty function is not
  // called. The call happens on the thread that took the signal, with the lock of `Hold`.
  void BeforeEnd(std::function<void()> action) {
    const auto guard = Hold();
    before_end_ = std::move(action);
  }

 private:
  void Watch();

  sigset_t signals_;
  std::mutex writing_;
  std::function<void()> before_end_;
  std::atomic<bool> stopping_ = false;
  std::thread watcher_;
};

}  // namespace spillway::cli

#endif  // SPILLWAY_EXPERIMENTS_CLI_FRAME_INTERRUPTS_H_
