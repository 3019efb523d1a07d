#include "experiments/cli/frame/interrupts.h"

#include <pthread.h>
#include <unistd.h>

#include <string_view>

namespace spillway::cli {
namespace {

bool IsIgnored(int signal) {
  struct sigaction action {};
  return ::sigaction(signal, nullptr, &action) == 0 && action.sa_handler == SIG_IGN;
}

}  // namespace

Interrupts::Interrupts() {
  ::sigemptyset(&signals_);
  for (const int signal : {SIGINT, SIGTERM}) {
    if (!IsIgnored(signal)) ::sigaddset(&signals_, signal);
  }
  // Every thread that is started later inherits the mask.
  ::pthread_sigmask(SIG_BLOCK, &signals_, nullptr);
  if (::sigisemptyset(&signals_) == 0) watcher_ = std::thread([this] { Watch(); });
}

Interrupts::~Interrupts() {
  if (!watcher_.joinable()) return;
  stopping_ = true;
  for (const int signal : {SIGINT, SIGTERM}) {
    if (::sigismember(&signals_, signal) == 1) {
      ::pthread_kill(watcher_.native_handle(), signal);
      break;
    }
  }
  watcher_.join();
}

void Interrupts::Watch() {
  int signal = 0;
  if (::sigwait(&signals_, &signal) != 0 || stopping_) return;
  const std::lock_guard lock(writing_);
  try {
    if (before_end_) before_end_();
  } catch (...) {  // an error must not keep the program from ending
  }
  constexpr std::string_view kMessage = "spillway: interrupted\n";
  const bool terminal = ::isatty(STDERR_FILENO) == 1;
  if (terminal && ::write(STDERR_FILENO, "\n", 1) != 1) ::_exit(128 + signal);
  // If the message cannot be written, the exit code alone tells of the interrupt.
  if (::write(STDERR_FILENO, kMessage.data(), kMessage.size()) < 0) ::_exit(128 + signal);
  ::_exit(128 + signal);
}

}  // namespace spillway::cli
