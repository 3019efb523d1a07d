// A shared object with policies, loaded and checked.
//
// Loading runs the object's initialisers and resolves all its symbols; its names stay private to
// it. Then the API version and the build tag are compared. Only if they agree is the register
// function called. The registry belongs to the plugin, so a plugin can neither replace a built-in
// policy nor clash with another plugin.
//
// Ownership: a `Plugin` is shared, and the object stays loaded as long as the `Plugin` is held. The
// registry's factories and the policies that they make run the plugin's code and must not outlive
// it. `PolicyLibrary` ensures this: each policy that it makes holds its plugin.

#ifndef SPILLWAY_POLICIES_PLUGIN_LOADER_H_
#define SPILLWAY_POLICIES_PLUGIN_LOADER_H_

#include <memory>
#include <string>

#include "policies/registry.h"

namespace spillway::policies {

class Plugin {
 public:
  // Loads and checks a plugin. Throws `InputError` with the path and the reason: the file is
  // missing, truncated or no shared object (in the system's words), has no entry point, or was
  // built with another version (both versions are named). It also throws if the plugin registers no
  // policy, a bad name or one name twice, or if its register function throws.
  static std::shared_ptr<const Plugin> Load(const std::string& path);

  ~Plugin();
  Plugin(const Plugin&) = delete;
  Plugin& operator=(const Plugin&) = delete;

  const std::string& path() const { return path_; }
  const PolicyRegistry& registry() const { return registry_; }

 private:
  explicit Plugin(const std::string& path);

  struct Handle;  // closes the object when it is destroyed
  const std::string path_;
  std::unique_ptr<Handle> handle_;  // declared before the registry: destroyed after it
  PolicyRegistry registry_;
};

}  // namespace spillway::policies

#endif  // SPILLWAY_POLICIES_PLUGIN_LOADER_H_
