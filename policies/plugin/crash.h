// A record of the hook that a thread is in, of its policy and of its op, to explain a crash.
//
// A signal handler can read the record, because it consists of pointers. The library only keeps the
// record; a program that wants crashes to be named calls `NameCrashes` once. A process that another
// process watches calls `KeepHookRecord`, which also covers ends that no handler sees.

#ifndef SPILLWAY_POLICIES_PLUGIN_CRASH_H_
#define SPILLWAY_POLICIES_PLUGIN_CRASH_H_

#include <string>

namespace spillway::policies {

// The hook that a policy entered last, as texts that end with a zero. Texts that are too long are
// cut off.
struct HookRecord {
  char policy[256];  // empty if no policy was called yet
  char hook[32];
  char op[480];  // empty if the hook belongs to no op
  bool inside;   // false if the hook has returned
};

// While an `InHook` lives, the calling thread is in the hook `hook` of `policy`, for the op called
// `op` unless that is nullptr. Objects nest, as trial runs do. REQUIRES: the texts outlive the
// object.
class InHook {
 public:
  InHook(const char* policy, const char* hook, const char* op = nullptr);
  InHook(const InHook&) = delete;
  InHook& operator=(const InHook&) = delete;
  ~InHook();

  const char* const policy;
  const char* const hook;
  const char* const op;

 private:
  const InHook* const outer_;
};

// Makes SIGSEGV, SIGBUS, SIGFPE, SIGILL and SIGABRT inside a hook write "spillway: policy 'x'
// crashed in its AfterOp at op conv1.fwd (SIGSEGV)" to standard error. Then the signal ends the
// program as it would have done without this. A signal that has a handler already, such as a
// sanitizer's, keeps that handler.
void NameCrashes();

// Makes every hook write itself to `record` when a thread enters it and when the thread returns
// from a hook within it. REQUIRES: `record` lives until the program ends; no thread is in a hook.
void KeepHookRecord(HookRecord* record);

// Returns the name of a signal, "SIGSEGV"; "signal 62" if it has no name.
std::string NameOfSignal(int signal);

}  // namespace spillway::policies

#endif  // SPILLWAY_POLICIES_PLUGIN_CRASH_H_
