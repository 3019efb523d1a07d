#include "experiments/output/manifest.h"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <limits>
#include <utility>

#include "experiments/run/case_keys.h"
#include "experiments/run/data_files.h"
#include "experiments/run/inputs.h"
#include "experiments/run/workload_text.h"
#include "traces/base/error.h"
#include "traces/base/file.h"
#include "traces/base/json.h"
#include "traces/base/json_writer.h"
#include "traces/base/sha256.h"
#include "traces/format.h"

namespace spillway::lab {
namespace {

constexpr std::string_view kSchema = "spillway.manifest/v1";

void PutSettings(JsonWriter& json, const Settings& settings) {
  json.BeginObject();
  for (const auto& [name, value] : settings) json.Put(name, value);
  json.EndObject();
}

void PutInputs(JsonWriter& json, const std::vector<ManifestInput>& inputs) {
  json.Key("inputs").BeginArray();
  for (const ManifestInput& input : inputs) {
    json.BeginObject().Put("role", input.role).Put("source", input.source);
    json.Put("name", input.name).Put("sha256", input.sha256).EndObject();
  }
  json.EndArray();
}

}  // namespace

void Manifest::AddInput(std::string_view role, std::string_view source, std::string name) {
  const bool known = std::any_of(inputs.begin(), inputs.end(), [&](const ManifestInput& input) {
    return input.role == role && input.name == name;
  });
  if (known) return;
  ManifestInput input{std::string(role), std::string(source), std::move(name), {}};
  input.sha256 = HashInput(input);
  inputs.push_back(std::move(input));
}

void DescribeFiles(const std::vector<InputFile>& files, Manifest& manifest) {
  std::vector<std::string_view> roles;
  for (const InputFile& file : files) {
    if (std::ranges::count(roles, file.role) == 0) roles.push_back(file.role);
  }
  for (const std::string_view role : roles) {
    for (const InputFile& file : files) {
      if (file.role == role) manifest.AddInput(file.role, file.source, file.name);
    }
  }
}

void DescribeCases(const std::vector<LoadedCase>& cases, Manifest& manifest) {
  std::vector<Case> resolved;
  std::vector<InputFile> files;
  for (const LoadedCase& loaded : cases) {
    resolved.push_back(Resolved(loaded));
    std::ranges::move(FilesOf(loaded), std::back_inserter(files));
  }
  for (const CaseKey& key : CaseKeys()) {
    if (!key.described) continue;
    std::vector<std::string> values;  // equal values stand once
    for (const Case& asked : resolved) {
      std::string value = key.get(asked);
      if (value.empty() && key.kind == CaseKey::Kind::kFlag) value = "false";
      if (!value.empty() && std::ranges::count(values, value) == 0) {
        values.push_back(std::move(value));
      }
    }
    if (values.empty()) continue;
    manifest.configuration.emplace_back(key.name, fmt::format("{}", fmt::join(values, " ")));
  }
  DescribeFiles(files, manifest);
}

std::string RunSha256(const Manifest& manifest) {
  JsonWriter json(0);
  json.BeginObject().Put("version", manifest.version).Key("configuration");
  PutSettings(json, manifest.configuration);
  PutInputs(json, manifest.inputs);
  return Sha256(json.EndObject().Take());
}

std::string FormatManifest(const Manifest& manifest) {
  JsonWriter json(2);
  json.BeginObject().Put("schema", kSchema);
  json.Put("tool", "spillway").Put("version", manifest.version);
  json.Put("commit", manifest.commit);
  json.Put("compiler", manifest.compiler).Key("libraries");
  PutSettings(json, manifest.libraries);
  json.Key("arguments").BeginArray();
  for (const std::string& argument : manifest.arguments) json.Put(argument);
  json.EndArray().Key("configuration");
  PutSettings(json, manifest.configuration);
  json.Put("seed", std::nullopt);  // nothing that is simulated is random
  PutInputs(json, manifest.inputs);
  json.Put("run_sha256", RunSha256(manifest)).Key("outputs").BeginArray();
  for (const ManifestOutput& output : manifest.outputs) {
    json.BeginObject().Put("option", output.option).Put("path", output.path);
    json.Put("sha256", output.sha256).Put("bytes", output.bytes).EndObject();
  }
  return json.EndArray().Put("exit_code", manifest.exit_code).EndObject().Take();
}

Manifest ReadManifest(const std::filesystem::path& path) {
  return ParseManifest(ReadFile(path, Bytes::MiB(64)), path.string());
}

Manifest ParseManifest(std::string_view text, const std::string& origin) {
  using Json = JsonDocument::Value;
  JsonDocument json(text, origin);
  Manifest manifest;
  const auto into = [&](std::string& field) {
    return [&](Json value) { field = json.ReadString(value); };
  };
  const auto settings = [&](Settings& list) {
    return [&](Json value) {
      json.ReadMap(value, [&](std::string_view key, Json element) {
        list.emplace_back(std::string(key), std::string(json.ReadString(element)));
      });
    };
  };
  json.ReadRoot(
      Required("schema",
               [&](Json value) {
                 const std::string_view found = json.ReadString(value);
                 if (found != kSchema) {
                   json.Fail(
                       fmt::format("expected \"{}\", got \"{}\"", kSchema, JsonExcerpt(found)));
                 }
               }),
      Required("tool", SkipJson), Required("version", into(manifest.version)),
      Optional("commit", into(manifest.commit)), Required("compiler", into(manifest.compiler)),
      Required("libraries", settings(manifest.libraries)),
      Required("arguments",
               [&](Json value) {
                 json.ReadArray(value, [&](Json element) {
                   manifest.arguments.emplace_back(json.ReadString(element));
                 });
               }),
      Required("configuration", settings(manifest.configuration)), Required("seed", SkipJson),
      Required("inputs",
               [&](Json value) {
                 json.ReadArray(value, [&](Json element) {
                   ManifestInput input;
                   json.ReadObject(
                       element, Required("role", into(input.role)),
                       Required("source", into(input.source)), Required("name", into(input.name)),
                       Required("sha256",
                                [&](Json hash) { input.sha256 = json.ReadStringOrNull(hash); }));
                   manifest.inputs.push_back(std::move(input));
                 });
               }),
      Required("run_sha256", SkipJson),
      Required("outputs",
               [&](Json value) {
                 json.ReadArray(value, [&](Json element) {
                   ManifestOutput output;
                   json.ReadObject(
                       element, Required("option", into(output.option)),
                       Required("path", into(output.path)), Required("sha256", into(output.sha256)),
                       Required("bytes", [&](Json bytes) {
                         output.bytes =
                             json.ReadInteger(bytes, 0, std::numeric_limits<int64_t>::max());
                       }));
                   manifest.outputs.push_back(std::move(output));
                 });
               }),
      Required("exit_code", [&](Json value) {
        manifest.exit_code = static_cast<int>(json.ReadInteger(value, 0, 255));
      }));
  return manifest;
}

std::optional<std::string> HashInput(const ManifestInput& input) {
  if (input.source == "generated") {
    return Sha256(FormatTrace(LoadTrace(WithWorkload({}, input.name))));
  }
  std::filesystem::path path = input.name;
  if (input.source == "data") {
    const auto found = FindDataFile(input.name);
    if (!found) return std::nullopt;
    path = *found;
  }
  std::error_code ignored;
  if (!std::filesystem::exists(path, ignored)) return std::nullopt;
  return Sha256(ReadFile(path));
}

}  // namespace spillway::lab
