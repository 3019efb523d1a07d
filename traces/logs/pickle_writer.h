// Writes plain data as a Python pickle of protocol 4.
//
// Calls come in the order of the data. Inside a dictionary, keys and values alternate. A string
// that was written before is written as a reference. Write long lists in batches, as Python does,
// because readers may handle a batch as one piece.

#ifndef SPILLWAY_TRACES_LOGS_PICKLE_WRITER_H_
#define SPILLWAY_TRACES_LOGS_PICKLE_WRITER_H_

#include <cstdint>
#include <map>
#include <string>
#include <string_view>

namespace spillway::traces {

class PickleWriter {
 public:
  PickleWriter() : bytes_("\x80\x04", 2) {}

  PickleWriter& BeginDict() { return Raw("}("); }
  PickleWriter& EndDict() { return Raw("u"); }
  PickleWriter& BeginList() { return Raw("]("); }
  PickleWriter& EndList() { return Raw("e"); }
  // Ends a batch of list items and begins another.
  PickleWriter& NextBatch() { return Raw("e("); }
  PickleWriter& BeginTuple() { return Raw("("); }
  PickleWriter& EndTuple() { return Raw("t"); }
  PickleWriter& PutBool(bool value) { return Raw(value ? "\x88" : "\x89"); }
  PickleWriter& PutInteger(int64_t value);
  PickleWriter& PutReal(double value);
  PickleWriter& PutString(std::string_view text);

  // Appends bytes unchanged, for data that the other functions cannot write.
  PickleWriter& Raw(std::string_view bytes) {
    bytes_ += bytes;
    return *this;
  }

  // Returns the pickle. REQUIRES: every container that was begun has been ended.
  std::string Take() { return std::move(Raw(".").bytes_); }

 private:
  std::string bytes_;
  std::map<std::string, uint32_t, std::less<>> memo_;
};

}  // namespace spillway::traces

#endif  // SPILLWAY_TRACES_LOGS_PICKLE_WRITER_H_
