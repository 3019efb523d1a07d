// A log that is written anew in each iteration over that of the one before, and knows whether the
// two are equal.

#ifndef SPILLWAY_SIM_RUNTIME_REPEATED_LOG_H_
#define SPILLWAY_SIM_RUNTIME_REPEATED_LOG_H_

#include <cstddef>
#include <vector>

namespace spillway {

// Compares as it overwrites, so that no second copy is needed. The vector outlives the log.
template <typename Entry>
class RepeatedLog {
 public:
  explicit RepeatedLog(std::vector<Entry>& entries) : entries_(entries) {}

  void Begin() {
    written_ = 0;
    same_ = true;
  }

  void Append(const Entry& entry) {
    if (written_ < entries_.size()) {
      same_ = same_ && entries_[written_] == entry;
      entries_[written_] = entry;
    } else {
      same_ = false;
      entries_.push_back(entry);
    }
    ++written_;
  }

  // Cuts off what is left of a longer log. True if this log equals the last one.
  bool End() {
    same_ = same_ && written_ == entries_.size();
    entries_.resize(written_);
    return same_;
  }

  // Entries appended since `Begin`.
  size_t written() const { return written_; }
  // The last log's entry at the place of the next one; nullptr if it was shorter.
  const Entry* Replaced() const {
    return written_ < entries_.size() ? &entries_[written_] : nullptr;
  }

 private:
  std::vector<Entry>& entries_;
  size_t written_ = 0;
  bool same_ = false;
};

}  // namespace spillway

#endif  // SPILLWAY_SIM_RUNTIME_REPEATED_LOG_H_
