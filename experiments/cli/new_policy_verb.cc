// spillway new-policy: a commented policy to start from, which builds and runs as it is.

#include <fmt/format.h>

#include <cctype>
#include <filesystem>
#include <string>
#include <string_view>

#include "experiments/cli/frame/session.h"
#include "experiments/cli/frame/verbs.h"
#include "experiments/run/data_files.h"
#include "traces/base/error.h"
#include "traces/base/file.h"
#include "traces/base/version.h"

namespace spillway::cli {
namespace {

namespace fs = std::filesystem;

// @name@ is the policy's name, @class@ its class, @version@ the version of the package to find.
constexpr std::string_view kSource =
    R"(// @name@: a policy to start from. As written, it sends every large activation to the host as soon as
// forward is done with it, and leaves it to the runtime to bring it back when backward needs it.
//
// Try it:       spillway compare googlenet:128 --policy liveness --policy ./build/@name@.so --check
// Parameters:   spillway run googlenet:128 --policy ./build/@name@.so:at_least=64MiB
//
// The interface, each hook and each verb with its contract, is in "sim/core/policy.h".

#include <memory>
#include <string>

#include "traces/base/params.h"
#include "policies/plugin/plugin.h"
#include "policies/registry.h"
#include "sim/core/policy.h"

namespace {

using namespace spillway::policies;

class @class@ final : public Policy {
 public:
  explicit @class@(Bytes at_least) : at_least_(at_least) {}

  // Every hook has a default: keep only the hooks that you need. They stand here in the order in
  // which they are called.

  // Called first. It may make trial runs of other policies, return another trace to run, or use less
  // memory than there is; this policy uses all of it.
  Preparation Prepare(const Trace&, const Device& device, const CostModel&, const TrialRun&,
                      const std::string&) override {
    return {device.memory};
  }

  // Called once, before the first iteration: the place for decisions that need the whole trace.
  void Plan(PolicyContext&) override {}

  // Called before an op: the place to ask for inputs of later ops, with context.Prefetch(tensor).
  // After it the runtime fetches the inputs of this op that are missing, and the op waits for them.
  // A next step for this policy: find out here which activation will be needed soon.
  void BeforeOp(PolicyContext&, OpId) override {}

  // Called when the op has been issued. On the device it may not have run yet. Verbs may be called
  // all the same: the runtime makes the device wait where it has to.
  void AfterOp(PolicyContext& context, OpId op_id) override {
    const Trace& trace = context.trace();
    const Op& op = trace.op(op_id);
    if (op.phase != Phase::kForward) return;
    for (const TensorId input : op.inputs) {
      const Tensor& tensor = trace.tensor(input);
      if (tensor.kind != TensorKind::kActivation || tensor.size < at_least_) continue;
      // Is the next op that uses it a backward op? Then forward is done with it.
      const auto next = context.NextUse(input);
      if (!next || trace.op(*next).phase == Phase::kForward) continue;
      // A verb that returns false has changed nothing. Here, false means that the pinned host memory
      // is full.
      if (context.Offload(input)) context.Release(input);
    }
  }

  // Called when no block of this size is free. Make room with Release or Evict and return true to
  // try again; false means that the workload does not fit.
  bool OnAllocFailure(PolicyContext&, Bytes) override { return false; }

 private:
  const Bytes at_least_;
};

// Each parameter is named, defaulted, documented and read in one expression.
// `--policy ./build/@name@.so:help` prints the parameters.
std::unique_ptr<Policy> Make(Params& params) {
  const Bytes at_least =
      params.Size("at_least", Bytes::MiB(1), "the smallest activation to offload");
  return std::make_unique<@class@>(at_least);
}

// One plugin may register several policies.
void RegisterPolicies(PolicyRegistry& registry) {
  registry.Add("@name@", "offload large activations after forward, fetch them on demand", Make);
}

constexpr PolicyPlugin kPlugin{.register_policies = RegisterPolicies};

}  // namespace

// The function that `spillway` looks for in a plugin.
const spillway::policies::PolicyPlugin* SpillwayPolicyPlugin() { return &kPlugin; }
)";

constexpr std::string_view kBuild = R"(cmake_minimum_required(VERSION 3.25)
project(@name@ LANGUAGES CXX)
if(NOT CMAKE_BUILD_TYPE)
  set(CMAKE_BUILD_TYPE Release)
endif()

find_package(spillway @version@ REQUIRED)
spillway_add_policy(@name@ @name@.cc)
)";

// Returns true iff the name consists of lower-case letters, digits and single hyphens and begins
// with a letter. Such a name is valid for a policy, a CMake target and a directory.
bool IsValidName(std::string_view name) {
  for (const char* reserved : {"all", "clean", "help", "install", "package", "test"}) {
    if (name == reserved) return false;  // CMake has targets of these names
  }
  for (size_t i = 0; i < name.size(); ++i) {
    const bool letter = name[i] >= 'a' && name[i] <= 'z';
    const bool digit = name[i] >= '0' && name[i] <= '9';
    const bool hyphen = name[i] == '-' && i + 1 < name.size() && name[i + 1] != '-';
    if (!letter && (i == 0 || (!digit && !hyphen))) return false;
  }
  return !name.empty();
}

// Returns the name of the class, "LruPolicy" for "lru". The suffix keeps it apart from the names of
// the library.
std::string ClassName(std::string_view name) {
  std::string result;
  bool start = true;
  for (const char c : name) {
    if (c != '-') result += start ? static_cast<char>(std::toupper(c)) : c;
    start = c == '-';
  }
  return result.ends_with("Policy") && result != "Policy" ? result : result + "Policy";
}

std::string Fill(std::string_view text, const std::string& name) {
  const std::string version = SPILLWAY_VERSION_STRING;
  std::string result(text);
  const auto replace = [&](std::string_view mark, const std::string& value) {
    for (size_t at = 0; (at = result.find(mark, at)) != std::string::npos; at += value.size()) {
      result.replace(at, mark.size(), value);
    }
  };
  replace("@name@", name);
  replace("@class@", ClassName(name));
  replace("@version@", version.substr(0, version.rfind('.')));
  return result;
}

int Execute(const std::string& name, Session& session) {
  if (!IsValidName(name)) {
    throw UsageError(
        fmt::format("'{}' is not a valid name for a policy: use lower-case letters, digits and "
                    "single hyphens between them, begin with a letter, and use no word that CMake "
                    "reserves",
                    name));
  }
  const fs::path directory = name;
  const auto guard = session.interrupts().Hold();
  std::error_code error;
  if (!fs::create_directory(directory, error)) {
    if (!error || fs::exists(directory)) {
      throw UsageError(fmt::format("{} exists already; nothing was written", name));
    }
    throw InputError(fmt::format("{}: cannot create the directory: {}", name, error.message()));
  }
  try {
    WriteFile(directory / (name + ".cc"), Fill(kSource, name));
    WriteFile(directory / "CMakeLists.txt", Fill(kBuild, name));
  } catch (...) {
    fs::remove_all(directory, error);  // this call created it
    throw;
  }
  const auto prefix = InstallPrefix();
  fmt::print(
      stderr,
      "wrote {0}/{0}.cc and {0}/CMakeLists.txt; next:\n"
      "  cmake -S {0} -B {0}/build -DCMAKE_PREFIX_PATH={1}\n"
      "  cmake --build {0}/build\n"
      "  spillway compare googlenet:128 --policy liveness --policy {0}/build/{0}.so --check\n",
      name, prefix ? prefix->string() : "PREFIX");
  if (!prefix) {
    fmt::print(stderr,
               "where PREFIX is a directory to install this build of Spillway in:\n"
               "  cmake --install BUILD --prefix PREFIX\n");
  }
  return kOk;
}

}  // namespace

void AddNewPolicy(Command& program, Session& session) {
  Command& verb = program.Add(
      "new-policy", "Write a commented policy plugin to start from: NAME/NAME.cc and its build");
  verb.examples = {"new-policy mine", "new-policy greedy-cache"};
  auto& name = verb.Runs(Execute, session);
  verb.Text("name", name, "Name of the policy and of the new directory").Required();
}

}  // namespace spillway::cli
