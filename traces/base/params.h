// The parameters of one policy or allocator. One expression names, types, documents and reads a
// parameter and gives its default.
//
//   Params params("vdnn-all", {{"algo", "memory"}});
//   const std::string algo = params.Choice("algo", "performance", {"memory", "performance"},
//                                          "which convolution algorithms to use");
//   params.Finish();
//
// `help` prints the parameters that were read, so the documentation cannot disagree with the code.

#ifndef SPILLWAY_TRACES_BASE_PARAMS_H_
#define SPILLWAY_TRACES_BASE_PARAMS_H_

#include <algorithm>
#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "traces/base/units.h"

namespace spillway::traces {

// A parameter as declared by the code that read it.
struct ParamInfo {
  std::string name;
  std::string type;     // "memory|performance", "integer", "size", "true|false"
  std::string initial;  // the default, spelled as on the command line
  std::string help;
};

class Params {
 public:
  using Values = std::map<std::string, std::string, std::less<>>;

  // `owner` is the name of the policy or allocator in messages.
  Params(std::string owner, Values values) : owner_(std::move(owner)), values_(std::move(values)) {}

  // The readers return the given value, or `initial` if none was given. They throw a `UsageError`
  // that names the owner, the parameter, the value and the valid values.
  std::string Choice(const std::string& name, const std::string& initial,
                     const std::vector<std::string>& valid, const std::string& help);
  // Like `Choice`, but returns the caller's value for the chosen name: {{"lru", Cache::kLru}, ...}.
  template <typename T>
  T Enum(const std::string& name, const std::string& initial,
         const std::vector<std::pair<std::string, T>>& valid, const std::string& help) {
    std::vector<std::string> names;
    for (const auto& [text, value] : valid) names.push_back(text);
    const std::string chosen = Choice(name, initial, names, help);
    return valid[static_cast<size_t>(std::find(names.begin(), names.end(), chosen) - names.begin())]
        .second;
  }
  int64_t Integer(const std::string& name, int64_t initial, int64_t least, int64_t greatest,
                  const std::string& help);
  bool Flag(const std::string& name, bool initial, const std::string& help);
  // Reads a number from 0 to 1.
  double Share(const std::string& name, double initial, const std::string& help);
  // Reads any text. `type` says in `help` which texts are valid.
  std::string Text(const std::string& name, const std::string& type, const std::string& initial,
                   const std::string& help);
  // Reads a size. Accepts "unlimited" only if `initial` is `Bytes::Unlimited()`.
  Bytes Size(const std::string& name, Bytes initial, const std::string& help);

  // Throws `UsageError` if a value was given for a parameter that was not read.
  void Finish() const;

  const std::vector<ParamInfo>& declared() const { return declared_; }

 private:
  // Declares the parameter. Returns the given text, or nullptr if none was given.
  const std::string* Declare(ParamInfo info);

  std::string owner_;
  Values values_;
  std::vector<ParamInfo> declared_;
};

// The name and values of a policy or allocator on the command line: NAME or
// NAME:key=value,key=value. Commas within brackets belong to a value: key=[1:2,3:4].
struct Specification {
  std::string name;
  Params::Values values;
};

// Parses a specification. `kind` ("policy") is the kind of thing in messages. Throws `UsageError`
// for an item that is not key=value, for a bracket or quote left open, and for a key given twice.
Specification ParseSpecification(std::string_view kind, std::string_view text);

// Returns the index of the first comma outside of brackets, or the size of the text if there is
// none.
size_t FindComma(std::string_view text);

}  // namespace spillway::traces

#endif  // SPILLWAY_TRACES_BASE_PARAMS_H_
