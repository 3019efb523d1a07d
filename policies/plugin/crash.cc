#include "policies/plugin/crash.h"

#include <unistd.h>

#include <array>
#include <atomic>
#include <csignal>
#include <cstring>
#include <memory>

namespace spillway::policies {
namespace {

constexpr std::array kCrashes{SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGABRT};

// Every hook reads this, so it must be found without a call. The model allows that for the small
// amount of such memory in this module.
[[gnu::tls_model("initial-exec")]] thread_local const InHook* innermost = nullptr;
std::atomic<bool> naming = false;
HookRecord* record = nullptr;

template <size_t size>
void Copy(const char* text, char (&to)[size]) {
  to[::strnlen(text, size - 1)] = 0;
  std::memcpy(to, text, ::strnlen(text, size - 1));
}

void Record(const InHook& in) {
  Copy(in.policy, record->policy);
  Copy(in.hook, record->hook);
  Copy(in.op != nullptr ? in.op : "", record->op);
  record->inside = true;
}

// A stack for the handler, in case a policy has used up its own. Each thread needs one.
struct HandlerStack {
  HandlerStack() {
    stack_t stack{};
    stack.ss_sp = room.get();
    stack.ss_size = kRoom;
    ::sigaltstack(&stack, nullptr);
  }
  ~HandlerStack() {
    stack_t none{};
    none.ss_flags = SS_DISABLE;
    ::sigaltstack(&none, nullptr);
  }
  static constexpr size_t kRoom = 16384;
  const std::unique_ptr<char[]> room = std::make_unique<char[]>(kRoom);
};

// Writes the text to standard error. It only calls functions that a signal handler may call.
void Say(const char* text) {
  if (::write(STDERR_FILENO, text, std::strlen(text)) < 0) ::_exit(128);
}

void OnCrash(int signal) {
  if (innermost != nullptr) {
    Say("spillway: policy '");
    Say(innermost->policy);
    Say("' crashed in its ");
    Say(innermost->hook);
    if (innermost->op != nullptr) {
      Say(" at op ");
      Say(innermost->op);
    }
    Say(" (SIG");
    Say(::sigabbrev_np(signal));
    Say(")\n");
  }
  ::raise(signal);  // takes effect when this returns: SA_RESETHAND has restored the default
}

}  // namespace

InHook::InHook(const char* its_policy, const char* its_hook, const char* its_op)
    : policy(its_policy), hook(its_hook), op(its_op), outer_(innermost) {
  if (outer_ == nullptr && naming) thread_local const HandlerStack stack;
  innermost = this;
  if (record != nullptr) Record(*this);
}

InHook::~InHook() {
  innermost = outer_;
  if (record == nullptr) return;
  record->inside = false;
  if (outer_ != nullptr) Record(*outer_);
}

void NameCrashes() {
  naming = true;
  for (const int crash : kCrashes) {
    struct sigaction action {};
    if (::sigaction(crash, nullptr, &action) != 0 || action.sa_handler != SIG_DFL) continue;
    action.sa_handler = OnCrash;
    action.sa_flags = static_cast<int>(SA_RESETHAND) | SA_ONSTACK;
    ::sigaction(crash, &action, nullptr);
  }
}

void KeepHookRecord(HookRecord* kept) { record = kept; }

std::string NameOfSignal(int signal) {
  const char* name = ::sigabbrev_np(signal);
  return name != nullptr ? std::string("SIG") + name : "signal " + std::to_string(signal);
}

}  // namespace spillway::policies
