// Which hook of which policy a thread is in, for whoever has to explain a crash.
//
// A signal handler can read the record: it is made of pointers alone. The library only keeps it;
// a program that wants crashes named asks for that once.

#ifndef SPILLWAY_POLICIES_PLUGIN_CRASH_H_
#define SPILLWAY_POLICIES_PLUGIN_CRASH_H_

namespace spillway {

// While it lives, the calling thread is in the hook `hook` of `policy`. Calls nest, as trial runs
// do. REQUIRES: both texts outlive it.
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

// From now on SIGSEGV, SIGBUS, SIGFPE, SIGILL and SIGABRT inside a hook write "spillway: policy 'x'
// crashed in its Plan (SIGSEGV)" on standard error; then the program ends of the signal, as it
// would have. A signal that has a handler already, such as a sanitizer's, is left to it.
void NameCrashes();

}  // namespace spillway

#endif  // SPILLWAY_POLICIES_PLUGIN_CRASH_H_
