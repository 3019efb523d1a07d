// Rows of a table that finish one by one, in any order.
//
// A terminal shows the row that finished last, beside the bar. The caller prints the table at the
// end; an interrupt prints a table of the finished rows. All methods can be called from several
// threads.

#ifndef SPILLWAY_EXPERIMENTS_CLI_FRAME_FINISHED_ROWS_H_
#define SPILLWAY_EXPERIMENTS_CLI_FRAME_FINISHED_ROWS_H_

#include <fmt/format.h>

#include <cstdio>
#include <functional>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "experiments/cli/frame/progress.h"
#include "experiments/cli/frame/session.h"

namespace spillway::cli {

template <typename T>
class FinishedRows {
 public:
  using Format = std::function<std::string(const std::vector<T>& finished)>;

  // `format` returns the text that an interrupt prints. If it is empty, because results go to a
  // file, an interrupt prints nothing. REQUIRES: the session, and all that `format` refers to,
  // outlive the rows.
  FinishedRows(Session& session, size_t total, Format format)
      : session_(session), rows_(total), format_(std::move(format)) {
    session_.progress().Start(total);
    if (format_) session_.interrupts().BeforeEnd([this] { PrintFinished(); });
  }
  FinishedRows(const FinishedRows&) = delete;
  FinishedRows& operator=(const FinishedRows&) = delete;
  ~FinishedRows() {
    if (format_) session_.interrupts().BeforeEnd({});
    session_.progress().Wipe();
  }

  // Stores row `i` and shows "name: line".
  void Finish(size_t i, T row, std::string_view name, std::string_view line) {
    {
      const std::lock_guard lock(mutex_);
      rows_[i] = std::move(row);
    }
    session_.progress().Advance(fmt::format("{}: {}", name, line));
  }

  // Returns all rows. REQUIRES: all are finished.
  std::vector<T> Take() {
    const std::lock_guard lock(mutex_);
    std::vector<T> all;
    for (std::optional<T>& row : rows_) all.push_back(std::move(*row));
    return all;
  }

 private:
  void PrintFinished() {
    std::vector<T> finished;
    {
      const std::lock_guard lock(mutex_);
      for (const std::optional<T>& row : rows_) {
        if (row) finished.push_back(*row);
      }
    }
    session_.progress().Wipe();
    if (finished.empty()) return;
    session_.Print(format_(finished));
    std::fflush(stdout);
  }

  Session& session_;
  std::mutex mutex_;
  std::vector<std::optional<T>> rows_;
  const Format format_;
};

}  // namespace spillway::cli

#endif  // SPILLWAY_EXPERIMENTS_CLI_FRAME_FINISHED_ROWS_H_
