// A log that is rewritten in each iteration and compared with the log of the iteration before.

#ifndef SPILLWAY_SIM_RUNTIME_REPEATED_LOG_H_
#define SPILLWAY_SIM_RUNTIME_REPEATED_LOG_H_

#include <cstddef>
#include <vector>

namespace spillway::sim {

// Entries are compared as they are overwritten, so no second copy is needed. The vector outlives
// the log.
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

  // Removes the entries that remain of a longer last log. Returns true iff this log equals the last
  // log.
  bool End() {
    same_ = same_ && written_ == entries_.size();
    entries_.resize(written_);
    return same_;
  }

  // Returns the number of entries appended since `Begin`.
  size_t written() const { return written_; }
  // Returns the last log's entry that the next `Append` will replace; nullptr if there is none.
  const Entry* Replaced() const {
    return written_ < entries_.size() ? &entries_[written_] : nullptr;
  }

 private:
  std::vector<Entry>& entries_;
  size_t written_ = 0;
  bool same_ = false;
};

}  // namespace spillway::sim

#endif  // SPILLWAY_SIM_RUNTIME_REPEATED_LOG_H_
