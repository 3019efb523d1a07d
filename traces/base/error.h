// The exceptions that Spillway throws, one small tree, and the check that guards its own
// invariants.
//
// Three channels, never mixed. An expected outcome (a block that does not fit) is an `optional` or
// a `bool`. Bad input or a missing environment is one of the exceptions below; its message names
// the place, the offending value and the valid ones. A bug is `SPILLWAY_CHECK`, which aborts. The
// library itself never prints and never exits: the command line maps each class to its exit code.
// This header is a leaf: it includes nothing of the project.

#ifndef SPILLWAY_TRACES_BASE_ERROR_H_
#define SPILLWAY_TRACES_BASE_ERROR_H_

#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

namespace spillway {

class Error : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

// The command line was used wrongly: an unknown name, an option out of range. Exit code 2.
class UsageError : public Error {
 public:
  using Error::Error;
};

// A file or a value has wrong contents. The message starts with the file and the place. Exit
// code 3.
class InputError : public Error {
 public:
  using Error::Error;
};

// A policy broke its contract, or a checker found a violated invariant. Exit code 4.
class PolicyError : public Error {
 public:
  using Error::Error;
};

// Something that the request needs is missing on this machine, a GPU for example. Exit code 5.
class EnvironmentError : public Error {
 public:
  using Error::Error;
};

// The result of `action()`. An `Error` that leaves it gets `context()` and a colon before its
// message and keeps its class; anything else passes as it is.
template <typename Action, typename Context>
auto WithContext(const Action& action, const Context& context) {
  const auto message = [&](const Error& error) {
    return std::string(context()) + ": " + error.what();
  };
  try {
    return action();
  } catch (const UsageError& error) {
    throw UsageError(message(error));
  } catch (const InputError& error) {
    throw InputError(message(error));
  } catch (const PolicyError& error) {
    throw PolicyError(message(error));
  } catch (const EnvironmentError& error) {
    throw EnvironmentError(message(error));
  } catch (const Error& error) {
    throw Error(message(error));
  }
}

// "unknown policy 'vdn-all'; did you mean 'vdnn-all'? (valid: a, b, c)". The suggestion is the
// valid name at the smallest edit distance, left out when none is close; `valid` keeps its order.
std::string UnknownName(std::string_view what, std::string_view name,
                        const std::vector<std::string>& valid);

// The text as a terminal may show it: control characters but line ends and tabs stand as "\x1b".
// What comes from a file or a plugin must not steer a terminal.
std::string Printable(std::string_view text);

// Aborts with the place and the condition. For bugs only.
[[noreturn]] void CheckFailed(const char* file, int line, const char* condition);

}  // namespace spillway

#define SPILLWAY_CHECK(condition) \
  (static_cast<bool>(condition) ? void(0) : ::spillway::CheckFailed(__FILE__, __LINE__, #condition))

#endif  // SPILLWAY_TRACES_BASE_ERROR_H_
