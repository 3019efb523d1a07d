// A shared object with policies, loaded and checked.
//
// Loading runs the object's own initialisers and resolves all its symbols; its names stay private
// to it. Then API version and build tag are compared, and only then is its register function
// called, into a registry of its own, so that a plugin can neither replace a built-in policy nor
// clash with another plugin.
//
// Ownership: a `Plugin` is shared, and the object stays loaded as long as one is held. Whatever
// runs the plugin's code or was made by it, the registry's factories and the policies that they
// make, must not outlive it. `PolicyLibrary` sees to that: each policy it makes holds its plugin.

#ifndef SPILLWAY_POLICIES_PLUGIN_LOADER_H_
#define SPILLWAY_POLICIES_PLUGIN_LOADER_H_

#include <memory>
#include <string>

#include "policies/registry.h"

namespace spillway {

class Plugin {
 public:
  // Throws `InputError` with the path and the reason: the file is missing, truncated, or no shared
  // object (the system's words), has no entry point, was built with another version (both sides are
  // named), registers nothing, a bad name or one name twice, or its register function throws.
  static std::shared_ptr<const Plugin> Load(const std::string& path);

  ~Plugin();
  Plugin(const Plugin&) = delete;
  Plugin& operator=(const Plugin&) = delete;

  const std::string& path() const { return path_; }
  const PolicyRegistry& registry() const { return registry_; }

 private:
  explicit Plugin(const std::string& path);

  struct Handle;  // closes the object
  const std::string path_;
  std::unique_ptr<Handle> handle_;  // declared before the registry: destroyed after it
  PolicyRegistry registry_;
};

}  // namespace spillway

#endif  // SPILLWAY_POLICIES_PLUGIN_LOADER_H_
