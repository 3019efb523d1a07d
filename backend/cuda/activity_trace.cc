#include "backend/cuda/activity_trace.h"

#include "traces/base/error.h"

#ifndef SPILLWAY_HAS_CUPTI

namespace spillway::cuda {

struct ActivityTrace::Impl {};
ActivityTrace::ActivityTrace() {
  throw EnvironmentError("this build has no CUPTI: cupti.h was not found next to CUDA");
}
ActivityTrace::~ActivityTrace() = default;
void ActivityTrace::Start() {}
void ActivityTrace::BeginCommand(uint64_t) {}
void ActivityTrace::EndCommand() {}
std::map<uint64_t, ActivityTrace::Interval> ActivityTrace::Stop() { return {}; }

}  // namespace spillway::cuda

#else

#include <cuda_runtime_api.h>
#include <cupti.h>
#include <dlfcn.h>
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <limits>
#include <mutex>
#include <vector>

namespace spillway::cuda {
namespace {

constexpr std::array kKinds = {CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL,
                               CUPTI_ACTIVITY_KIND_MEMCPY,
                               CUPTI_ACTIVITY_KIND_MEMSET,
                               CUPTI_ACTIVITY_KIND_EXTERNAL_CORRELATION,
                               CUPTI_ACTIVITY_KIND_RUNTIME,
                               CUPTI_ACTIVITY_KIND_DRIVER};
// The records of the last two kinds only link a command's number to the work that it launched.

struct Activity {
  uint32_t correlation;
  uint64_t start, end;  // nanoseconds of CUPTI's clock
};

// The records that CUPTI's callbacks write. They are global because the callbacks have no user
// argument.
struct Records {
  std::mutex mutex;
  std::vector<Activity> activities;
  std::map<uint32_t, uint64_t> commands;  // command ids by correlation id
  uint64_t dropped = 0;
};

Records& TheRecords() {
  static auto* records = new Records;
  return *records;
}

// The functions of CUPTI that are used here, loaded from the machine's CUPTI library.
class Library {
 public:
  Library() {
    const std::string major = fmt::format("libcupti.so.{}", CUDART_VERSION / 1000);
    for (const std::string& name :
         {major, std::string("libcupti.so"),
          fmt::format("/usr/local/cuda/extras/CUPTI/lib64/{}", major),
          fmt::format("/usr/local/cuda/targets/x86_64-linux/lib/{}", major)}) {
      handle_ = dlopen(name.c_str(), RTLD_NOW | RTLD_LOCAL);
      if (handle_ != nullptr) break;
    }
    if (handle_ == nullptr) {
      throw EnvironmentError(
          fmt::format("cannot load CUPTI ({}): install CUDA's profiling tools, or add their folder "
                      "to LD_LIBRARY_PATH",
                      dlerror()));
    }
    Find(register_callbacks, "cuptiActivityRegisterCallbacks");
    Find(enable, "cuptiActivityEnable");
    Find(disable, "cuptiActivityDisable");
    Find(flush, "cuptiActivityFlushAll");
    Find(next_record, "cuptiActivityGetNextRecord");
    Find(dropped_records, "cuptiActivityGetNumDroppedRecords");
    Find(push, "cuptiActivityPushExternalCorrelationId");
    Find(pop, "cuptiActivityPopExternalCorrelationId");
    Find(result_string, "cuptiGetResultString");
  }

  void Check(CUptiResult result, const char* call) const {
    if (result == CUPTI_SUCCESS) return;
    const char* text = nullptr;
    result_string(result, &text);
    throw Error(fmt::format("{} failed: {}", call, text == nullptr ? "unknown error" : text));
  }

  decltype(&cuptiActivityRegisterCallbacks) register_callbacks = nullptr;
  decltype(&cuptiActivityEnable) enable = nullptr;
  decltype(&cuptiActivityDisable) disable = nullptr;
  decltype(&cuptiActivityFlushAll) flush = nullptr;
  decltype(&cuptiActivityGetNextRecord) next_record = nullptr;
  decltype(&cuptiActivityGetNumDroppedRecords) dropped_records = nullptr;
  decltype(&cuptiActivityPushExternalCorrelationId) push = nullptr;
  decltype(&cuptiActivityPopExternalCorrelationId) pop = nullptr;
  decltype(&cuptiGetResultString) result_string = nullptr;

 private:
  template <typename Function>
  void Find(Function& function, const char* name) const {
    function = reinterpret_cast<Function>(dlsym(handle_, name));
    if (function == nullptr) throw EnvironmentError(fmt::format("CUPTI has no {}", name));
  }

  void* handle_ = nullptr;  // never closed, because CUDA keeps hooks into it
};

const Library& TheLibrary() {
  static const auto* library = new Library;
  return *library;
}

constexpr size_t kBufferSize = 4 << 20;

void CUPTIAPI OfferBuffer(uint8_t** buffer, size_t* size, size_t* max_records) {
  *buffer = static_cast<uint8_t*>(std::aligned_alloc(8, kBufferSize));
  *size = *buffer == nullptr ? 0 : kBufferSize;
  *max_records = 0;  // no limit but the buffer's size
}

template <typename Record>
Activity ActivityOf(const CUpti_Activity* record) {
  const auto& activity = *reinterpret_cast<const Record*>(record);
  return {activity.correlationId, activity.start, activity.end};
}

void CUPTIAPI TakeBuffer(CUcontext context, uint32_t stream, uint8_t* buffer, size_t,
                         size_t valid_size) {
  const Library& library = TheLibrary();
  Records& records = TheRecords();
  const std::lock_guard lock(records.mutex);
  CUpti_Activity* record = nullptr;
  while (valid_size > 0 && library.next_record(buffer, valid_size, &record) == CUPTI_SUCCESS) {
    switch (record->kind) {
      case CUPTI_ACTIVITY_KIND_KERNEL:
      case CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL:
        records.activities.push_back(ActivityOf<CUpti_ActivityKernel10>(record));
        break;
      case CUPTI_ACTIVITY_KIND_MEMCPY:
        records.activities.push_back(ActivityOf<CUpti_ActivityMemcpy6>(record));
        break;
      case CUPTI_ACTIVITY_KIND_MEMSET:
        records.activities.push_back(ActivityOf<CUpti_ActivityMemset4>(record));
        break;
      case CUPTI_ACTIVITY_KIND_EXTERNAL_CORRELATION: {
        const auto& link = *reinterpret_cast<const CUpti_ActivityExternalCorrelation*>(record);
        records.commands[link.correlationId] = link.externalId;
        break;
      }
      default:
        break;
    }
  }
  size_t dropped = 0;
  library.dropped_records(context, stream, &dropped);
  records.dropped += dropped;
  std::free(buffer);
}

}  // namespace

struct ActivityTrace::Impl {
  const Library& library = TheLibrary();
  bool recording = false;
};

ActivityTrace::ActivityTrace() : impl_(std::make_unique<Impl>()) {
  impl_->library.Check(impl_->library.register_callbacks(&OfferBuffer, &TakeBuffer),
                       "cuptiActivityRegisterCallbacks");
}

ActivityTrace::~ActivityTrace() {
  if (!impl_->recording) return;
  for (const CUpti_ActivityKind kind : kKinds) static_cast<void>(impl_->library.disable(kind));
}

void ActivityTrace::Start() {
  const Library& library = impl_->library;
  {
    Records& records = TheRecords();
    const std::lock_guard lock(records.mutex);
    records.activities.clear();
    records.commands.clear();
    records.dropped = 0;
  }
  impl_->recording = true;
  for (const CUpti_ActivityKind kind : kKinds) {
    library.Check(library.enable(kind), "cuptiActivityEnable");
  }
}

void ActivityTrace::BeginCommand(uint64_t id) {
  impl_->library.Check(impl_->library.push(CUPTI_EXTERNAL_CORRELATION_KIND_CUSTOM0, id),
                       "cuptiActivityPushExternalCorrelationId");
}

void ActivityTrace::EndCommand() {
  uint64_t id = 0;
  impl_->library.Check(impl_->library.pop(CUPTI_EXTERNAL_CORRELATION_KIND_CUSTOM0, &id),
                       "cuptiActivityPopExternalCorrelationId");
}

std::map<uint64_t, ActivityTrace::Interval> ActivityTrace::Stop() {
  const Library& library = impl_->library;
  library.Check(library.flush(CUPTI_ACTIVITY_FLAG_FLUSH_FORCED), "cuptiActivityFlushAll");
  for (const CUpti_ActivityKind kind : kKinds) {
    library.Check(library.disable(kind), "cuptiActivityDisable");
  }
  impl_->recording = false;
  Records& records = TheRecords();
  const std::lock_guard lock(records.mutex);
  if (records.dropped > 0) {
    throw Error(fmt::format("CUPTI dropped {} records of the timeline", records.dropped));
  }
  // Time 0 is the start of the first command's work rather than `Start`, because CUPTI takes
  // milliseconds to prepare for the first kernel.
  uint64_t origin = std::numeric_limits<uint64_t>::max();
  for (const Activity& activity : records.activities) {
    if (records.commands.contains(activity.correlation)) origin = std::min(origin, activity.start);
  }
  const auto since_origin = [&](uint64_t time) {
    return Duration::Nanoseconds(static_cast<int64_t>(time - origin));
  };
  std::map<uint64_t, Interval> intervals;
  for (const Activity& activity : records.activities) {
    const auto command = records.commands.find(activity.correlation);
    if (command == records.commands.end()) continue;  // belongs to no command
    const Interval found{since_origin(activity.start), since_origin(activity.end)};
    const auto [entry, added] = intervals.try_emplace(command->second, found);
    if (added) continue;
    entry->second.start = std::min(entry->second.start, found.start);
    entry->second.end = std::max(entry->second.end, found.end);
  }
  return intervals;
}

}  // namespace spillway::cuda

#endif  // SPILLWAY_HAS_CUPTI
