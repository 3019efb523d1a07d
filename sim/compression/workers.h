// A fixed number of threads that share a list of tasks, such as the threads of a codec.

#ifndef SPILLWAY_SIM_COMPRESSION_WORKERS_H_
#define SPILLWAY_SIM_COMPRESSION_WORKERS_H_

#include <condition_variable>
#include <cstddef>
#include <exception>
#include <functional>
#include <mutex>
#include <thread>
#include <vector>

namespace spillway::sim {

class Workers {
 public:
  // The caller of `Run` is one of the threads. REQUIRES: threads >= 1.
  explicit Workers(int threads);
  ~Workers();
  Workers(const Workers&) = delete;
  Workers& operator=(const Workers&) = delete;

  // Calls task(0) to task(count - 1), each once, in any order and on any thread. Returns when all
  // tasks have returned. If tasks throw, throws the first exception. REQUIRES: no other `Run` is in
  // progress.
  void Run(size_t count, const std::function<void(size_t)>& task);

 private:
  void Work();
  // Runs tasks until none is left. `lock` holds `mutex_`.
  void Drain(std::unique_lock<std::mutex>& lock);

  std::mutex mutex_;
  std::condition_variable begin_, end_;
  const std::function<void(size_t)>* task_ = nullptr;
  size_t next_ = 0;
  size_t count_ = 0;
  size_t unfinished_ = 0;
  std::exception_ptr error_;
  bool stop_ = false;
  std::vector<std::thread> threads_;
};

}  // namespace spillway::sim

#endif  // SPILLWAY_SIM_COMPRESSION_WORKERS_H_
