#include "sim/compression/workers.h"

#include <utility>

#include "traces/base/error.h"

namespace spillway::sim {

Workers::Workers(int threads) {
  SPILLWAY_CHECK(threads >= 1);
  for (int i = 1; i < threads; ++i) threads_.emplace_back([this] { Work(); });
}

Workers::~Workers() {
  {
    const std::lock_guard lock(mutex_);
    stop_ = true;
  }
  begin_.notify_all();
  for (std::thread& thread : threads_) thread.join();
}

void Workers::Run(size_t count, const std::function<void(size_t)>& task) {
  if (threads_.empty() || count <= 1) {
    for (size_t i = 0; i < count; ++i) task(i);
    return;
  }
  std::unique_lock lock(mutex_);
  task_ = &task;
  next_ = 0;
  count_ = unfinished_ = count;
  begin_.notify_all();
  Drain(lock);
  end_.wait(lock, [&] { return unfinished_ == 0; });
  task_ = nullptr;
  if (error_) std::rethrow_exception(std::exchange(error_, nullptr));
}

void Workers::Drain(std::unique_lock<std::mutex>& lock) {
  while (task_ != nullptr && next_ < count_) {
    const size_t mine = next_++;
    const std::function<void(size_t)>& task = *task_;
    lock.unlock();
    std::exception_ptr error;
    try {
      task(mine);
    } catch (...) {
      error = std::current_exception();
    }
    lock.lock();
    if (error && !error_) error_ = error;
    if (--unfinished_ == 0) end_.notify_all();
  }
}

void Workers::Work() {
  std::unique_lock lock(mutex_);
  for (;;) {
    begin_.wait(lock, [&] { return stop_ || (task_ != nullptr && next_ < count_); });
    if (stop_) return;
    Drain(lock);
  }
}

}  // namespace spillway::sim
