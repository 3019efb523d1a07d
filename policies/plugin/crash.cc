#include "policies/plugin/crash.h"

#include <unistd.h>

#include <array>
#include <atomic>
#include <csignal>
#include <cstring>
#include <memory>

namespace spillway {
namespace {

struct Crash {
  int signal;
  const char* name;
};
constexpr std::array kCrashes{Crash{SIGSEGV, "SIGSEGV"}, Crash{SIGBUS, "SIGBUS"},
                              Crash{SIGFPE, "SIGFPE"}, Crash{SIGILL, "SIGILL"},
                              Crash{SIGABRT, "SIGABRT"}};

// Every hook reads this, so it must be found without a call. The model allows that for the small
// amount of such memory in this module.
[[gnu::tls_model("initial-exec")]] thread_local const InHook* innermost = nullptr;
std::atomic<bool> naming = false;

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
    for (const Crash& crash : kCrashes) {
      if (crash.signal != signal) continue;
      Say(" (");
      Say(crash.name);
      Say(")");
    }
    Say("\n");
  }
  ::raise(signal);  // takes effect when this returns: SA_RESETHAND has restored the default
}

}  // namespace

InHook::InHook(const char* its_policy, const char* its_hook)
    : policy(its_policy), hook(its_hook), outer_(innermost) {
  if (outer_ == nullptr && naming) thread_local const HandlerStack stack;
  innermost = this;
}

InHook::~InHook() { innermost = outer_; }

void NameCrashes() {
  naming = true;
  for (const Crash& crash : kCrashes) {
    struct sigaction action {};
    if (::sigaction(crash.signal, nullptr, &action) != 0 || action.sa_handler != SIG_DFL) continue;
    action.sa_handler = OnCrash;
    action.sa_flags = static_cast<int>(SA_RESETHAND) | SA_ONSTACK;
    ::sigaction(crash.signal, &action, nullptr);
  }
}

}  // namespace spillway
