// What a command is doing, on standard error.
//
// On a terminal a bar with the time left, redrawn in place and wiped at the end. Elsewhere, and
// where a command has no bar, a line whenever nothing was said for `kSilence`. Nothing if quiet. No
// colours are used, so there is nothing for NO_COLOR to switch off. Safe to use from several
// threads.

#ifndef SPILLWAY_EXPERIMENTS_CLI_FRAME_PROGRESS_H_
#define SPILLWAY_EXPERIMENTS_CLI_FRAME_PROGRESS_H_

#include <chrono>
#include <condition_variable>
#include <mutex>
#include <string>
#include <string_view>
#include <thread>

namespace spillway::cli {

// "[#####...............] 2/8 vdnn-all, 6 s left": the time left assumes that each step takes as
// long as those done; it is left out before the first.
std::string FormatProgress(size_t done, size_t total, double seconds, std::string_view what);

class ProgressBar {
 public:
  static constexpr std::chrono::seconds kSilence{4};

  // `command` is what a line says until a step is known.
  ProgressBar(std::string command, bool quiet);
  ProgressBar(const ProgressBar&) = delete;
  ProgressBar& operator=(const ProgressBar&) = delete;
  ~ProgressBar();

  // From here on there are `total` steps; with 0 their number is not known yet.
  void Start(size_t total);
  // `done` of `total` steps are done, `what` is the step at hand.
  void Set(size_t done, size_t total, std::string_view what);
  // The step at hand, or a part of it.
  void Say(std::string_view what);
  // One more step is done.
  void Advance(std::string_view what);
  // A line that stays, also where the bar is not shown, unless quiet.
  void Note(std::string_view line);
  // The same on a terminal only.
  void NoteOnTerminal(std::string_view line);
  // The bar is done with.
  void Wipe();

 private:
  using Clock = std::chrono::steady_clock;

  void Watch();
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
