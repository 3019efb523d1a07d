#include "traces/logs/text_logs.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <map>
#include <span>
#include <unordered_set>
#include <utility>

#include "traces/base/error.h"
#include "traces/base/json.h"
#include "traces/logs/address_table.h"
#include "traces/logs/block_numbers.h"

namespace spillway::traces {
namespace {

constexpr int64_t kLargest = int64_t{1} << 60;
constexpr int64_t kLargestBlock = int64_t{1} << 42;  // 4 TiB, so that sums do not overflow
constexpr size_t kMaxColumns = 64;

// Splits a CSV text into lines and fields. Quotes may enclose a field, but may not be inside one.
class CsvText {
 public:
  CsvText(std::string_view text, const std::string& origin) : rest_(text), origin_(origin) {}

  // Goes to the next line that is not empty. Returns false at the end.
  bool NextLine() {
    while (!rest_.empty()) {
      const size_t end = std::min(rest_.find('\n'), rest_.size());
      std::string_view line = rest_.substr(0, end);
      rest_.remove_prefix(std::min(end + 1, rest_.size()));
      ++number_;
      if (line.ends_with('\r')) line.remove_suffix(1);
      if (line.empty()) continue;
      line_ = line;
      Split(line);
      return true;
    }
    return false;
  }

  size_t fields() const { return count_; }
  std::string_view field(size_t i) const { return fields_[i]; }

  // Throws at field `at`, or at the beginning of the line if there is no such field.
  [[noreturn]] void Fail(std::string_view message, size_t at = kMaxColumns) const {
    const auto column = at < count_ ? fields_[at].data() - line_.data() : 0;
    throw InputError(fmt::format("{}:{}:{}: {}", origin_, number_, column + 1, message));
  }

  template <typename Integer>
  Integer Number(size_t column, std::string_view name, Integer smallest, Integer largest,
                 int base = 10) const {
    std::string_view text = fields_[column];
    if (base == 16 && (text.starts_with("0x") || text.starts_with("0X"))) text.remove_prefix(2);
    Integer value{};
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value, base);
    if (error != std::errc() || end != text.data() + text.size() || value < smallest ||
        value > largest) {
      Fail(fmt::format("{}: expected an integer from {} to {}, got \"{}\"", name, smallest, largest,
                       JsonExcerpt(fields_[column])),
           column);
    }
    return value;
  }

 private:
  void Split(std::string_view line) {
    count_ = 0;
    while (true) {
      if (count_ == kMaxColumns) Fail(fmt::format("more than {} columns", kMaxColumns));
      // A quoted field may contain commas.
      const size_t quote = line.starts_with('"') ? line.find('"', 1) : 0;
      if (quote == line.npos) Fail("the quote that opens here is not closed on its line", count_);
      const size_t end = std::min(line.find(',', quote), line.size());
      std::string_view field = line.substr(0, end);
      if (quote > 0 && field.ends_with('"')) field = field.substr(1, field.size() - 2);
      while (field.starts_with(' ')) field.remove_prefix(1);
      while (field.ends_with(' ')) field.remove_suffix(1);
      fields_[count_++] = field;
      if (end == line.size()) return;
      line.remove_prefix(end + 1);
    }
  }

  std::string_view rest_;
  std::string_view line_;
  const std::string& origin_;
  std::array<std::string_view, kMaxColumns> fields_;
  size_t count_ = 0;
  size_t number_ = 0;  // the current line's number
};

bool HasColumns(std::string_view line, std::span<const std::string_view> names) {
  const std::string origin;
  CsvText csv(line, origin);
  if (std::count(line.begin(), line.end(), ',') >= static_cast<int64_t>(kMaxColumns)) return false;
  try {
    if (!csv.NextLine()) return false;
  } catch (const InputError&) {
    return false;  // not a line of a CSV file
  }
  return std::all_of(names.begin(), names.end(), [&](std::string_view name) {
    for (size_t i = 0; i < csv.fields(); ++i) {
      if (csv.field(i) == name) return true;
    }
    return false;
  });
}

constexpr std::array<std::string_view, 4> kRmmColumns{"Action", "Pointer", "Size", "Stream"};
constexpr std::array<std::string_view, 4> kStaticColumns{"id", "lower", "upper", "size"};

// Returns the column of each name in the header line. Fails if there is no header line or a name is
// missing or occurs twice.
template <size_t count>
std::array<size_t, count> ReadHeader(CsvText& csv, const std::array<std::string_view, count>& names,
                                     size_t* columns) {
  std::array<size_t, count> found{};
  if (!csv.NextLine()) csv.Fail("the file is empty");
  for (size_t n = 0; n < count; ++n) {
    size_t at = 0;
    while (at < csv.fields() && csv.field(at) != names[n]) ++at;
    if (at == csv.fields()) {
      csv.Fail(fmt::format("the header lacks '{}' (needed: {})", names[n], fmt::join(names, ",")));
    }
    found[n] = at;
    while (++at < csv.fields()) {
      if (csv.field(at) == names[n])
        csv.Fail(fmt::format("the column '{}' occurs twice", names[n]), at);
    }
  }
  *columns = csv.fields();
  return found;
}

// A log whose events are kept in memory.
class StoredLog final : public MemoryLog {
 public:
  // `names[i]` describes the block that event i allocates.
  StoredLog(std::string_view format, std::vector<MemoryEvent> events,
            std::vector<std::string> names)
      : format_(format), events_(std::move(events)), names_(std::move(names)) {}

  std::string_view Format() const override { return format_; }
  const MemoryLogStart& start() const override { return start_; }
  std::string Describe(uint64_t index) const override {
    return index < names_.size() ? names_[index] : std::string();
  }
  void Walk(const std::function<bool(const MemoryEvent&)>& visit) const override {
    for (const MemoryEvent& event : events_) {
      if (!visit(event)) return;
    }
  }

 private:
  std::string_view format_;
  std::vector<MemoryEvent> events_;
  std::vector<std::string> names_;
  MemoryLogStart start_;
};

class RmmLog final : public MemoryLog {
 public:
  RmmLog(std::string contents, std::string origin)
      : contents_(std::move(contents)), origin_(std::move(origin)) {
    CsvText csv(contents_, origin_);
    columns_ = ReadHeader(csv, kRmmColumns, &column_count_);
  }

  std::string_view Format() const override { return "rmm"; }
  const MemoryLogStart& start() const override { return start_; }
  std::optional<uint64_t> LastFailure() const override {
    std::optional<uint64_t> last;
    Walk([&](const MemoryEvent& event) {
      if (event.kind == MemoryEvent::Kind::kFailed) last = event.index;
      return true;
    });
    return last;
  }

  void Walk(const std::function<bool(const MemoryEvent&)>& visit) const override {
    const auto [action, pointer, size, stream] = columns_;
    CsvText csv(contents_, origin_);
    csv.NextLine();
    AddressTable<uint32_t> live;
    BlockNumbers numbers;
    for (uint64_t index = 0; csv.NextLine(); ++index) {
      if (csv.fields() != column_count_) {
        csv.Fail(fmt::format("{} columns, but the header has {}", csv.fields(), column_count_));
      }
      MemoryEvent event;
      event.index = index;
      event.time = static_cast<int64_t>(index);
      event.size = Bytes(csv.Number<int64_t>(size, "Size", 0, kLargestBlock));
      event.stream = csv.Number<uint64_t>(stream, "Stream", 0, UINT64_MAX,
                                          csv.field(stream).starts_with("0x") ? 16 : 10);
      const std::string_view what = csv.field(action);
      if (what == "allocate failure") {
        event.kind = MemoryEvent::Kind::kFailed;
      } else {
        if (csv.field(pointer) != "(nil)") {
          event.address = csv.Number<uint64_t>(pointer, "Pointer", 0, UINT64_MAX, 16);
        }
        if (what == "allocate") {
          event.block = numbers.Take();
          if (!live.Insert(event.address, event.block)) {
            csv.Fail(fmt::format("allocates 0x{:x}, which is live", event.address), pointer);
          }
        } else if (what == "free") {
          event.kind = MemoryEvent::Kind::kFree;
          const uint32_t* const block = live.Find(event.address);
          if (block == nullptr) {
            if (event.address == 0) continue;
            csv.Fail(fmt::format("frees 0x{:x}, which is not live", event.address), pointer);
          }
          event.block = *block;
          live.Erase(event.address);
          numbers.Give(event.block);
        } else {
          csv.Fail(fmt::format("Action: \"{}\" (valid: allocate, free, allocate failure)",
                               JsonExcerpt(what)),
                   action);
        }
      }
      if (!visit(event)) return;
    }
  }

 private:
  std::string contents_;
  std::string origin_;
  std::array<size_t, 4> columns_{};
  size_t column_count_ = 0;
  MemoryLogStart start_;
};

}  // namespace

bool IsRmmHeader(std::string_view line) { return HasColumns(line, kRmmColumns); }
bool IsStaticHeader(std::string_view line) { return HasColumns(line, kStaticColumns); }

std::unique_ptr<MemoryLog> ParseRmmLog(std::string contents, const std::string& origin) {
  return std::make_unique<RmmLog>(std::move(contents), origin);
}

std::unique_ptr<MemoryLog> ParseStaticProblem(std::string_view contents,
                                              const std::string& origin) {
  CsvText csv(contents, origin);
  size_t columns = 0;
  const auto [id, lower, upper, size] = ReadHeader(csv, kStaticColumns, &columns);
  struct End {
    int64_t time;
    bool begins;  // at equal times, ends come first
    size_t order;
    uint32_t item;
  };
  std::vector<End> ends;
  std::vector<Bytes> sizes;
  std::vector<std::string> ids;
  std::unordered_set<std::string_view> known;
  while (csv.NextLine()) {
    if (csv.fields() != columns) {
      csv.Fail(fmt::format("{} columns, but the header has {}", csv.fields(), columns));
    }
    const auto begin = csv.Number<int64_t>(lower, "lower", -kLargest, kLargest);
    const auto end = csv.Number<int64_t>(upper, "upper", -kLargest, kLargest);
    if (begin >= end) csv.Fail(fmt::format("lower {} is not below upper {}", begin, end), upper);
    const auto item = static_cast<uint32_t>(sizes.size());
    if (!known.insert(csv.field(id)).second) {
      csv.Fail(fmt::format("the id '{}' is given twice", JsonExcerpt(csv.field(id))), id);
    }
    ids.push_back(JsonExcerpt(csv.field(id)));
    sizes.push_back(Bytes(csv.Number<int64_t>(size, "size", 0, kLargestBlock)));
    ends.push_back({begin, true, item, item});
    ends.push_back({end, false, item, item});
  }
  std::sort(ends.begin(), ends.end(), [](const End& a, const End& b) {
    return std::tie(a.time, a.begins, a.order) < std::tie(b.time, b.begins, b.order);
  });
  std::vector<MemoryEvent> events;
  events.reserve(ends.size());
  std::vector<std::string> names;
  std::vector<uint32_t> block_of(sizes.size());
  BlockNumbers numbers;
  for (const End& end : ends) {
    MemoryEvent event;
    event.kind = end.begins ? MemoryEvent::Kind::kAllocate : MemoryEvent::Kind::kFree;
    if (end.begins) block_of[end.item] = numbers.Take();
    event.block = block_of[end.item];
    if (!end.begins) numbers.Give(event.block);
    event.index = events.size();
    event.size = sizes[end.item];
    event.time = end.time;
    events.push_back(event);
    names.push_back(end.begins ? ids[end.item] : std::string());
  }
  return std::make_unique<StoredLog>("static", std::move(events), std::move(names));
}

std::unique_ptr<MemoryLog> ParseDecisionsLog(std::string_view contents, const std::string& origin) {
  JsonDocument json(contents, origin);
  using JsonValue = JsonDocument::Value;
  json.ReadHeader("spillway-decisions", 1);
  std::vector<MemoryEvent> events;
  std::vector<std::string> names;
  std::map<int64_t, uint32_t> live;  // by offset
  BlockNumbers numbers;
  const auto read = [&](JsonValue value) {
    std::string kind, arena, op, tensor;
    int64_t requested = 0, offset = 0;
    json.ReadObject(
        value, Required("op", [&](JsonValue v) { op = json.ReadString(v); }),
        Required("kind", [&](JsonValue v) { kind = json.ReadString(v); }),
        Required("arena", [&](JsonValue v) { arena = json.ReadString(v); }),
        Required("tensor", [&](JsonValue v) { tensor = json.ReadStringOrNull(v).value_or(""); }),
        Required("requested",
                 [&](JsonValue v) { requested = json.ReadInteger(v, 0, kLargestBlock); }),
        Required("offset", [&](JsonValue v) { offset = json.ReadInteger(v, 0, kLargest); }),
        Required("size", SkipJson));
    if (arena != "device") return;
    MemoryEvent event;
    event.index = events.size();
    event.time = static_cast<int64_t>(events.size());
    event.size = Bytes(requested);
    event.address = static_cast<uint64_t>(offset);
    if (kind == "allocate") {
      event.block = numbers.Take();
      if (!live.emplace(offset, event.block).second) json.Fail("allocates an offset that is live");
    } else if (kind == "free") {
      const auto found = live.find(offset);
      if (found == live.end()) json.Fail("frees an offset that is not live");
      event.kind = MemoryEvent::Kind::kFree;
      event.block = found->second;
      numbers.Give(event.block);
      live.erase(found);
    } else if (kind == "enter" || kind == "leave") {
      return;
    } else {
      json.Fail("kind: expected allocate, free, enter or leave");
    }
    events.push_back(event);
    names.push_back(fmt::format("{} at {}", tensor.empty() ? "(no tensor)" : tensor, op));
  };
  json.ReadRoot(Required("format", SkipJson), Required("version", SkipJson),
                Required("workload", SkipJson), Required("decisions", SkipJson),
                Required("placements", [&](JsonValue v) { json.ReadArray(v, read); }));
  return std::make_unique<StoredLog>("decisions", std::move(events), std::move(names));
}

}  // namespace spillway::traces
