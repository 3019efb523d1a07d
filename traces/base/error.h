// The exceptions that Spillway throws, and the check that guards its invariants.
//
// There are three channels. An expected outcome (a block that does not fit) is an `optional` or a
// `bool`. Bad input or a missing environment is one of the exceptions below; its message names the
// place, the offending value and the valid values. A bug fails a `SPILLWAY_CHECK`, which aborts.
// The library itself never prints and never exits: the command line maps each class to its exit
// code. This header is a leaf: it includes no other header of the project.

#ifndef SPILLWAY_TRACES_BASE_ERROR_H_
#define SPILLWAY_TRACES_BASE_ERROR_H_

#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

#include "traces/base/namespaces.h"

namespace spillway::traces {

class Error : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

// The command line was used wrongly, for example with an unknown name or an option out of range.
// Exit code 2.
class UsageError : public Error {
 public:
  using Error::Error;
};

// A file or a value has wrong contents. The message starts with the file and the place. Exit code
// 3.
class InputError : public Error {
 public:
  using Error::Error;
};

// A policy broke its contract, or a checker found a violated invariant. Exit code 4.
class PolicyError : public Error {
 public:
  using Error::Error;
};

// Something that the request needs is missing on this machine, for example a GPU. Exit code 5.
class EnvironmentError : public Error {
 public:
  using Error::Error;
};

// Returns the result of `action()`. If `action` throws an `Error`, throws an error of the same
// class whose message starts with `context()` and a colon. Other exceptions pass unchanged.
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

// Returns a message such as "unknown policy 'vdn-all'; did you mean 'vdnn-all'? (valid: a, b, c)".
// Suggests the valid name at the smallest edit distance, or none if no name is close. Lists `valid`
// in its order.
std::string UnknownName(std::string_view what, std::string_view name,
                        const std::vector<std::string>& valid);

// Returns the text with each control character spelled as an escape such as "\x1b", except for line
// ends and tabs. Text from a file or a plugin must not control the terminal.
std::string Printable(std::string_view text);

// Prints the place and the condition, and aborts. Called for bugs only.
[[noreturn]] void CheckFailed(const char* file, int line, const char* condition);

}  // namespace spillway::traces

#define SPILLWAY_CHECK(condition)         \
  (static_cast<bool>(condition) ? void(0) \
                                : ::spillway::traces::CheckFailed(__FILE__, __LINE__, #condition))

#endif  // SPILLWAY_TRACES_BASE_ERROR_H_
