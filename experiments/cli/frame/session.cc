#include "experiments/cli/frame/session.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/file.h>
#include <tbb/version.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <iterator>
#include <map>
#include <set>
#include <system_error>
#include <utility>

#include "experiments/cli/frame/commit.h"
#include "experiments/run/case_keys.h"
#include "experiments/run/data_files.h"
#include "experiments/run/isolation.h"
#include "policies/plugin/library.h"
#include "traces/base/error.h"
#include "traces/base/file.h"
#include "traces/base/sha256.h"

namespace spillway::cli {

namespace {

constexpr const char* kManifestSuffix = ".manifest.json";

// Throws `UsageError` if two of the files, their manifests and the inputs are the same file,
// however their paths are spelled.
void CheckPlaces(const std::vector<OutputFile>& files, const std::vector<ManifestInput>& inputs) {
  const auto place = [](const std::string& path) {
    std::error_code ignored;
    const auto absolute = std::filesystem::absolute(path, ignored);
    const auto canonical = std::filesystem::weakly_canonical(absolute, ignored);
    return ignored ? absolute : canonical;
  };
  std::map<std::filesystem::path, std::string> owners;  // by place
  for (const ManifestInput& input : inputs) {
    if (input.source == "file") owners.emplace(place(input.name), "the input");
  }
  for (const OutputFile& file : files) {
    for (const char* suffix : {"", kManifestSuffix}) {
      const std::string owner = *suffix == 0 ? file.option : "the manifest of " + file.option;
      const auto [other, is_new] = owners.emplace(place(file.path + suffix), owner);
      if (is_new) continue;
      throw UsageError(fmt::format("{} and {} name the same file, '{}'", other->second, owner,
                                   file.path + suffix));
    }
  }
}

// Locks directories against sessions of other processes that write there. If the file system has no
// locks, nothing is locked.
class DirectoryLocks {
 public:
  // All sessions lock in the order of the set, so that they cannot wait for each other in a circle.
  explicit DirectoryLocks(const std::set<std::filesystem::path>& directories) {
    for (const std::filesystem::path& directory : directories) {
      const int fd = ::open(directory.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
      if (fd < 0) continue;  // the error follows when a file is written there
      while (::flock(fd, LOCK_EX) != 0 && errno == EINTR) {
      }
      locked_.push_back(fd);
    }
  }
  DirectoryLocks(const DirectoryLocks&) = delete;
  DirectoryLocks& operator=(const DirectoryLocks&) = delete;
  ~DirectoryLocks() {
    for (const int fd : locked_) ::close(fd);
  }

 private:
  std::vector<int> locked_;
};

// Returns the name of the command for people: its words before the first option, at most two.
std::string CommandOf(const std::vector<std::string>& arguments) {
  std::string command;
  for (size_t i = 0; i < std::min<size_t>(arguments.size(), 2); ++i) {
    if (arguments[i].starts_with('-')) break;
    command += (i == 0 ? "" : " ") + arguments[i];
  }
  return command;
}

}  // namespace

Session::Session(std::vector<std::string> arguments, Interrupts& interrupts,
                 CommandResults* captured)
    : arguments_(std::move(arguments)),
      interrupts_(interrupts),
      captured_(captured),
      quiet_(std::find(arguments_.begin(), arguments_.end(), "--quiet") != arguments_.end()),
      progress_(CommandOf(arguments_), quiet_ || captured != nullptr) {}

void Session::Print(std::string_view text) const {
  if (captured_ != nullptr) {
    captured_->text += text;
  } else {
    fmt::print("{}", Printable(text));
  }
}

int Session::Fail(int exit_code, std::string_view message) const {
  if (captured_ != nullptr) {
    captured_->error = message;
  } else {
    fmt::print(stderr, "spillway: {}\n", Printable(message));
  }
  return exit_code;
}

void Session::Remark(std::string_view line) const {
  if (!quiet_) fmt::print(stderr, "spillway: {}\n", Printable(line));
}

Manifest Session::NewManifest() const {
  Manifest manifest;
  manifest.version = SPILLWAY_VERSION;
  manifest.commit = kCommit;
  manifest.compiler = CompilerVersion();
  manifest.libraries = LibraryVersions();
  manifest.arguments = arguments_;
  return manifest;
}

int Session::Finish(std::string results, const std::string& output,
                    const std::vector<Export>& exports, int exit_code,
                    const std::function<void(Manifest&)>& describe) {
  Manifest manifest = NewManifest();
  manifest.exit_code = exit_code;
  const bool exporting = std::any_of(exports.begin(), exports.end(),
                                     [](const Export& file) { return !file.path.empty(); });
  if (output.empty() && !exporting) return Finish(results, exit_code);
  describe(manifest);
  std::vector<OutputFile> files;
  if (!output.empty()) files.push_back({"--output", output, std::move(results)});
  for (const Export& file : exports) {
    if (!file.path.empty()) files.push_back({file.option, file.path, file.contents(manifest)});
  }
  CheckPlaces(files, manifest.inputs);
  for (const OutputFile& file : files) {
    manifest.outputs.push_back({file.option, file.path, Sha256(file.contents),
                                static_cast<int64_t>(file.contents.size())});
  }
  Write(files, FormatManifest(manifest));
  return output.empty() ? Finish(results, exit_code) : exit_code;
}

int Session::Finish(std::string_view results, int exit_code) const {
  Print(results);
  return exit_code;
}

int Session::FinishIsolated(const Case& asked) {
  CommandResults results;
  try {
    results = RunIsolated(asked, arguments_);
  } catch (const PolicyError& error) {
    throw PolicyError(fmt::format("{}: {}", asked.workload, error.what()));
  }
  if (!results.files.empty()) Write(results.files, results.manifest);
  return Finish(results.text, results.exit_code);
}

void Session::Write(const std::vector<OutputFile>& files, const std::string& manifest) {
  if (captured_ != nullptr) {
    captured_->files = files;
    captured_->manifest = manifest;
    return;
  }
  std::vector<std::string> paths;
  std::set<std::filesystem::path> directories;
  for (const OutputFile& file : files) {
    const std::filesystem::path path = FollowLinks(file.path);
    std::error_code ignored;
    directories.insert(std::filesystem::canonical(
        path.has_parent_path() ? path.parent_path() : std::filesystem::path("."), ignored));
    paths.push_back(path.string());
  }
  const DirectoryLocks locks(directories);
  const auto guard = interrupts_.Hold();
  for (size_t i = 0; i < files.size(); ++i) {
    WriteFile(paths[i], files[i].contents);
    WriteFile(paths[i] + kManifestSuffix, manifest);
  }
}

void CheckPolicies(const std::vector<std::string>& policies, const Case& asked, bool training,
                   const Session& session) {
  for (const std::string& policy : policies) {
    Case one = asked;
    one.policy = policy;
    CheckPolicy(one);
  }
  if (training) RemarkTraining(policies, session);
}

void RemarkTraining(const std::vector<std::string>& policies, const Session& session) {
  PolicyLibrary library;
  std::vector<std::string> misused;
  std::ranges::copy_if(policies, std::back_inserter(misused), [&](const std::string& policy) {
    return PolicyChoice(policy).spec().plugin.empty() && library.Traits(policy).for_inference;
  });
  if (misused.empty()) return;
  session.Remark(fmt::format("{}: made for inference, and this is training; try mode=inference",
                             fmt::join(misused, ", ")));
}

void CreateDirectory(const std::filesystem::path& path) {
  std::error_code error;
  std::filesystem::create_directories(path, error);
  if (error) {
    throw InputError(
        fmt::format("cannot create the directory '{}': {}", path.string(), error.message()));
  }
}

std::string CompilerVersion() {
#ifdef __clang__
  return "Clang " __clang_version__;
#else
  return "GCC " __VERSION__;
#endif
}

Settings LibraryVersions() {
  Settings versions;
  // The build defines the text "fmt 9.1.0,simdjson 3.0.1,...".
  std::string_view left = SPILLWAY_LIBRARIES;
  while (!left.empty()) {
    const std::string_view one = left.substr(0, left.find(','));
    left.remove_prefix(std::min(left.size(), one.size() + 1));
    const size_t blank = one.find(' ');
    versions.emplace_back(one.substr(0, blank), one.substr(blank + 1));
  }
  versions.emplace_back("oneTBB", fmt::format("{}.{}", TBB_VERSION_MAJOR, TBB_VERSION_MINOR));
  versions.emplace_back("CLI11", ParserVersion());
  return versions;
}

}  // namespace spillway::cli
