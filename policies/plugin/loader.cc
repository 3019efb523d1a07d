#include "policies/plugin/loader.h"

#include <dlfcn.h>
#include <elf.h>
#include <fmt/format.h>

#include <cctype>
#include <cstring>
#include <exception>
#include <filesystem>
#include <fstream>
#include <string_view>

#include "policies/plugin/crash.h"
#include "policies/plugin/plugin.h"
#include "traces/base/error.h"

namespace spillway::policies {
namespace {

constexpr const char* kEntryPoint = "SpillwayPolicyPlugin";

[[noreturn]] void Fail(const std::string& path, const std::string& reason) {
  throw InputError(fmt::format("{}: {}", path, reason));
}

// Returns the newest error of the dynamic linker, without the path that it begins with.
std::string LinkerError(const std::string& absolute) {
  const char* text = dlerror();
  std::string_view reason = text != nullptr ? text : "unknown error";
  const std::string prefix = absolute + ": ";
  if (reason.starts_with(prefix)) reason.remove_prefix(prefix.size());
  std::string message(reason);
  // The symbol's name may have types of another build.
  if (reason.find("undefined symbol") != std::string_view::npos) {
    message += fmt::format(
        "; was it built with another compiler, C++ library or version of Spillway? This program "
        "has {}",
        kBuildTag);
  }
  return message;
}

// Throws `InputError` if the file is truncated: the linker maps a file as its header says, and
// would be killed at the end of a truncated one. The linker itself rejects files that are not ELF
// files of this machine.
void CheckComplete(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  Elf64_Ehdr header;
  if (!file.read(reinterpret_cast<char*>(&header), sizeof(header))) return;
  if (std::memcmp(header.e_ident, ELFMAG, SELFMAG) != 0 || header.e_ident[EI_CLASS] != ELFCLASS64) {
    return;
  }
  std::error_code ignored;
  const uint64_t size = std::filesystem::file_size(path, ignored);
  for (uint64_t i = 0; i < header.e_phnum; ++i) {
    Elf64_Phdr segment{};
    file.seekg(static_cast<std::streamoff>(header.e_phoff + i * sizeof(segment)));
    if (!file.read(reinterpret_cast<char*>(&segment), sizeof(segment)) || segment.p_offset > size ||
        segment.p_filesz > size - segment.p_offset) {
      Fail(path, "cannot load the plugin: the file is truncated");
    }
  }
}

// Throws `InputError` if a version differs. It only reads the first two fields, which every version
// has.
void CheckVersions(const std::string& path, const PolicyPlugin& plugin) {
  if (plugin.api_version != kPluginApiVersion) {
    Fail(path, fmt::format("the plugin was built with plugin API version {}, this program with {}; "
                           "build the plugin again",
                           plugin.api_version, kPluginApiVersion));
  }
  const std::string_view tag = plugin.build_tag != nullptr ? plugin.build_tag : "no build tag";
  if (tag != kBuildTag) {
    Fail(path, fmt::format("the plugin was built with {}, this program with {}; build the plugin "
                           "again",
                           tag, kBuildTag));
  }
}

// Returns true if a specification can have the name without quotes, and the name is not "help".
bool IsPolicyName(std::string_view name) {
  if (name.empty() || name == "help") return false;
  for (const char c : name) {
    if (!std::isalnum(static_cast<unsigned char>(c)) && c != '-' && c != '_' && c != '.') {
      return false;
    }
  }
  return true;
}

}  // namespace

struct Plugin::Handle {
  explicit Handle(void* opened) : object(opened) {}
  ~Handle() { dlclose(object); }
  Handle(const Handle&) = delete;
  Handle& operator=(const Handle&) = delete;

  void* const object;
};

std::shared_ptr<const Plugin> Plugin::Load(const std::string& path) {
  return std::shared_ptr<const Plugin>(new Plugin(path));
}

Plugin::Plugin(const std::string& path) : path_(path) {
  // With an absolute path, the linker does not look for the name in its own directories.
  const std::string absolute = std::filesystem::absolute(path);
  CheckComplete(path);
  const InHook record(path.c_str(), "initialisation");
  void* object = dlopen(absolute.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (object == nullptr) Fail(path, "cannot load the plugin: " + LinkerError(absolute));
  handle_ = std::make_unique<Handle>(object);

  const auto entry = reinterpret_cast<decltype(&SpillwayPolicyPlugin)>(dlsym(object, kEntryPoint));
  if (entry == nullptr) {
    Fail(path,
         fmt::format("not a policy plugin: it has no function {} (see policies/plugin/plugin.h)",
                     kEntryPoint));
  }
  const PolicyPlugin* plugin = entry();
  if (plugin == nullptr) Fail(path, fmt::format("{} returned no descriptor", kEntryPoint));
  CheckVersions(path, *plugin);
  if (plugin->register_policies == nullptr) Fail(path, "the plugin has no register function");
  try {
    plugin->register_policies(registry_);
  } catch (const std::exception& error) {
    Fail(path, fmt::format("the plugin could not register its policies: {}", error.what()));
  } catch (...) {
    Fail(path, "the plugin could not register its policies");
  }
  if (registry_.entries().empty()) Fail(path, "the plugin registers no policy");
  for (const PolicyRegistry::Entry& policy : registry_.entries()) {
    if (!IsPolicyName(policy.name)) {
      Fail(path, fmt::format("the plugin registers a policy as '{}'; names are made of letters, "
                             "digits, '-', '_' and '.'",
                             policy.name));
    }
    if (!policy.factory) Fail(path, fmt::format("policy '{}' has no factory", policy.name));
  }
}

Plugin::~Plugin() = default;

}  // namespace spillway::policies
