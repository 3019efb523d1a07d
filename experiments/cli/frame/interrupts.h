// Ends the program on Ctrl-C at a moment when no file is half-written.
//
// While an object lives, SIGINT and SIGTERM are taken by a thread of its own, which exits with 128
// plus the signal's number (130 for SIGINT). It waits for whoever holds `Hold`, so files that are
// written under a temporary name and renamed leave nothing behind. A command that has finished a
// part of its work may print it then.

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

  // An interrupt waits while the lock lives. Not recursive.
  [[nodiscard]] std::unique_lock<std::mutex> Hold() { return std::unique_lock(writing_); }

  // What an interrupt does before it ends the program; empty: nothing. Called on the thread that
  // took the signal, while `Hold` is held.
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
