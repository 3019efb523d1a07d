// The entry point of a plugin: a shared object gives its policies to Spillway by one function with
// a fixed name, which the object defines and the loader calls.
//
//   #include "policies/plugin/plugin.h"
//   #include "policies/registry.h"
//
//   namespace {
//   void RegisterPolicies(spillway::policies::PolicyRegistry& registry) {
//     registry.Add("my-policy", "a description in one sentence", MakeMyPolicy);
//   }
//   constexpr spillway::policies::PolicyPlugin kPlugin{.register_policies = RegisterPolicies};
//   }  // namespace
//
//   const spillway::policies::PolicyPlugin* SpillwayPolicyPlugin() { return &kPlugin; }
//
// C++ objects cross the boundary, so both sides must agree on their layout. This header fills in
// `api_version` and `build_tag`. The loader compares them with its own before it calls anything
// else, and refuses a plugin if one differs. `spillway new-policy NAME` writes a
// plugin to start from; the CMake function `spillway_add_policy` builds one.

#ifndef SPILLWAY_POLICIES_PLUGIN_PLUGIN_H_
#define SPILLWAY_POLICIES_PLUGIN_PLUGIN_H_

#include <cstddef>  // the C++ library's own macros, for the build tag
#include <cstdint>

#include "traces/base/version.h"

namespace spillway::policies {

class PolicyRegistry;

// The number of incompatible changes so far to the headers that a plugin compiles against:
// `Policy`, `PolicyContext`, `Params`, `PolicyRegistry` and everything that these include.
inline constexpr uint32_t kPluginApiVersion = 30;

#define SPILLWAY_TEXT_OF_VALUE(value) #value
#define SPILLWAY_TEXT_OF(macro) SPILLWAY_TEXT_OF_VALUE(macro)

// The compiler, the ABI of the C++ library and the version of Spillway, which must agree, too. For
// example "g++ 12, libstdc++ with C++11 ABI, Spillway 0.1.0". The symbol is hidden, so that the
// linker does not replace the plugin's tag by the program's.
[[gnu::visibility("hidden")]] inline constexpr char kBuildTag[] =
#if defined(__clang__)
    "clang++ " SPILLWAY_TEXT_OF(__clang_major__)
#elif defined(__GNUC__)
    "g++ " SPILLWAY_TEXT_OF(__GNUC__)
#else
    "unknown compiler"
#endif
#if defined(_LIBCPP_ABI_VERSION)
        ", libc++ ABI " SPILLWAY_TEXT_OF(_LIBCPP_ABI_VERSION)
#elif defined(__GLIBCXX__) && _GLIBCXX_USE_CXX11_ABI
        ", libstdc++ with C++11 ABI"
#elif defined(__GLIBCXX__)
    ", libstdc++ with the ABI before C++11"
#else
    ", unknown C++ library"
#endif
#if defined(_GLIBCXX_DEBUG)
            " in debug mode"
#endif
            ", Spillway " SPILLWAY_VERSION_STRING;

#undef SPILLWAY_TEXT_OF
#undef SPILLWAY_TEXT_OF_VALUE

// The descriptor by which the loader knows a plugin. The first two fields keep their place and type
// in all versions.
struct PolicyPlugin {
  uint32_t api_version = kPluginApiVersion;
  const char* build_tag = kBuildTag;
  // Adds the plugin's policies to a registry that is empty and belongs to the plugin. Several
  // threads call the factories, each to make policies for itself.
  void (*register_policies)(PolicyRegistry&) = nullptr;
};

}  // namespace spillway::policies

// Returns the plugin's descriptor, which lives as long as the plugin is loaded. The plugin defines
// this function, never Spillway. The declaration gives the definition its C name and keeps it
// visible where a plugin is compiled with hidden symbols.
extern "C" [[gnu::visibility("default")]] const spillway::policies::PolicyPlugin*
SpillwayPolicyPlugin();

#endif  // SPILLWAY_POLICIES_PLUGIN_PLUGIN_H_
