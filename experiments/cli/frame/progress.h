// The progress of a command on standard error.
//
// A terminal shows a bar with the time left, which is redrawn in place and wiped at the end. If
// standard error is no terminal, or the command has no bar, a line appears whenever nothing was
// written for `kSilence`. Nothing appears if quiet. No colours are used, so NO_COLOR changes
// nothing. All methods can be called from several threads.

#ifndef SPILLWAY_EXPERIMENTS_CLI_FRAME_PROGRESS_H_
#define SPILLWAY_EXPERIMENTS_CLI_FRAME_PROGRESS_H_

#include <chrono>
#include <condition_variable>
#include <mutex>
#include <string>
#include <string_view>
#include <thread>

namespace spillway::cli {

// Returns "[#####...............] 2/8 vdnn-all, 6 s left". The time left assumes that the remaining
// steps take as long on average as the finished ones; the text leaves it out before the first step
// is done and after the last.
std::string FormatProgress(size_t done, size_t total, double seconds, std::string_view what);

class ProgressBar {
 public:
  static constexpr std::chrono::seconds kSilence{4};

  // A line shows `command` until the number of steps is known.
  ProgressBar(std::string command, bool quiet);
  ProgressBar(const ProgressBar&) = delete;
  ProgressBar& operator=(const ProgressBar&) = delete;
  ~ProgressBar();

  // Starts a count of `total` steps; 0 means that the number is not known yet.
  void Start(size_t total);
  // Shows that `done` of `total` steps are done and that `what` is the present step.
  void Set(size_t done, size_t total, std::string_view what);
  // Says that `what` is the present step or a part of it.
  void Say(std::string_view what);
  // Says that one more step is done, and that it was `what`.
  void Advance(std::string_view what);
  // Writes a line that stays, with or without a bar, unless quiet.
  void Note(std::string_view line);
  // Removes the bar and forgets the steps.
  void Wipe();

 private:
  using Clock = std::chrono::steady_clock;

  void Watch();
  std::string Line() const;
  void Draw();

  const std::string command_;
  const bool quiet_;
  const bool terminal_;
  Clock::time_point start_ = Clock::now();
  Clock::time_point said_ = start_;
  std::mutex mutex_;
  bool active_ = false;  // a bar is on the terminal
  size_t done_ = 0, total_ = 0;
  std::string what_;
  bool stopping_ = false;
  std::condition_variable stop_;
  std::thread watcher_;
};

}  // namespace spillway::cli

#endif  // SPILLWAY_EXPERIMENTS_CLI_FRAME_PROGRESS_H_
