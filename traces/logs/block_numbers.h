// Numbers the live blocks of a log. A block gets the number that was freed last, or a new number.

#ifndef SPILLWAY_TRACES_LOGS_BLOCK_NUMBERS_H_
#define SPILLWAY_TRACES_LOGS_BLOCK_NUMBERS_H_

#include <cstdint>
#include <vector>

namespace spillway::traces {

class BlockNumbers {
 public:
  uint32_t Take() {
    if (free_.empty()) return end_++;
    const uint32_t number = free_.back();
    free_.pop_back();
    return number;
  }
  // REQUIRES: the number is taken.
  void Give(uint32_t number) { free_.push_back(number); }

 private:
  std::vector<uint32_t> free_;
  uint32_t end_ = 0;
};

}  // namespace spillway::traces

#endif  // SPILLWAY_TRACES_LOGS_BLOCK_NUMBERS_H_
