// spillway replay-run: makes an exported result again from its manifest, and compares the bytes of
// the manifest, the file and the new run.

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <optional>
#include <string_view>

#include "experiments/cli/frame/arguments.h"
#include "experiments/cli/frame/format_option.h"
#include "experiments/cli/frame/session.h"
#include "experiments/cli/frame/verbs.h"
#include "experiments/output/columns.h"
#include "traces/base/error.h"
#include "traces/base/file.h"
#include "traces/base/sha256.h"

namespace spillway::cli {
namespace {

// A file of the manifest with two more hashes.
struct ReplayedOutput {
  const ManifestOutput* recorded;
  std::optional<std::string> file;    // the hash of the file as it is now; nullopt if there is none
  std::optional<std::string> sha256;  // the hash of the file made again; nullopt if it was not made

  bool same() const { return sha256 == recorded->sha256 && file.value_or(*sha256) == *sha256; }
  // Returns a word or sentence for people.
  std::string Verdict() const {
    if (same()) return file ? "same" : "same (there is no file to compare)";
    if (!sha256) return "DIFFERENT: the new run does not write it";
    if (sha256 == recorded->sha256) {
      return "DIFFERENT: the file has changed; the new run gives what the manifest says";
    }
    if (file == recorded->sha256) {
      return "DIFFERENT: the new run gives other bytes than the file and the manifest";
    }
    if (file == sha256) return "DIFFERENT: the file and the new run are not what the manifest says";
    return "DIFFERENT: the new run gives other bytes than the manifest says";
  }
};

// Returns the SHA-256 of the file of that name beside the manifest, if no other output has the
// name; otherwise of the file at the output's path. Returns nullopt if there is no file.
std::optional<std::string> HashFile(const ManifestOutput& output, const Manifest& manifest,
                                    const std::string& manifest_path) {
  namespace fs = std::filesystem;
  const auto has_name = [name = fs::path(output.path).filename()](const ManifestOutput& other) {
    return fs::path(other.path).filename() == name;
  };
  std::error_code ignored;
  fs::path place = fs::path(manifest_path).parent_path() / fs::path(output.path).filename();
  if (std::ranges::count_if(manifest.outputs, has_name) > 1 || !fs::exists(place, ignored)) {
    place = output.path;
  }
  if (!fs::exists(place, ignored)) return std::nullopt;
  return Sha256(ReadFile(place, Bytes::Unlimited()));
}

Columns<ReplayedOutput> OutputColumns() {
  return {
      {"option", "", "option that asked for the file",
       [](auto& output) { return output.recorded->option; }},
      {"path", "", "as given", [](auto& output) { return output.recorded->path; }},
      {"sha256", "", "as recorded", [](auto& output) { return output.recorded->sha256; }},
      {"file_sha256", "", "of the file as it is now", &ReplayedOutput::file},
      {"replayed_sha256", "", "as made again", &ReplayedOutput::sha256},
      {"same", "", "all are equal", &ReplayedOutput::same},
  };
}

struct ReplayOptions {
  std::string manifest;
  std::string output_dir;
  FormatOption format;
};

// Throws `InputError` unless the verb of the manifest can be replayed without writing files, by
// this program.
void CheckVerb(const Manifest& manifest, const std::string& path) {
  for (const auto& [key, value] : manifest.configuration) {
    if (key != "preset") continue;
    throw InputError(fmt::format(
        "{}: configuration: 'preset' is part of the workload's text now, so that a Spillway of "
        "before wrote this manifest: make the result again, or use that program",
        path));
  }
  const std::string verb = manifest.arguments.empty() ? std::string() : manifest.arguments.front();
  constexpr std::string_view kValid[] = {"run",  "compare", "limit",    "fit",
                                         "plan", "replay",  "reproduce"};
  if (std::ranges::count(kValid, verb) > 0) return;
  throw InputError(fmt::format("{}: arguments: '{}' cannot be replayed (valid: {})", path, verb,
                               fmt::join(kValid, ", ")));
}

// Throws an `InputError` that names the first input that has changed.
void VerifyInputs(const Manifest& manifest) {
  for (const ManifestInput& input : manifest.inputs) {
    const auto now = HashInput(input);
    if (now == input.sha256) continue;
    const auto state = [](const std::optional<std::string>& hash) {
      return hash ? fmt::format("has the SHA-256 {}", *hash) : std::string("does not exist");
    };
    throw InputError(fmt::format("{} '{}' has changed: it {}, the manifest was made when it {}",
                                 input.role, input.name, state(now), state(input.sha256)));
  }
}

// Writes the files into the directory under their names. Throws `InputError` if two names are
// equal.
void WriteAgain(const std::vector<OutputFile>& files, const std::filesystem::path& directory,
                Session& session) {
  const auto name_of = [](const OutputFile& file) {
    return std::filesystem::path(file.path).filename();
  };
  for (size_t i = 0; i < files.size(); ++i) {
    for (size_t j = 0; j < i; ++j) {
      if (name_of(files[i]) != name_of(files[j])) continue;
      throw InputError(fmt::format("'{}' and '{}' would have the same name in '{}'", files[j].path,
                                   files[i].path, directory.string()));
    }
  }
  CreateDirectory(directory);
  const auto guard = session.interrupts().Hold();
  for (const OutputFile& file : files) WriteFile(directory / name_of(file), file.contents);
}

int Execute(const ReplayOptions& options, Session& session) {
  CheckView(options.format.view(), OutputColumns());
  const Manifest manifest = ReadManifest(options.manifest);
  CheckVerb(manifest, options.manifest);
  VerifyInputs(manifest);
  const Manifest ours = session.NewManifest();
  if (ours.version != manifest.version || ours.compiler != manifest.compiler) {
    session.Remark(fmt::format("the manifest was made by version {} ({}), this is version {} ({})",
                               manifest.version, manifest.compiler, ours.version, ours.compiler));
  }
  std::vector<std::string> arguments = manifest.arguments;
  arguments.push_back("--quiet");
  CommandResults results;
  Session replayed(arguments, session.interrupts(), &results);
  const int exit_code = RunSession(replayed);
  if (!results.error.empty()) session.Fail(exit_code, results.error);
  const std::vector<OutputFile>& files = results.files;
  bool same = exit_code == manifest.exit_code;
  if (!same) {
    session.Remark(
        fmt::format("the run ended with exit code {}, not {}", exit_code, manifest.exit_code));
  }

  std::vector<ReplayedOutput> outputs;
  for (const ManifestOutput& output : manifest.outputs) {
    const auto file = std::find_if(files.begin(), files.end(), [&](const OutputFile& candidate) {
      return candidate.option == output.option && candidate.path == output.path;
    });
    outputs.push_back({&output, HashFile(output, manifest, options.manifest), std::nullopt});
    if (file != files.end()) outputs.back().sha256 = Sha256(file->contents);
    same &= outputs.back().same();
  }
  if (!options.output_dir.empty()) WriteAgain(files, options.output_dir, session);
  const std::string text =
      FormatAs(options.format.view(), OutputColumns(), outputs, "spillway.replay-run/v1", [&] {
        std::string lines;
        for (const ReplayedOutput& output : outputs) {
          lines += fmt::format("{}: {}\n", output.recorded->path, output.Verdict());
        }
        return lines;
      });
  return session.Finish(text, same ? kOk : kNegative);
}

}  // namespace

void AddReplayRun(Command& program, Session& session) {
  Command& verb = program.Add(
      "replay-run",
      "Make an exported result again from its manifest and compare the bytes of the manifest, the "
      "file and the new run; exit code 1 if they differ, 3 if an input has changed");
  verb.examples = {"replay-run r.csv.manifest.json",
                   "replay-run r.csv.manifest.json --output-dir again"};
  auto& options = verb.Runs(Execute, session);
  verb.Text("manifest", options.manifest, "FILE.manifest.json, as written beside a result")
      .Required();
  verb.Text("--output-dir", options.output_dir,
            "Also write the files that were made again, under their names, to this directory")
      .Type("DIR");
  options.format.Add(verb);
}

}  // namespace spillway::cli
