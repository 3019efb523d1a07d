#include "traces/logs/snapshot_records.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <functional>
#include <limits>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>

#include "traces/base/error.h"
#include "traces/base/json.h"
#include "traces/logs/pickle.h"

namespace spillway::traces {
namespace {

using Kind = PickleValue::Kind;

// Strings of interest, numbered from 1.
enum Key : uint32_t {
  kNoKey,
  kAction,
  kAddr,
  kSize,
  kStream,
  kTimeUs,
  kAddress,
  kRequestedSize,
  kState,
  kTotalSize,
  kSegmentType,
  kIsExpandable,
  kBlocks,
  kDevice,
  kMaxSplitSize,
  kGarbageCollectionThreshold,
  kExpandableSegments,
  kRoundupDivisions,
  kAllocConf,
  kFirstNotModelled,
  kEndNotModelled = kFirstNotModelled + 8,
  kSegments = kEndNotModelled,
  kDeviceTraces,
  kAllocatorSettings,
  kDeviceFree,
  kFrames,
  kFilename,
  kLine,
  kName,
  kKeyEnd,
};
constexpr std::array<std::string_view, kKeyEnd> kKeys{"",
                                                      "action",
                                                      "addr",
                                                      "size",
                                                      "stream",
                                                      "time_us",
                                                      "address",
                                                      "requested_size",
                                                      "state",
                                                      "total_size",
                                                      "segment_type",
                                                      "is_expandable",
                                                      "blocks",
                                                      "device",
                                                      "max_split_size",
                                                      "garbage_collection_threshold",
                                                      "expandable_segments",
                                                      "roundup_power2_divisions",
                                                      "PYTORCH_CUDA_ALLOC_CONF",
                                                      "backend",
                                                      "graph_capture_record_stream_reuse",
                                                      "per_process_memory_fraction",
                                                      "pinned_num_register_threads",
                                                      "pinned_reserve_segment_size_mb",
                                                      "pinned_use_background_threads",
                                                      "pinned_use_cuda_host_register",
                                                      "release_lock_on_cudamalloc",
                                                      "segments",
                                                      "device_traces",
                                                      "allocator_settings",
                                                      "device_free",
                                                      "frames",
                                                      "filename",
                                                      "line",
                                                      "name"};

// Strings that are values of interest, numbered after the keys.
enum Word : uint32_t {
  kFirstAction = kKeyEnd,
  kSmall = kFirstAction + 10,
  kLarge,
  kActiveAllocated,
  kActivePendingFree,
  kActiveAwaitingFree,
  kInactive,
  kConfiguration,  // the text of all settings
  kFirstPower,     // "1", "2", "4", ...
};
constexpr std::array<std::string_view, 10> kActions{
    "alloc",       "free_requested", "free_completed", "segment_alloc", "segment_free",
    "segment_map", "segment_unmap",  "snapshot",       "oom",           "user_defined"};
constexpr std::array<std::string_view, 6> kWords{
    "small",   "large", "active_allocated", "active_pending_free", "active_awaiting_free",
    "inactive"};
constexpr uint32_t kPowers = 31;
constexpr uint32_t kFirstText = kFirstPower + kPowers;  // texts of stack frames
constexpr uint32_t kMostTexts = 65535 - kFirstText;

constexpr int64_t kLargest = int64_t{1} << 60;
constexpr int64_t kLargestBlock = int64_t{1} << 42;  // 4 TiB, so that sums do not overflow
constexpr int64_t kMostDivisions = int64_t{1} << 20;

// Settings of `PYTORCH_CUDA_ALLOC_CONF` that a snapshot also records one by one.
constexpr std::array<std::pair<std::string_view, Key>, 4> kOneByOne{
    {{"max_split_size_mb", kMaxSplitSize},
     {"garbage_collection_threshold", kGarbageCollectionThreshold},
     {"roundup_power2_divisions", kRoundupDivisions},
     {"expandable_segments", kExpandableSegments}}};

std::string_view Trimmed(std::string_view text) {
  while (text.starts_with(' ')) text.remove_prefix(1);
  while (text.ends_with(' ')) text.remove_suffix(1);
  return text;
}

class Handler final : public PickleHandler {
 public:
  Handler(ByteSource& source, const std::function<bool(const SnapshotEvent&)>& visit, bool frames)
      : source_(source), visit_(visit), wants_frames_(frames) {}

  uint32_t NameOf(std::string_view text) override {
    const uint32_t name = KnownName(text);
    const bool follows_key = std::exchange(expects_configuration_, name == kAllocConf);
    if (name == kNoKey && follows_key) {
      configuration_ = text;
      return kConfiguration;
    }
    return name == kNoKey && wants_frames_ ? TextOf(text) : name;
  }
  static uint32_t KnownName(std::string_view text) {
    for (uint32_t key = 1; key < kKeys.size(); ++key) {
      if (kKeys[key] == text) return key;
    }
    for (uint32_t i = 0; i < kActions.size(); ++i) {
      if (kActions[i] == text) return kFirstAction + i;
    }
    for (uint32_t i = 0; i < kWords.size(); ++i) {
      if (kWords[i] == text) return kSmall + i;
    }
    return text == "PYTORCH_ALLOC_CONF" ? uint32_t{kAllocConf} : PowerOf(text);
  }

  bool OnItems(const PickleValue& dict, std::span<const PickleValue> items,
               std::span<const PickleValue> below) override {
    present_ = 0;
    for (size_t i = 0; i < items.size(); i += 2) {
      if (items[i].kind != Kind::kString) continue;
      const uint32_t key = items[i].name;
      if (key - 1 < kKeyEnd - 1) {
        present_ |= uint64_t{1} << key;
        values_[key] = items[i + 1];
      } else if (key >= kFirstPower && key < kFirstText) {
        return OnDivisions(dict, items);
      }
    }
    if (present_ == 0) return true;
    if (Has(kAction)) return OnEvent(below);
    if (Has(kFilename)) return OnFrame(dict);
    if (Has(kState)) return OnBlock(below);
    if (Has(kBlocks)) return OnSegment(below);
    if (Has(kMaxSplitSize) || Has(kExpandableSegments) || Has(kAllocConf)) return OnSettings(dict);
    if (Has(kSegments) || Has(kDeviceTraces) || Has(kAllocatorSettings)) return OnRoot(dict);
    return true;
  }

  void OnAppended(const PickleValue& list, std::span<const PickleValue> values) override {
    if (wants_frames_) OnStack(list, values);
  }

  void OnStored(const PickleValue& container, int64_t reference) override {
    (container.kind == Kind::kList ? stored_list_ : stored_dict_) = {container.number, reference};
  }

  bool wants_more() const override { return wants_more_; }

  SnapshotRecords Finish(const PickleValue& root) {
    if (root.kind != Kind::kDict || !root_ || *root_ != root.number) {
      Fail("not a memory snapshot: the root has no 'segments' and 'device_traces'");
    }
    if (segments_list_ < 0 || traces_list_ < 0) {
      Fail(fmt::format("the snapshot lacks '{}'",
                       segments_list_ < 0 ? "segments" : "device_traces"));
    }
    if (!segments_.empty() && segments_of_ != segments_list_) Fail("segments outside 'segments'");
    if (outer_list_ >= 0 && outer_list_ != traces_list_) Fail("traces outside 'device_traces'");
    if (!has_settings_) settings_.reset();
    return {std::move(segments_), settings_, Stacks()};
  }

 private:
  [[noreturn]] void Fail(std::string_view message) const {
    source_.Fail(source_.offset(), message);
  }

  static uint32_t PowerOf(std::string_view text) {
    uint32_t value = 0;
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
    if (error != std::errc() || end != text.data() + text.size()) return kNoKey;
    for (uint32_t power = 0; power < kPowers; ++power) {
      if (value == uint32_t{1} << power) return kFirstPower + power;
    }
    return kNoKey;
  }

  // Returns a number for a text of a stack frame, or kNoKey if there are too many texts.
  uint32_t TextOf(std::string_view text) {
    const auto found = text_numbers_.find(text);
    if (found != text_numbers_.end()) return found->second;
    if (texts_.size() == kMostTexts) return kNoKey;
    const auto number = static_cast<uint32_t>(kFirstText + texts_.size());
    texts_.emplace_back(text);
    text_numbers_.emplace(text, number);
    return number;
  }
  std::string Text(Key key) const {
    const uint32_t name = values_[key].kind == Kind::kString ? values_[key].name : kNoKey;
    if (name >= kFirstText) return texts_[name - kFirstText];
    if (name == kNoKey || name >= kConfiguration) return "?";
    return std::string(name < kKeyEnd  ? kKeys[name]
                       : name < kSmall ? kActions[name - kFirstAction]
                                       : kWords[name - kSmall]);
  }

  // Records a frame. A pickle may write a frame or a stack once and refer to it later.
  bool OnFrame(const PickleValue& dict) {
    if (!wants_frames_) return true;
    const bool has_line = Has(kLine) && values_[kLine].kind == Kind::kInteger;
    const StackFrame frame{Text(kFilename), has_line ? values_[kLine].number : 0, Text(kName)};
    const StackFrame* const known = &*frames_.insert(frame).first;
    if (stored_dict_.number == dict.number) frame_of_.emplace(stored_dict_.reference, known);
    pending_.push_back(known);
    return true;
  }

  // Records a stack, which is a list of frames.
  void OnStack(const PickleValue& list, std::span<const PickleValue> values) {
    std::vector<const StackFrame*> frames;
    // A long list comes in several parts.
    if (list.number == stack_.list) frames = *stack_.frames;
    const size_t before = frames.size();
    size_t next = 0;
    for (const PickleValue& value : values) {
      if (value.kind == Kind::kDone) {
        for (int64_t i = 0; i < value.number && next < pending_.size(); ++i) {
          frames.push_back(pending_[next++]);
        }
      } else if (value.kind == Kind::kOther) {
        const auto found = frame_of_.find(value.number);
        if (found != frame_of_.end()) frames.push_back(found->second);
      }
    }
    pending_.clear();
    if (frames.size() == before) return;
    const auto [at, added] = stacks_.emplace(std::move(frames), stacks_.size() + 1);
    stack_ = {list.number, at->second, &at->first};
    if (stored_list_.number == list.number) stack_of_[stored_list_.reference] = at->second;
  }

  // Returns the number of the stack of the current event or block, or 0 if it has none.
  uint32_t StackAtHand() const {
    if (!wants_frames_ || !Has(kFrames)) return 0;
    const PickleValue& frames = values_[kFrames];
    if (frames.kind == Kind::kList) return frames.number == stack_.list ? stack_.number : 0;
    const auto found =
        frames.kind == Kind::kOther ? stack_of_.find(frames.number) : stack_of_.end();
    return found == stack_of_.end() ? 0 : found->second;
  }

  std::vector<Stack> Stacks() const {
    std::vector<Stack> stacks(stacks_.size() + 1);
    for (const auto& [frames, number] : stacks_) {
      for (const StackFrame* const frame : frames) stacks[number].push_back(*frame);
    }
    return stacks;
  }

  bool Has(Key key) const { return (present_ >> key & 1) != 0; }

  int64_t Integer(Key key, int64_t smallest = 0, int64_t largest = kLargest) const {
    if (!Has(key)) Fail(fmt::format("a record lacks '{}'", kKeys[key]));
    const PickleValue& value = values_[key];
    if (value.kind != Kind::kInteger || value.number < smallest || value.number > largest) {
      Fail(fmt::format("'{}': expected an integer from {} to {}", kKeys[key], smallest, largest));
    }
    return value.number;
  }
  int64_t IntegerOr(Key key, int64_t fallback) const { return Has(key) ? Integer(key) : fallback; }
  bool BoolOr(Key key, bool fallback) const {
    if (!Has(key)) return fallback;
    if (values_[key].kind != Kind::kBool) Fail(fmt::format("'{}': expected a bool", kKeys[key]));
    return values_[key].number != 0;
  }
  int64_t List(Key key) const {
    if (values_[key].kind != Kind::kList) Fail(fmt::format("'{}': expected a list", kKeys[key]));
    return values_[key].number;
  }
  // Returns the stream. It may be a handle or an address, so any 64 bits are valid.
  uint64_t Stream() const {
    if (!Has(kStream)) return 0;
    if (values_[kStream].kind != Kind::kInteger) Fail("'stream': expected an integer");
    return static_cast<uint64_t>(values_[kStream].number);
  }

  // Returns the index in `below` of the list to which the dictionary on top of it will be appended.
  static std::optional<size_t> ListBelow(std::span<const PickleValue> below) {
    size_t at = below.size();
    while (at > 0 && below[at - 1].kind == Kind::kDone) --at;
    if (at > 0 && below[at - 1].kind == Kind::kMark) --at;
    if (at == 0 || below[at - 1].kind != Kind::kList) return std::nullopt;
    return at - 1;
  }

  bool OnEvent(std::span<const PickleValue> below) {
    const auto list = ListBelow(below);
    if (!list) return true;
    if (below[*list].number != trace_list_) {
      if (!EnterTrace(below.first(*list))) return true;
      trace_list_ = below[*list].number;
      index_ = 0;
    }
    const PickleValue& action = values_[kAction];
    if (action.kind != Kind::kString || action.name < kFirstAction ||
        action.name >= kFirstAction + kActions.size()) {
      Fail(fmt::format("unknown action of an event (valid: {})", fmt::join(kActions, ", ")));
    }
    SnapshotEvent event;
    event.action = static_cast<SnapshotAction>(action.name - kFirstAction);
    event.device = device_;
    event.index = index_++;
    event.offset = source_.offset();
    const PickleValue& time = values_[kTimeUs];
    const bool has_time = Has(kTimeUs) && time.kind == Kind::kInteger && time.number > 0;
    event.time = has_time ? std::min(time.number, kLargest) : 0;
    event.stream = Stream();
    if (event.action != SnapshotAction::kSnapshot && event.action != SnapshotAction::kUserDefined) {
      event.size = Bytes(Integer(kSize, 0, kLargestBlock));
      if (event.action != SnapshotAction::kOutOfMemory) {
        event.address = static_cast<uint64_t>(Integer(kAddr));
      } else if (Has(kDeviceFree)) {
        event.device_free = Bytes(Integer(kDeviceFree));
      }
    }
    event.stack = StackAtHand();
    wants_more_ = visit_(event);
    return true;
  }

  // Enters a trace and finds its device from the stack below it: the lists of earlier devices, the
  // list of all devices, and its key. Returns false if the list is not a trace.
  bool EnterTrace(std::span<const PickleValue> below) {
    size_t at = below.size();
    int before = 0;
    if (at == 0) return false;
    const auto is_list = [&](size_t i) {  // it may have been written before
      return below[i].kind == Kind::kList || below[i].kind == Kind::kOther;
    };
    if (below[at - 1].kind != Kind::kMark) {
      while (at > 1 && is_list(at - 1) && is_list(at - 2)) {
        --at;
        ++before;
      }
      if (at > 1 && is_list(at - 1) && below[at - 2].kind == Kind::kMark) {
        --at;
        ++before;
      }
    }
    if (at > 0 && below[at - 1].kind == Kind::kMark) --at;
    if (at < 2 || below[at - 1].kind != Kind::kList || below[at - 2].kind != Kind::kString ||
        below[at - 2].name != kDeviceTraces) {
      return false;
    }
    outer_list_ = below[at - 1].number;
    device_ = before;
    return true;
  }

  bool OnBlock(std::span<const PickleValue> below) {
    const auto list = ListBelow(below);
    if (!list) return true;
    const PickleValue& state = values_[kState];
    if (state.kind != Kind::kString || state.name < kActiveAllocated || state.name > kInactive) {
      Fail(fmt::format("unknown state of a block (valid: {})",
                       fmt::join(kWords.begin() + 2, kWords.end(), ", ")));
    }
    SnapshotBlock block;
    block.size = Bytes(Integer(kSize, 0, kLargestBlock));
    block.address = Has(kAddress) ? static_cast<uint64_t>(Integer(kAddress)) : 0;
    block.live = state.name != kInactive;
    if (block.live) {
      block.requested = Bytes(IntegerOr(kRequestedSize, block.size.count()));
      block.stack = StackAtHand();
    }
    if (below[*list].number != blocks_list_) blocks_.clear();
    blocks_list_ = below[*list].number;
    blocks_.push_back(std::move(block));
    return true;
  }

  bool OnSegment(std::span<const PickleValue> below) {
    const auto list = ListBelow(below);
    if (!list) return true;
    if (segments_of_ >= 0 && segments_of_ != below[*list].number) Fail("segments in two lists");
    segments_of_ = below[*list].number;
    SnapshotSegment segment;
    segment.device = static_cast<int>(Has(kDevice) ? Integer(kDevice, 0, 1 << 16) : 0);
    segment.address = static_cast<uint64_t>(Integer(kAddress));
    segment.size = Bytes(Integer(kTotalSize, 0, kLargestBlock));
    segment.stream = Stream();
    if (Has(kSegmentType)) {
      const PickleValue& type = values_[kSegmentType];
      if (type.kind != Kind::kString || (type.name != kSmall && type.name != kLarge)) {
        Fail("unknown 'segment_type' (valid: small, large)");
      }
      segment.small = type.name == kSmall;
    }
    segment.expandable = BoolOr(kIsExpandable, false);
    if (List(kBlocks) == blocks_list_) {
      segment.blocks.swap(blocks_);
      blocks_list_ = -1;
    }
    Bytes at;
    for (SnapshotBlock& block : segment.blocks) {
      const uint64_t address = segment.address + static_cast<uint64_t>(at.count());
      if (block.address == 0) block.address = address;
      if (block.size > segment.size - at || block.address != address ||
          (block.live && block.requested > block.size)) {
        Fail("the blocks of a segment do not lie one after the other in it");
      }
      at += block.size;
    }
    segments_.push_back(std::move(segment));
    return true;
  }

  bool OnDivisions(const PickleValue& dict, std::span<const PickleValue> items) {
    divisions_.clear();
    for (size_t i = 0; i < items.size(); i += 2) {
      const uint32_t name = items[i].kind == Kind::kString ? items[i].name : 0;
      if (name < kFirstPower || items[i + 1].kind != Kind::kInteger) return true;
      const int64_t number = items[i + 1].number;
      if (number != 0) divisions_.emplace_back(int64_t{1} << (name - kFirstPower), number);
    }
    divisions_dict_ = dict.number;
    return false;
  }

  bool OnSettings(const PickleValue& dict) {
    settings_dict_ = dict.number;
    PyTorchSettings& settings = settings_.emplace();
    if (Has(kMaxSplitSize)) {
      const int64_t size = Integer(kMaxSplitSize, -1, std::numeric_limits<int64_t>::max());
      if (size >= 0 && size < kLargest) settings.max_split_size = Bytes(size);
    }
    if (Has(kGarbageCollectionThreshold)) {
      const PickleValue& value = values_[kGarbageCollectionThreshold];
      const bool zero = value.kind == Kind::kInteger && value.number == 0;
      if (!zero && !(value.kind == Kind::kReal && value.real >= 0 && value.real < 1)) {
        Fail("'garbage_collection_threshold': expected a number from 0 to less than 1");
      }
      if (!zero) settings.garbage_collection_threshold = value.real;
    }
    if (Has(kAllocConf) && values_[kAllocConf].kind == Kind::kString &&
        values_[kAllocConf].name == kConfiguration) {
      ReadConfiguration(settings);
    }
    ReadNotModelled(settings);
    settings.expandable_segments = BoolOr(kExpandableSegments, false);
    if (Has(kRoundupDivisions) && values_[kRoundupDivisions].kind == Kind::kDict &&
        values_[kRoundupDivisions].number == divisions_dict_) {
      for (const auto& [power, number] : divisions_) {
        if (number > 0 && number <= kMostDivisions && (number & (number - 1)) == 0) continue;
        Fail(fmt::format("'roundup_power2_divisions': expected 0 or a power of two up to {}",
                         kMostDivisions));
      }
      settings.roundup_power2_divisions = divisions_;
    }
    return false;
  }

  // Reads the settings that only `configuration_` has: "key:value" between commas, where a list in
  // brackets may contain more commas.
  void ReadConfiguration(PyTorchSettings& settings) const {
    std::string_view rest = configuration_;
    while (!rest.empty()) {
      size_t end = 0;
      for (int depth = 0; end < rest.size() && (depth > 0 || rest[end] != ','); ++end) {
        depth += rest[end] == '[' ? 1 : rest[end] == ']' ? -1 : 0;
      }
      const std::string_view entry = Trimmed(rest.substr(0, end));
      rest.remove_prefix(std::min(end + 1, rest.size()));
      const size_t colon = std::min(entry.find(':'), entry.size());
      const std::string_view key = Trimmed(entry.substr(0, colon));
      const std::string_view value = Trimmed(entry.substr(std::min(colon + 1, entry.size())));
      if (key == "max_non_split_rounding_mb") {
        settings.max_non_split_rounding = MebibytesOf(key, value, 20);
      } else if (key == "large_segment_size_mb") {
        settings.large_segment_size = MebibytesOf(key, value, 11);
      } else if (std::ranges::none_of(kOneByOne, [&](const auto& one) {
                   return one.first == key && Has(one.second);
                 })) {
        AddNotModelled(settings, key, value);
      }
    }
  }

  Bytes MebibytesOf(std::string_view key, std::string_view text, int64_t least) const {
    constexpr int64_t kMost = kLargest >> 20;
    int64_t mebibytes = 0;
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), mebibytes);
    if (error != std::errc() || end != text.data() + text.size() || mebibytes < least ||
        mebibytes > kMost) {
      Fail(fmt::format("'{}': expected a whole number from {} to {}", key, least, kMost));
    }
    return Bytes::MiB(mebibytes);
  }

  // Adds the settings that are not modelled and that are recorded one by one. PyTorch's defaults
  // are false, 0 or 1.
  void ReadNotModelled(PyTorchSettings& settings) const {
    for (uint32_t key = kFirstNotModelled; key < kEndNotModelled; ++key) {
      if (!Has(static_cast<Key>(key))) continue;
      const PickleValue& value = values_[key];
      if (value.kind == Kind::kBool && value.number == 1) {
        AddNotModelled(settings, kKeys[key], "True");
      } else if (value.kind == Kind::kInteger && value.number != 0 && value.number != 1) {
        AddNotModelled(settings, kKeys[key], fmt::format("{}", value.number));
      } else if (value.kind == Kind::kReal && value.real != 0 && value.real != 1) {
        AddNotModelled(settings, kKeys[key], fmt::format("{}", value.real));
      }
    }
  }

  // Adds a setting, unless it has its default or its key is there already.
  static void AddNotModelled(PyTorchSettings& settings, std::string_view key,
                             std::string_view value) {
    if (key.empty() || value == "False" || (key == "backend" && value == "native")) return;
    const std::string start = fmt::format("{}:", JsonExcerpt(key));
    const bool known = std::ranges::any_of(settings.not_modelled, [&](const std::string& setting) {
      return setting.starts_with(start);
    });
    if (!known) settings.not_modelled.push_back(start + JsonExcerpt(value));
  }

  bool OnRoot(const PickleValue& dict) {
    if (root_ && *root_ != dict.number) Fail("two objects have the keys of a snapshot");
    root_ = dict.number;
    if (Has(kSegments)) segments_list_ = List(kSegments);
    if (Has(kDeviceTraces)) traces_list_ = List(kDeviceTraces);
    if (Has(kAllocatorSettings)) {
      has_settings_ = true;
      const PickleValue& value = values_[kAllocatorSettings];
      if (value.kind != Kind::kDict || value.number != settings_dict_) settings_.reset();
    }
    return false;
  }

  ByteSource& source_;
  const std::function<bool(const SnapshotEvent&)>& visit_;
  bool wants_more_ = true;

  uint64_t present_ = 0;  // bits of the keys in the current dictionary
  std::array<PickleValue, kKeyEnd> values_;

  const bool wants_frames_;
  std::vector<std::string> texts_;
  std::map<std::string, uint32_t, std::less<>> text_numbers_;
  std::set<StackFrame> frames_;
  struct Stored {
    int64_t number = -1;
    int64_t reference = 0;
  };
  Stored stored_dict_, stored_list_;                         // the latest of each
  std::vector<const StackFrame*> pending_;                   // not in a list yet
  std::unordered_map<int64_t, const StackFrame*> frame_of_;  // by reference of the dictionary
  std::unordered_map<int64_t, uint32_t> stack_of_;           // by reference of the list
  std::map<std::vector<const StackFrame*>, uint32_t> stacks_;
  struct {
    int64_t list = -1;
    uint32_t number = 0;
    const std::vector<const StackFrame*>* frames = nullptr;
  } stack_;  // the latest list of frames

  int64_t trace_list_ = -1;  // the current trace
  int64_t outer_list_ = -1;  // the list of all traces
  int device_ = 0;
  uint64_t index_ = 0;

  int64_t blocks_list_ = -1;
  std::vector<SnapshotBlock> blocks_;  // the blocks of the list `blocks_list_`
  int64_t segments_of_ = -1;
  std::vector<SnapshotSegment> segments_;

  std::string configuration_;           // the text of all settings; see `kConfiguration`
  bool expects_configuration_ = false;  // the last known string was the key of `configuration_`
  int64_t divisions_dict_ = -1;
  std::vector<std::pair<int64_t, int64_t>> divisions_;
  int64_t settings_dict_ = -1;
  std::optional<PyTorchSettings> settings_;
  bool has_settings_ = false;

  std::optional<int64_t> root_;
  int64_t segments_list_ = -1;
  int64_t traces_list_ = -1;
};

}  // namespace

SnapshotRecords ReadSnapshotRecords(ByteSource& source,
                                    const std::function<bool(const SnapshotEvent&)>& visit,
                                    bool frames) {
  Handler handler(source, visit, frames);
  const PickleValue root = ReadPickle(source, handler);
  if (!handler.wants_more()) return {};
  return handler.Finish(root);
}

}  // namespace spillway::traces
