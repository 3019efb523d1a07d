#include "experiments/tools/sweep/checkpoint.h"

#include <fmt/format.h>

#include <chrono>
#include <system_error>
#include <utility>

#include "traces/base/error.h"

namespace spillway::lab {
namespace {

constexpr std::chrono::seconds kInterval{60};

}  // namespace

Checkpoint::Checkpoint(const SweepStore& store, std::filesystem::path path)
    : store_(store), path_(std::move(path)), watcher_([this] { Watch(); }) {}

Checkpoint::~Checkpoint() {
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  stop_.notify_all();
  watcher_.join();
}

void Checkpoint::Write() {
  const std::lock_guard lock(mutex_);
  store_.CopyTo(path_);
}

void Checkpoint::Watch() {
  std::unique_lock lock(mutex_);
  while (!stop_.wait_for(lock, kInterval, [&] { return stopping_; })) {
    try {
      store_.CopyTo(path_);
    } catch (const Error&) {  // the last copy is still there
    }
  }
}

void Checkpoint::Restore(const std::filesystem::path& copy, const std::filesystem::path& store) {
  std::error_code error;
  if (!std::filesystem::exists(copy, error) || std::filesystem::exists(store, error)) return;
  { const SweepStore checked(copy, SweepStore::Open::kExisting); }
  std::filesystem::copy_file(copy, store, error);
  if (error) {
    throw InputError(fmt::format("{}: cannot be copied to '{}': {}", copy.string(), store.string(),
                                 error.message()));
  }
}

}  // namespace spillway::lab
