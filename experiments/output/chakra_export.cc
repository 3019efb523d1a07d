#include "experiments/output/chakra_export.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <map>
#include <string_view>
#include <utility>
#include <vector>

#include "traces/base/error.h"

namespace spillway::lab {
namespace {

constexpr const char* kVersion = "0.0.4";

// NodeType of the schema.
constexpr uint64_t kMemLoad = 2, kMemStore = 3, kCompute = 4, kCollective = 7;

// CollectiveCommType of the schema, by their numbers.
constexpr std::array<std::string_view, 8> kCollectives = {
    "all_reduce", "reduce",    "all_gather", "gather",
    "scatter",    "broadcast", "all_to_all", "reduce_scatter"};

// A message in the encoding of protocol buffers. Fields have the numbers of the schema.
class Message {
 public:
  Message& Put(int field, uint64_t value) {
    PutVarint(static_cast<uint64_t>(field) << 3);
    return PutVarint(value);
  }
  Message& Put(int field, std::string_view bytes) {
    PutVarint(static_cast<uint64_t>(field) << 3 | 2);
    return Append(bytes);
  }
  // Adds a length and so many bytes, as messages stand in a file.
  Message& Append(std::string_view bytes) {
    PutVarint(bytes.size());
    bytes_ += bytes;
    return *this;
  }
  const std::string& bytes() const { return bytes_; }

 private:
  Message& PutVarint(uint64_t value) {
    for (; value >= 0x80; value >>= 7) bytes_ += static_cast<char>(value | 0x80);
    bytes_ += static_cast<char>(value);
    return *this;
  }

  std::string bytes_;
};

class Writer {
 public:
  Writer(const Trace& trace, const Report& report) : trace_(trace), report_(report) {}

  std::string Write() {
    file_.Append(Message().Put(1, kVersion).bytes());
    for (const TimelineEntry& entry : report_.timeline) {
      Message node = NodeOf(entry);
      PutAttribute(node, "is_cpu_op", 27, uint64_t{0});
      if (entry.kind != CommandKind::kKernel) {
        PutAttribute(node, "tensor_size", 13, Count(entry.size));
      } else if (entry.collective) {
        PutCollective(node, trace_.op(entry.op));
      } else {
        const Op& op = trace_.op(entry.op);
        PutAttribute(node, "num_ops", 9, static_cast<uint64_t>(op.flops()));
        PutAttribute(node, "tensor_size", 13, Count(BytesOf(op)));
      }
      file_.Append(node.bytes());
    }
    return file_.bytes();
  }

 private:
  static uint64_t Count(Bytes size) { return static_cast<uint64_t>(size.count()); }

  static void PutAttribute(Message& node, std::string_view name, int field, auto value) {
    node.Put(10, Message().Put(1, name).Put(field, value).bytes());
  }

  // Returns the node of a command with its name, type, dependencies and time.
  Message NodeOf(const TimelineEntry& entry) {
    const uint64_t id = ids_.size() + 1;
    const bool kernel = entry.kind == CommandKind::kKernel;
    Message node;
    node.Put(1, id).Put(2, kernel ? trace_.op(entry.op).name : trace_.tensor(entry.tensor).name);
    node.Put(3, kernel                               ? entry.collective ? kCollective : kCompute
                : entry.kind == CommandKind::kToHost ? kMemStore
                                                     : kMemLoad);
    const Stream stream = entry.event.stream;
    if (entry.event.sequence > 1) node.Put(4, ids_.at({stream, entry.event.sequence - 1}));
    for (uint32_t i = entry.first_wait; i < entry.first_wait + entry.wait_count; ++i) {
      const Event event = report_.waits[i].event;
      if (event && event.stream != stream) node.Put(5, ids_.at({event.stream, event.sequence}));
    }
    ids_.emplace(std::pair(stream, entry.event.sequence), id);
    Duration& left = left_[stream];
    left += entry.nominal;
    const uint64_t whole = Microseconds(left);
    left -= Duration::Microseconds(static_cast<int64_t>(whole));
    return node.Put(6, Microseconds(entry.interval.start)).Put(7, whole);
  }

  static uint64_t Microseconds(Duration time) {
    return static_cast<uint64_t>(time.picoseconds() / 1'000'000);
  }

  Bytes BytesOf(const Op& op) const {
    Bytes size;
    for (const TensorId id : op.inputs) size += trace_.tensor(id).size;
    for (const TensorId id : op.outputs) size += trace_.tensor(id).size;
    return size;
  }

  void PutCollective(Message& node, const Op& op) {
    const std::string_view signature = op.slots.front().signature;
    const std::string_view kind = signature.substr(0, signature.find(' '));
    const auto type = std::find(kCollectives.begin(), kCollectives.end(), kind);
    if (type == kCollectives.end()) {
      throw InputError(fmt::format(
          "op '{}' ({}): a Chakra trace names the other process, which this trace does not (valid: "
          "{})",
          op.name, kind, fmt::join(kCollectives, ", ")));
    }
    const std::pair members(op.NumberAttribute("ranks"), op.NumberAttribute("stride"));
    const auto group = groups_.try_emplace(members, groups_.size() + 1).first->second;
    PutAttribute(node, "comm_type", 9, static_cast<uint64_t>(type - kCollectives.begin()));
    PutAttribute(node, "comm_size", 9, static_cast<uint64_t>(op.NumberAttribute("bytes")));
    PutAttribute(node, "pg_name", 29, std::string_view(std::to_string(group)));
  }

  const Trace& trace_;
  const Report& report_;
  Message file_;
  std::map<std::pair<Stream, uint32_t>, uint64_t> ids_;  // by stream and number on it
  std::map<Stream, Duration> left_;                      // less than a microsecond
  std::map<std::pair<double, double>, size_t> groups_;
};

}  // namespace

std::string FormatChakra(const Trace& trace, const Report& report) {
  SPILLWAY_CHECK(report.fits());
  return Writer(trace, report).Write();
}

}  // namespace spillway::lab
