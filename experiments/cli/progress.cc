#include "experiments/cli/progress.h"

#include <fmt/format.h>
#include <unistd.h>

#include <cstdio>

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

ProgressBar::ProgressBar(size_t total, bool quiet)
    : quiet_(quiet),
      shown_(!quiet && ::isatty(STDERR_FILENO) == 1),
      start_(std::chrono::steady_clock::now()),
      total_(total) {
  const std::lock_guard lock(mutex_);
  if (total > 0) Draw({});
}

ProgressBar::~ProgressBar() {
  if (shown_) fmt::print(stderr, "{}", kWipe);
}

void ProgressBar::Set(size_t done, size_t total, std::string_view what) {
  const std::lock_guard lock(mutex_);
  done_ = done;
  total_ = total;
  Draw(what);
}

void ProgressBar::Advance(std::string_view what) {
  const std::lock_guard lock(mutex_);
  ++done_;
  Draw(what);
}

void ProgressBar::Note(std::string_view line) {
  if (quiet_) return;
  const std::lock_guard lock(mutex_);
  fmt::print(stderr, "{}{}\n", shown_ ? kWipe : "", line);
}

void ProgressBar::Draw(std::string_view what) {
  if (!shown_) return;
  const std::chrono::duration<double> elapsed = std::chrono::steady_clock::now() - start_;
  fmt::print(stderr, "{}{}", kWipe, FormatProgress(done_, total_, elapsed.count(), what));
  std::fflush(stderr);
}

}  // namespace spillway::cli
