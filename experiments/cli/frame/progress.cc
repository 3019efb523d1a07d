#include "experiments/cli/frame/progress.h"

#include <fmt/format.h>
#include <unistd.h>

#include <cstdio>
#include <utility>

#include "traces/base/error.h"

namespace spillway::cli {
namespace {

constexpr std::string_view kWipe = "\r\033[K";

std::string FormatSeconds(double seconds) {
  const auto whole = static_cast<int64_t>(seconds + 0.5);
  if (whole < 60) return fmt::format("{} s", whole);
  return fmt::format("{} min {} s", whole / 60, whole % 60);
}

}  // namespace

std::string FormatProgress(size_t done, size_t total, double seconds, std::string_view what) {
  constexpr size_t kWidth = 20;
  const size_t filled = total > 0 ? kWidth * done / total : kWidth;
  std::string text =
      fmt::format("[{:#>{}}{:.>{}}] {}/{}", "", filled, "", kWidth - filled, done, total);
  if (!what.empty()) text += fmt::format(" {}", what.substr(0, 40));
  if (done > 0 && done < total) {
    const double left = seconds / static_cast<double>(done) * static_cast<double>(total - done);
    text += fmt::format(", {} left", FormatSeconds(left));
  }
  return text;
}

ProgressBar::ProgressBar(std::string command, bool quiet)
    : command_(std::move(command)),
      quiet_(quiet),
      terminal_(!quiet && ::isatty(STDERR_FILENO) == 1) {
  if (!quiet) watcher_ = std::thread([this] { Watch(); });
}

ProgressBar::~ProgressBar() {
  Wipe();
  if (!watcher_.joinable()) return;
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  stop_.notify_all();
  watcher_.join();
}

void ProgressBar::Start(size_t total) {
  const std::lock_guard lock(mutex_);
  start_ = Clock::now();
  done_ = 0;
  total_ = total;
  what_.clear();
  if (total > 0) Draw();
}

void ProgressBar::Set(size_t done, size_t total, std::string_view what) {
  const std::lock_guard lock(mutex_);
  done_ = done;
  total_ = total;
  what_ = what;
  Draw();
}

void ProgressBar::Say(std::string_view what) {
  const std::lock_guard lock(mutex_);
  what_ = what;
  Draw();
}

void ProgressBar::Advance(std::string_view what) {
  const std::lock_guard lock(mutex_);
  ++done_;
  what_ = what;
  Draw();
}

void ProgressBar::Note(std::string_view line) {
  if (quiet_) return;
  const std::lock_guard lock(mutex_);
  fmt::print(stderr, "{}{}\n", active_ ? kWipe : "", Printable(line));
  said_ = Clock::now();
  if (active_) Draw();
}

void ProgressBar::Wipe() {
  const std::lock_guard lock(mutex_);
  if (active_) fmt::print(stderr, "{}", kWipe);
  active_ = false;
  total_ = 0;
  what_.clear();
}

// Writes a line whenever nothing was written for `kSilence`.
void ProgressBar::Watch() {
  std::unique_lock lock(mutex_);
  while (!stop_.wait_until(lock, said_ + kSilence, [&] { return stopping_; })) {
    if (Clock::now() < said_ + kSilence) continue;
    said_ = Clock::now();
    if (active_) continue;
    fmt::print(stderr, "spillway: {}\n", Printable(Line()));
  }
}

// Returns the present state as a line for people.
std::string ProgressBar::Line() const {
  const std::chrono::duration<double> elapsed = Clock::now() - start_;
  if (total_ > 0) return FormatProgress(done_, total_, elapsed.count(), what_);
  return fmt::format("{}: {}{} so far", command_, what_.empty() ? "" : what_ + ", ",
                     FormatSeconds(elapsed.count()));
}

void ProgressBar::Draw() {
  if (!terminal_) return;
  fmt::print(stderr, "{}{}", kWipe, Printable(Line()));
  std::fflush(stderr);
  active_ = true;
}

}  // namespace spillway::cli
