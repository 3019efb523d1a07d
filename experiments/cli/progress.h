// A progress bar with the time left, on standard error.
//
// Shown only where standard error is a terminal and nobody asked for quiet; otherwise every call
// does nothing but `Note`. It is redrawn in place and wiped at the end. No colours are used, so
// there is nothing for NO_COLOR to switch off. Safe to use from several threads.

#ifndef SPILLWAY_EXPERIMENTS_CLI_PROGRESS_H_
#define SPILLWAY_EXPERIMENTS_CLI_PROGRESS_H_

#include <chrono>
#include <mutex>
#include <string>
#include <string_view>

namespace spillway::cli {

// "[#####...............] 2/8 vdnn-all, 6 s left": the time left assumes that each step takes as
// long as those done; it is left out before the first.
std::string FormatProgress(size_t done, size_t total, double seconds, std::string_view what);

class ProgressBar {
 public:
  // A total of 0 is not known yet: the bar appears with the first `Set`.
  ProgressBar(size_t total, bool quiet);
  ProgressBar(const ProgressBar&) = delete;
  ProgressBar& operator=(const ProgressBar&) = delete;
  ~ProgressBar();

  // `done` of `total` steps are done, `what` is the step at hand.
  void Set(size_t done, size_t total, std::string_view what);
  // One more step is done.
  void Advance(std::string_view what);
  // A line that stays, also where the bar is not shown, unless quiet.
  void Note(std::string_view line);

 private:
  void Draw(std::string_view what);

  const bool quiet_;
  const bool shown_;
  const std::chrono::steady_clock::time_point start_;
  std::mutex mutex_;
  size_t done_ = 0;
  size_t total_;
};

}  // namespace spillway::cli

#endif  // SPILLWAY_EXPERIMENTS_CLI_PROGRESS_H_
