// A record of the hook that a thread is in, and of its policy, to explain a crash.
//
// A signal handler can read the record, because it consists of pointers. The library only keeps the
// record; a program that wants crashes to be named calls `NameCrashes` once.

#ifndef SPILLWAY_POLICIES_PLUGIN_CRASH_H_
#define SPILLWAY_POLICIES_PLUGIN_CRASH_H_

namespace spillway {

// While an `InHook` lives, the calling thread is in the hook `hook` of `policy`. Objects nest, as
// trial runs do. REQUIRES: both texts outlive the object.
class InHook {
 public:
  InHook(const char* policy, const char* hook);
  InHook(const InHook&) = delete;
  InHook& operator=(const InHook&) = delete;
  ~InHook();

  const char* const policy;
  const char* const hook;

 private:
  const InHook* const outer_;
};

// Makes SIGSEGV, SIGBUS, SIGFPE, SIGILL and SIGABRT inside a hook write "spillway: policy 'x'
// crashed in its Plan (SIGSEGV)" to standard error. Then the signal ends the program as it would
// have done without this. A signal that has a handler already, such as a sanitizer's, keeps that
// handler.
void NameCrashes();

}  // namespace spillway

#endif  // SPILLWAY_POLICIES_PLUGIN_CRASH_H_
