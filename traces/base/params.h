// The parameters of one policy or allocator: each named, typed, defaulted, documented and read in
// one expression.
//
//   Params params("vdnn-all", {{"algo", "memory"}});
//   const std::string algo = params.Choice("algo", "performance", {"memory", "performance"},
//                                          "which convolution algorithms to use");
//   params.Finish();
//
// What was read is also what `help` prints, so the documentation cannot disagree with the code.

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

namespace spillway {

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

  // `owner` stands in messages.
  Params(std::string owner, Values values) : owner_(std::move(owner)), values_(std::move(values)) {}

  // The readers return the value given or the default. Throw `UsageError` that names the owner, the
  // parameter, the value and the valid ones.
  std::string Choice(const std::string& name, const std::string& initial,
                     const std::vector<std::string>& valid, const std::string& help);
  // The same where each name stands for a value of the caller's: {{"lru", Cache::kLru}, ...}.
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
  // A number from 0 to 1.
  double Share(const std::string& name, double initial, const std::string& help);
  // Any text, for the caller to read; `type` says what it takes.
  std::string Text(const std::string& name, const std::string& type, const std::string& initial,
                   const std::string& help);
  // "unlimited" is a size where it is the default.
  Bytes Size(const std::string& name, Bytes initial, const std::string& help);

  // Throws `UsageError` if a value was given that no reader asked for.
  void Finish() const;

  const std::vector<ParamInfo>& declared() const { return declared_; }

 private:
  // Declares the parameter and returns the text given, or nullptr.
  const std::string* Declare(ParamInfo info);

  std::string owner_;
  Values values_;
  std::vector<ParamInfo> declared_;
};

// What a command line says of a policy or allocator: NAME or NAME:key=value,key=value. Commas
// within brackets belong to a value: key=[1:2,3:4].
struct Specification {
  std::string name;
  Params::Values values;
};

// `kind` ("policy") stands in messages. Throws `UsageError` for an item that is not key=value and
// for a key given twice.
Specification ParseSpecification(std::string_view kind, std::string_view text);

// Where the first comma outside of brackets is; the size of the text if there is none.
size_t FindComma(std::string_view text);

}  // namespace spillway

#endif  // SPILLWAY_TRACES_BASE_PARAMS_H_
