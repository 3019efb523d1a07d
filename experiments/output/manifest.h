// What a result was made from: enough to make the same bytes again, and to notice if something has
// changed.
//
// A manifest is a JSON file beside each exported result, FILE.manifest.json. It names the command,
// the resolved configuration, every input and every output with a SHA-256. Hashes are those of the
// contents: of a file that is compressed with Zstandard, decompressed. It holds no time and no host
// name: the same run gives the same manifest.

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

namespace spillway {

// Name and value, in the order of the document.
using Settings = std::vector<std::pair<std::string, std::string>>;

// Something that the result depends on.
struct ManifestInput {
  std::string role;    // "trace", "log", "device", "cost_table", "policy", "paper_values"
  std::string source;  // "file", "data" (comes with the program) or "generated" (NETWORK:BATCH)
  std::string name;    // path as given, path below a data directory, or NETWORK:BATCH
  // nullopt: there was no such file, and the run would have used one.
  std::optional<std::string> sha256;
};

struct ManifestOutput {
  std::string option;  // that asked for it: "--output"
  std::string path;    // as given
  std::string sha256;
  int64_t bytes = 0;
};

struct Manifest {
  std::string version;                 // of the program
  std::string commit;                  // that it was built from, or "unknown"
  std::string compiler;                // that built it
  Settings libraries;                  // name and version
  std::vector<std::string> arguments;  // the command line, without the program's name
  Settings configuration;              // resolved: option and value
  std::vector<ManifestInput> inputs;
  std::vector<ManifestOutput> outputs;
  int exit_code = 0;

  // Adds an input that is not there yet, as it is now. Uses the configuration; throws as
  // `HashInput`.
  void AddInput(std::string_view role, std::string_view source, std::string name);
};

// Names a run by configuration, inputs and program version; it does not depend on where results
// were put. Exported files carry it.
std::string RunSha256(const Manifest& manifest);

// The document ("schema": "spillway.manifest/v1").
std::string FormatManifest(const Manifest& manifest);

// Throws `InputError` with path and place: unreadable, bad JSON, another schema, a missing or
// unknown key.
Manifest ReadManifest(const std::filesystem::path& path);
// The same of text in memory; `origin` stands for the path in messages.
Manifest ParseManifest(std::string_view text, const std::string& origin);

// SHA-256 of the input as it is now; nullopt if there is no such file. `configuration` gives preset
// and mode of a generated trace. Throws `InputError` if the file is there and cannot be read.
std::optional<std::string> HashInput(const ManifestInput& input, const Settings& configuration);

}  // namespace spillway

#endif  // SPILLWAY_EXPERIMENTS_OUTPUT_MANIFEST_H_
