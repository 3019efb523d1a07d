// Reads Python pickles of plain data, protocols 2 to 5, from front to back in bounded memory.
//
// Nothing is executed and no objects are built. Lists and dictionaries are numbers, and a handler
// sees their contents when the pickle adds them. Opcodes beyond plain data (GLOBAL, REDUCE, ...)
// are refused by name. The stack is bounded, and dictionaries that the handler is done with take no
// room on it. Only strings that the handler knows can be referred to again. Any other value that a
// pickle refers to again appears as `kOther`. If it is a container, it has the number that
// `OnStored` gave.

#ifndef SPILLWAY_TRACES_LOGS_PICKLE_H_
#define SPILLWAY_TRACES_LOGS_PICKLE_H_

#include <cstdint>
#include <span>
#include <string_view>

#include "traces/logs/byte_source.h"

namespace spillway::traces {

struct PickleValue {
  enum class Kind : uint8_t {
    kMark,  // the beginning of a container's items; never an item
    kDone,  // `number` dictionaries that the handler is done with
    kNone,
    kBool,     // `number` is 0 or 1
    kInteger,  // `number`; from 2^63 to 2^64 - 1 it is negative, as if it were signed
    kReal,     // `real`
    kString,   // `name` is the handler's number, or 0 if it does not know the string
    kList,     // `number` identifies the list
    kDict,     // `number` identifies the dictionary
    // Bytes, tuples, sets, larger integers, and values referred to again: `number` is their
    // reference.
    kOther,
  };

  Kind kind = Kind::kNone;
  uint32_t name = 0;
  union {
    int64_t number = 0;
    double real;
  };
};

class PickleHandler {
 public:
  virtual ~PickleHandler() = default;

  // Returns a number from 1 to 65535 for a string of interest, and 0 for any other string. Not
  // called for strings of more than 1024 bytes.
  virtual uint32_t NameOf(std::string_view text) = 0;

  // Called when keys and values, alternating, are added to a dictionary. `below` is the stack under
  // the dictionary; it includes the containers that the dictionary will be added to. Returns true
  // if the handler is done with the dictionary. A pickle that adds more to such a dictionary is
  // refused.
  virtual bool OnItems(const PickleValue& dict, std::span<const PickleValue> items,
                       std::span<const PickleValue> below) = 0;

  // Called when values are appended to a list. A `kDone` value stands for `number` dictionaries.
  virtual void OnAppended(const PickleValue& /*list*/, std::span<const PickleValue> /*values*/) {}

  // Called when an empty container is stored, so that the pickle can refer to it by `reference`,
  // from 1.
  virtual void OnStored(const PickleValue& /*container*/, int64_t /*reference*/) {}

  // Returns false to stop reading. Called after each `OnItems`.
  virtual bool wants_more() const { return true; }
};

// Returns the value that the pickle holds, or `kNone` if the handler stopped it. Throws
// `InputError` with the offset.
PickleValue ReadPickle(ByteSource& source, PickleHandler& handler);

}  // namespace spillway::traces

#endif  // SPILLWAY_TRACES_LOGS_PICKLE_H_
