// A manifest describes how a result was made, so that the same bytes can be made again and that
// changes are noticed.
//
// It is a JSON file beside each exported result, FILE.manifest.json. It names the command, the
// resolved configuration, and every input and output with a SHA-256 of its contents. A file that is
// compressed with Zstandard is decompressed before it is hashed. A manifest has no time and no host
// name, so equal runs give equal manifests.

#ifndef SPILLWAY_EXPERIMENTS_OUTPUT_MANIFEST_H_
#define SPILLWAY_EXPERIMENTS_OUTPUT_MANIFEST_H_

#include <cstdint>
#include <filesystem>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace spillway::lab {

struct InputFile;
struct LoadedCase;

// Pairs of name and value, in the order of the document.
using Settings = std::vector<std::pair<std::string, std::string>>;

// A file or generated trace that the result depends on.
struct ManifestInput {
  std::string role;    // "trace", "log", "device", "cost_table", "policy", "paper_values"
  std::string source;  // "file", "data" (comes with the program) or "generated" (NETWORK:BATCH)
  std::string name;    // path as given, path below a data directory, or a `WorkloadText`
  // nullopt: the file did not exist, but the run would have used it.
  std::optional<std::string> sha256;
};

// A file that the command wrote.
struct ManifestOutput {
  std::string option;  // the option that asked for the file: "--output"
  std::string path;    // as given
  std::string sha256;
  int64_t bytes = 0;
};

struct Manifest {
  std::string version;                 // the program's version
  std::string commit;                  // the commit of the program, or "unknown"
  std::string compiler;                // the compiler of the program
  Settings libraries;                  // name and version
  std::vector<std::string> arguments;  // the command line, without the program's name
  Settings configuration;              // resolved: option and value
  std::vector<ManifestInput> inputs;
  std::vector<ManifestOutput> outputs;
  int exit_code = 0;

  // Adds an input with its present hash, unless the manifest has an input of that role and name.
  // Throws the errors of `HashInput`.
  void AddInput(std::string_view role, std::string_view source, std::string name);
};

// Adds the files to the manifest, role by role in the order in which roles first appear. Throws the
// errors of `HashInput`.
void DescribeFiles(const std::vector<InputFile>& files, Manifest& manifest);
// Adds the configuration and the files of the cases: for each key the values of `Resolved` cases.
void DescribeCases(const std::vector<LoadedCase>& cases, Manifest& manifest);

// Returns a hash that identifies a run by its configuration, its inputs and the program's version.
// It does not depend on the paths of outputs. Exported files contain it.
std::string RunSha256(const Manifest& manifest);

// Returns the JSON document ("schema": "spillway.manifest/v1").
std::string FormatManifest(const Manifest& manifest);

// Reads a manifest. Throws `InputError` with path and place if the file cannot be read, is not
// valid JSON, has another schema, or lacks a key or has an unknown key.
Manifest ReadManifest(const std::filesystem::path& path);
// Parses the text of a manifest. `origin` stands for the path in error messages.
Manifest ParseManifest(std::string_view text, const std::string& origin);

// Returns the SHA-256 of the input's present contents, or nullopt if the file does not exist.
// Throws `InputError` if the file exists and cannot be read.
std::optional<std::string> HashInput(const ManifestInput& input);

}  // namespace spillway::lab

#endif  // SPILLWAY_EXPERIMENTS_OUTPUT_MANIFEST_H_
