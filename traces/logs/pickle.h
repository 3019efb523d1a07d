// Reads Python pickles of plain data, protocols 2 to 5, front to back in bounded memory.
//
// Nothing is executed and nothing is built: lists and dictionaries are numbers, and a handler sees
// their contents when the pickle puts them in. Opcodes beyond plain data (GLOBAL, REDUCE, ...) are
// refused by name. The stack is bounded, and objects that the handler is done with take no room on
// it. Only strings that the handler knows can be referred to again; any other value that a pickle
// refers to a second time is seen as `kOther`, with the number that `OnStored` gave if it is a
// container.

#ifndef SPILLWAY_TRACES_LOGS_PICKLE_H_
#define SPILLWAY_TRACES_LOGS_PICKLE_H_

#include <cstdint>
#include <span>
#include <string_view>

#include "traces/logs/byte_source.h"

namespace spillway {

struct PickleValue {
  enum class Kind : uint8_t {
    kMark,  // where the items of a container begin; never an item
    kDone,  // `number` dictionaries that the handler is done with
    kNone,
    kBool,     // `number` is 0 or 1
    kInteger,  // `number`
    kReal,     // `real`
    kString,   // `name` is the handler's, 0 if it does not know the string
    kList,     // `number` is the list's own
    kDict,     // `number` is the dictionary's own
    kOther,    // bytes and tuples; what is referred to a second time: `number` is its reference
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

  // A number from 1 to 65535 for a string of interest, 0 for any other. Strings of more than
  // 1024 bytes are not asked about.
  virtual uint32_t NameOf(std::string_view text) = 0;

  // Keys and values, alternating, were put into a dictionary; `below` is the stack under it, the
  // containers that it will go into among it. Returns whether the handler is done with the
  // dictionary: a pickle that puts more into it is refused.
  virtual bool OnItems(const PickleValue& dict, std::span<const PickleValue> items,
                       std::span<const PickleValue> below) = 0;

  // Values were put at the end of a list, `kDone` for as many dictionaries as its number says.
  virtual void OnAppended(const PickleValue& /*list*/, std::span<const PickleValue> /*values*/) {}

  // A container, empty so far, can be referred to again by `reference`, from 1.
  virtual void OnStored(const PickleValue& /*container*/, int64_t /*reference*/) {}

  // False stops reading; asked after each `OnItems`.
  virtual bool wants_more() const { return true; }
};

// Returns the value that the pickle holds; `kNone` if the handler stopped it. Throws `InputError`
// with the offset.
PickleValue ReadPickle(ByteSource& source, PickleHandler& handler);

}  // namespace spillway

#endif  // SPILLWAY_TRACES_LOGS_PICKLE_H_
