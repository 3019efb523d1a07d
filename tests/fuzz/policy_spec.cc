// Fuzz target: policy specifications and their parameters.
//
// Parsing a specification loses nothing. Making its policy works or throws `UsageError`. So does
// making a policy with one parameter of every type. Plugins are never loaded.

#include <memory>
#include <string>

#include "policies/plugin/library.h"
#include "policies/registry.h"
#include "tests/fuzz/property.h"

namespace spillway::fuzz {
namespace {

class Idle final : public Policy {};

void RegisterAllTypes(PolicyRegistry& registry) {
  registry.Add("all", "One parameter of every type.", [](Params& params) {
    const std::string choice = params.Choice("choice", "a", {"a", "b"}, "a choice");
    SPILLWAY_CHECK(choice == "a" || choice == "b");
    const int64_t integer = params.Integer("integer", 1, -5, 5, "an integer");
    SPILLWAY_CHECK(integer >= -5 && integer <= 5);
    params.Flag("flag", false, "a flag");
    SPILLWAY_CHECK(params.Size("size", Bytes::MiB(1), "a size") >= Bytes(0));
    return std::make_unique<Idle>();
  });
}

// Returns the shortest specification that means `spec`. The name of a plugin's policy and its colon
// may be left out only if the parameters cannot be mistaken for a name.
std::string Spell(const PolicySpec& spec) {
  std::string text = spec.plugin;
  const std::string first = spec.parameters.substr(0, spec.parameters.find(':'));
  const bool name_left_out =
      spec.policy.empty() && (spec.parameters.empty() || first.find('=') != std::string::npos);
  if (!spec.plugin.empty() && !name_left_out) text += ':';
  text += spec.policy;
  if (!spec.parameters.empty()) text += ':' + spec.parameters;
  return text;
}

void CheckSpelling(std::string_view text) {
  const PolicySpec spec = ParsePolicySpec(text);
  const std::string spelling = Spell(spec);
  SPILLWAY_CHECK(spelling.size() <= text.size());
  const PolicySpec again = ParsePolicySpec(spelling);
  SPILLWAY_CHECK(again.plugin == spec.plugin && again.policy == spec.policy &&
                 again.parameters == spec.parameters);
}

// Returns true if `run` returns, and false if it throws a `UsageError` with a message.
template <typename Run>
bool IsUsable(const Run& run) {
  try {
    run();
    return true;
  } catch (const UsageError& error) {
    SPILLWAY_CHECK(!std::string_view(error.what()).empty());
    return false;
  }
}

}  // namespace
}  // namespace spillway::fuzz

int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace spillway::fuzz;
  const std::string text(Text(data, size));
  CheckSpelling(text);
  PolicyRegistry registry;
  RegisterAllTypes(registry);
  IsUsable([&] { SPILLWAY_CHECK(registry.Make(text) != nullptr); });
  IsUsable([&] { SPILLWAY_CHECK(registry.Make("all:" + text) != nullptr); });
  if (!ParsePolicySpec(text).plugin.empty()) return 0;
  PolicyLibrary library;
  IsUsable([&] { SPILLWAY_CHECK(library.Make(text) != nullptr); });
  const PolicySpec spec = ParsePolicySpec(text);
  IsUsable([&] { library.Parameters(spec, spec.policy); });
  return 0;
}
