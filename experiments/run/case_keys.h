// The keys of a case.
//
// A key has the same name as command-line option, as key of an experiment file, as axis of a sweep
// and in manifests. `CaseKeys` is the only table of these keys.

#ifndef SPILLWAY_EXPERIMENTS_RUN_CASE_KEYS_H_
#define SPILLWAY_EXPERIMENTS_RUN_CASE_KEYS_H_

#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "experiments/run/case.h"

namespace spillway::lab {

// One key of a case: its name, its documentation, and how to read and write its value.
struct CaseKey {
  enum class Kind : uint8_t {
    kText,
    kTexts,  // may be given several times
    kFlag,
  };

  const char* name;  // "charge-input"
  Kind kind;
  const char* initial;  // the default as text; empty if there is none
  const char* values;   // "sim|cpu|cuda"; nullptr if any text may be given
  const char* help;
  // Sets the value from a text, which is "true" or "false" for a flag. Throws `UsageError` if the
  // text is invalid.
  void (*set)(Case&, const std::string& text);
  // Returns the value as text, which is empty if no value was given.
  std::string (*get)(const Case&);
  const char* empty = "no value is given";  // the error message for an empty text
  bool described = true;  // false: no result depends on the key, and manifests leave it out
};

// Returns all keys in the order in which a sweep varies them: the first key varies slowest.
std::span<const CaseKey> CaseKeys();
// Returns the key called `name`. REQUIRES: there is such a key.
const CaseKey& CaseKeyOf(std::string_view name);

// Returns the case as arguments of `spillway run` or `compare`. Options with their default values
// are left out, except the policy. If `policies` are given, they replace the policy of the case.
std::vector<std::string> ArgumentsOf(const Case& asked);
std::vector<std::string> ArgumentsOf(const Case& asked, const std::vector<std::string>& policies);
// Returns the arguments as one text, quoted for a shell.
std::string CommandOf(const Case& asked);
std::string CommandOf(const Case& asked, const std::vector<std::string>& policies);
// Returns `text` quoted so that a shell reads it as one word.
std::string Quoted(const std::string& text);

}  // namespace spillway::lab

#endif  // SPILLWAY_EXPERIMENTS_RUN_CASE_KEYS_H_
