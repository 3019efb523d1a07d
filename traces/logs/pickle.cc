#include "traces/logs/pickle.h"

#include <fmt/format.h>

#include <array>
#include <bit>
#include <memory>
#include <vector>

namespace spillway::traces {
namespace {

using Kind = PickleValue::Kind;

// More than any sensible nesting of data needs; picklers write lists in batches of 1000.
constexpr size_t kLargestStack = size_t{1} << 20;
constexpr size_t kLongestName = 1024;

// The opcodes have the names of Python's pickletools.
enum Opcode : uint8_t {
  kMark = '(',
  kStop = '.',
  kNone = 'N',
  kBinInt = 'J',
  kBinInt1 = 'K',
  kBinInt2 = 'M',
  kBinFloat = 'G',
  kBinUnicode = 'X',
  kBinBytes = 'B',
  kShortBinBytes = 'C',
  kEmptyDict = '}',
  kEmptyList = ']',
  kEmptyTuple = ')',
  kAppend = 'a',
  kAppends = 'e',
  kSetItem = 's',
  kSetItems = 'u',
  kTuple = 't',
  kBinGet = 'h',
  kLongBinGet = 'j',
  kBinPut = 'q',
  kLongBinPut = 'r',
  kProto = 0x80,
  kTuple1 = 0x85,
  kTuple2 = 0x86,
  kTuple3 = 0x87,
  kNewTrue = 0x88,
  kNewFalse = 0x89,
  kLong1 = 0x8a,
  kLong4 = 0x8b,
  kShortBinUnicode = 0x8c,
  kBinUnicode8 = 0x8d,
  kBinBytes8 = 0x8e,
  kEmptySet = 0x8f,
  kAddItems = 0x90,
  kFrozenSet = 0x91,
  kMemoize = 0x94,
  kFrame = 0x95,
  kByteArray8 = 0x96,
};

struct RefusedOpcode {
  uint8_t opcode;
  std::string_view name;
};
constexpr RefusedOpcode kRefused[] = {
    {'c', "GLOBAL"},
    {0x93, "STACK_GLOBAL"},
    {'R', "REDUCE"},
    {'b', "BUILD"},
    {'i', "INST"},
    {'o', "OBJ"},
    {0x81, "NEWOBJ"},
    {0x92, "NEWOBJ_EX"},
    {0x82, "EXT1"},
    {0x83, "EXT2"},
    {0x84, "EXT4"},
    {'P', "PERSID"},
    {'Q', "BINPERSID"},
    {'0', "POP"},
    {'1', "POP_MARK"},
    {'2', "DUP"},
    {'I', "INT"},
    {'L', "LONG"},
    {'F', "FLOAT"},
    {'S', "STRING"},
    {'T', "BINSTRING"},
    {'U', "SHORT_BINSTRING"},
    {'V', "UNICODE"},
    {'l', "LIST"},
    {'d', "DICT"},
    {'g', "GET"},
    {'p', "PUT"},
    {0x97, "NEXT_BUFFER"},
    {0x98, "READONLY_BUFFER"},
};

// Maps the index of a stored value to its name, if the value is a string that the handler knows.
// Indices are assigned in order.
class Memo {
 public:
  uint64_t size() const { return size_; }

  void Put(uint64_t index, const PickleValue& value) {
    const uint32_t name = value.kind == Kind::kString ? value.name : 0;
    if (index == size_) {
      if (size_ % kPage == 0) pages_.emplace_back();
      ++size_;
    }
    auto& page = pages_[index / kPage];
    if (page == nullptr) {
      if (name == 0) return;
      page = std::make_unique<Page>();
    }
    (*page)[index % kPage] = static_cast<uint16_t>(name);
  }

  PickleValue Get(uint64_t index) const {
    const auto& page = pages_[index / kPage];
    const uint32_t name = page == nullptr ? 0 : (*page)[index % kPage];
    PickleValue value;
    value.kind = name == 0 ? Kind::kOther : Kind::kString;
    value.name = name;
    return value;
  }

 private:
  static constexpr uint64_t kPage = 1024;
  using Page = std::array<uint16_t, kPage>;
  std::vector<std::unique_ptr<Page>> pages_;
  uint64_t size_ = 0;
};

class Reader {
 public:
  Reader(ByteSource& source, PickleHandler& handler) : source_(source), handler_(handler) {}

  PickleValue Read();

 private:
  [[noreturn]] void Fail(std::string_view message) const { source_.Fail(at_, message); }

  void Push(Kind kind, int64_t number = 0, uint32_t name = 0) {
    if (stack_.size() == kLargestStack) Fail("too deeply nested, or a container too large");
    PickleValue& value = stack_.emplace_back();
    value.kind = kind;
    value.name = name;
    value.number = number;
  }

  // Removes values from the top of the stack. Fails at a mark.
  void Pop(size_t count) {
    while (count > 0) {
      if (stack_.empty() || stack_.back().kind == Kind::kMark) Fail("there is no value to take");
      PickleValue& top = stack_.back();
      --count;
      if (top.kind == Kind::kDone && top.number > 1) {
        --top.number;
      } else {
        stack_.pop_back();
      }
    }
  }

  // Returns the index of the topmost mark.
  size_t FindMark() {
    size_t at = stack_.size();
    while (at > 0 && stack_[at - 1].kind != Kind::kMark) --at;
    if (at == 0) Fail("there is no mark to go back to");
    return at - 1;
  }

  void Tuple(size_t count) {
    Pop(count);
    Push(Kind::kOther);
  }

  // Appends the values from index `items` on to the list before `end`.
  void Append(size_t end, size_t items) {
    if (end == 0 || items > stack_.size() || stack_[end - 1].kind != Kind::kList) {
      Fail("appends to a value that is not a list, or that has been read already");
    }
    for (size_t i = items; i < stack_.size(); ++i) {
      if (stack_[i].kind == Kind::kMark) Fail("appends a mark");
    }
    handler_.OnAppended(stack_[end - 1], std::span<const PickleValue>(stack_).subspan(items));
    stack_.resize(end);
  }

  // Adds the values from index `items` on to the dictionary before `end`.
  bool SetItems(size_t end, size_t items) {
    if (end == 0 || items > stack_.size() || stack_[end - 1].kind != Kind::kDict) {
      Fail("puts items into a value that is not a dictionary, or that has been read already");
    }
    if ((stack_.size() - items) % 2 != 0) Fail("a key without a value");
    for (size_t i = items; i < stack_.size(); ++i) {
      const PickleValue& value = stack_[i];
      if (value.kind == Kind::kMark || (value.kind == Kind::kDone && value.number > 1)) {
        Fail("a key without a value");
      }
    }
    const std::span<const PickleValue> stack(stack_);
    const bool done = handler_.OnItems(stack[end - 1], stack.subspan(items), stack.first(end - 1));
    stack_.resize(end);
    if (done) {
      stack_.back().kind = Kind::kDone;
      stack_.back().number = 1;
      // Adjacent finished dictionaries become one value, so that the stack stays short for long
      // lists, even if a pickler writes them in one piece.
      if (end >= 3 && stack_[end - 2].kind == Kind::kDone && stack_[end - 3].kind == Kind::kMark) {
        ++stack_[end - 2].number;
        stack_.pop_back();
      }
    }
    return handler_.wants_more();
  }

  void String(uint64_t length) {
    if (length > kLongestName) {
      source_.Skip(length);
      return Push(Kind::kString);
    }
    const auto* const text = reinterpret_cast<const char*>(source_.Take(length));
    Push(Kind::kString, 0, handler_.NameOf({text, length}));
  }

  void Other(uint64_t length) {
    source_.Skip(length);
    Push(Kind::kOther);
  }

  void Long(uint64_t length) {
    if (length > 9) return Other(length);
    if (length == 9) {  // an unsigned integer of 8 bytes has a ninth for its sign
      const auto value = source_.TakeInteger<8>();
      const bool is_unsigned = source_.TakeInteger<1>() == 0;
      return is_unsigned ? Push(Kind::kInteger, static_cast<int64_t>(value)) : Push(Kind::kOther);
    }
    uint64_t value = 0;
    if (length > 0) {
      value = source_.TakeInteger(length);
      const auto above = static_cast<int>(64 - 8 * length);  // bits that the sign fills
      value = static_cast<uint64_t>(static_cast<int64_t>(value << above) >> above);
    }
    Push(Kind::kInteger, static_cast<int64_t>(value));
  }

  void Get(uint64_t index) {
    if (index >= memo_.size())
      Fail(fmt::format("refers to value {}, which is not stored yet", index));
    const PickleValue value = memo_.Get(index);
    Push(value.kind, value.kind == Kind::kOther ? static_cast<int64_t>(index) + 1 : 0, value.name);
  }

  void Put(uint64_t index) {
    if (index > memo_.size()) {
      Fail(fmt::format("stores value {} before value {}", index, memo_.size()));
    }
    if (stack_.empty() || stack_.back().kind == Kind::kMark) Fail("there is no value to store");
    const PickleValue& value = stack_.back();
    memo_.Put(index, value);
    if (value.kind == Kind::kList || value.kind == Kind::kDict) {
      handler_.OnStored(value, static_cast<int64_t>(index) + 1);
    }
  }

  // Executes one opcode. Returns false at the end of the pickle. It is inlined into the loop,
  // because it runs once for every few bytes.
  [[gnu::always_inline]] inline bool Step();
  [[noreturn]] void Refuse(uint8_t opcode) const;
  void Stop();

  ByteSource& source_;
  PickleHandler& handler_;
  std::vector<PickleValue> stack_;
  Memo memo_;
  uint64_t at_ = 0;  // offset of the current opcode
  int64_t containers_ = 0;
  PickleValue result_;
};

bool Reader::Step() {
  at_ = source_.offset();
  const auto opcode = static_cast<uint8_t>(source_.TakeInteger<1>());
  switch (opcode) {
    case kMark:
      Push(Kind::kMark);
      return true;
    case kStop:
      Stop();
      return false;
    case kNone:
      Push(Kind::kNone);
      return true;
    case kNewTrue:
      Push(Kind::kBool, 1);
      return true;
    case kNewFalse:
      Push(Kind::kBool, 0);
      return true;
    case kBinInt:
      Push(Kind::kInteger, static_cast<int32_t>(source_.TakeInteger<4>()));
      return true;
    case kBinInt1:
      Push(Kind::kInteger, static_cast<int64_t>(source_.TakeInteger<1>()));
      return true;
    case kBinInt2:
      Push(Kind::kInteger, static_cast<int64_t>(source_.TakeInteger<2>()));
      return true;
    case kLong1:
      Long(source_.TakeInteger<1>());
      return true;
    case kLong4:
      Long(source_.TakeInteger<4>());
      return true;
    case kBinFloat:
      Push(Kind::kReal);
      stack_.back().real = std::bit_cast<double>(__builtin_bswap64(source_.TakeInteger<8>()));
      return true;
    case kShortBinUnicode:
      String(source_.TakeInteger<1>());
      return true;
    case kBinUnicode:
      String(source_.TakeInteger<4>());
      return true;
    case kBinUnicode8:
      String(source_.TakeInteger<8>());
      return true;
    case kShortBinBytes:
      Other(source_.TakeInteger<1>());
      return true;
    case kBinBytes:
      Other(source_.TakeInteger<4>());
      return true;
    case kBinBytes8:
    case kByteArray8:
      Other(source_.TakeInteger<8>());
      return true;
    case kEmptyDict:
      Push(Kind::kDict, containers_++);
      return true;
    case kEmptyList:
      Push(Kind::kList, containers_++);
      return true;
    case kEmptyTuple:
    case kEmptySet:
      Push(Kind::kOther);
      return true;
    case kTuple1:
      Tuple(1);
      return true;
    case kTuple2:
      Tuple(2);
      return true;
    case kTuple3:
      Tuple(3);
      return true;
    case kTuple:
    case kFrozenSet:
      stack_.resize(FindMark());
      Push(Kind::kOther);
      return true;
    case kAddItems:
      stack_.resize(FindMark());
      if (stack_.empty() || stack_.back().kind != Kind::kOther)
        Fail("adds to a value that is no set");
      return true;
    case kAppend:
      if (stack_.size() < 2) Fail("there is no value to take");
      Append(stack_.size() - 1, stack_.size() - 1);
      return true;
    case kAppends: {
      const size_t mark = FindMark();
      Append(mark, mark + 1);
      return true;
    }
    case kSetItem:
      if (stack_.size() < 3) Fail("there is no value to take");
      return SetItems(stack_.size() - 2, stack_.size() - 2);
    case kSetItems: {
      const size_t mark = FindMark();
      return SetItems(mark, mark + 1);
    }
    case kMemoize:
      Put(memo_.size());
      return true;
    case kBinPut:
      Put(source_.TakeInteger<1>());
      return true;
    case kLongBinPut:
      Put(source_.TakeInteger<4>());
      return true;
    case kBinGet:
      Get(source_.TakeInteger<1>());
      return true;
    case kLongBinGet:
      Get(source_.TakeInteger<4>());
      return true;
    case kFrame: {
      const uint64_t length = source_.TakeInteger<8>();
      if (length > source_.remaining()) {
        Fail(fmt::format("a frame of {} bytes, but {} follow", length, source_.remaining()));
      }
      return true;
    }
    default:
      Refuse(opcode);
  }
}

PickleValue Reader::Read() {
  const auto proto = source_.TakeInteger<1>();
  if (proto != kProto) source_.Fail(0, "not a pickle of protocol 2 to 5");
  const auto protocol = source_.TakeInteger<1>();
  if (protocol < 2 || protocol > 5) {
    source_.Fail(1, fmt::format("pickle protocol {} (valid: 2 to 5)", protocol));
  }
  while (Step()) {
  }
  return result_;
}

void Reader::Refuse(uint8_t opcode) const {
  for (const RefusedOpcode& refused : kRefused) {
    if (refused.opcode == opcode) {
      Fail(fmt::format("opcode {} is refused: only plain data is read, such as a memory snapshot",
                       refused.name));
    }
  }
  Fail(fmt::format("0x{:02x} is not an opcode of a pickle", opcode));
}

void Reader::Stop() {
  if (stack_.size() != 1 || stack_.back().kind == Kind::kMark) {
    Fail("the pickle ends with values left over");
  }
  if (source_.remaining() != 0) Fail("data follow the end of the pickle");
  result_ = stack_.back();
}

}  // namespace

PickleValue ReadPickle(ByteSource& source, PickleHandler& handler) {
  return Reader(source, handler).Read();
}

}  // namespace spillway::traces
