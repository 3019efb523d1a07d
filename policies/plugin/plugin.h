// How a shared object gives its policies to Spillway: one function with a fixed name, which the
// object defines and the loader calls.
//
//   #include "policies/plugin/plugin.h"
//   #include "policies/registry.h"
//
//   namespace {
//   void RegisterPolicies(spillway::PolicyRegistry& registry) {
//     registry.Add("my-policy", "what it does, in one sentence", MakeMyPolicy);
//   }
//   constexpr spillway::PolicyPlugin kPlugin{.register_policies = RegisterPolicies};
//   }  // namespace
//
//   const spillway::PolicyPlugin* SpillwayPolicyPlugin() { return &kPlugin; }
//
// C++ objects cross the boundary, so both sides must agree on their layout. The loader compares
// `api_version` and `build_tag`, which this header fills in, with its own before it calls anything
// else, and refuses a plugin that differs in either. `spillway new-policy NAME` writes a plugin to
// start from; the CMake function `spillway_add_policy` builds one.

#ifndef SPILLWAY_POLICIES_PLUGIN_PLUGIN_H_
#define SPILLWAY_POLICIES_PLUGIN_PLUGIN_H_

#include <cstddef>  // the C++ library's own macros, for the build tag
#include <cstdint>

#include "traces/base/version.h"

namespace spillway {

class PolicyRegistry;

// Counts the incompatible changes of what a plugin compiles against: `Policy`, `PolicyContext`,
// `Params`, `PolicyRegistry` and what they use.
inline constexpr uint32_t kPluginApiVersion = 13;

#define SPILLWAY_TEXT_OF_VALUE(value) #value
#define SPILLWAY_TEXT_OF(macro) SPILLWAY_TEXT_OF_VALUE(macro)

// What else must agree: compiler, ABI of the C++ library, version of Spillway. For example
// "g++ 12, libstdc++ with C++11 ABI, Spillway 0.1.0". Hidden, so that the linker does not put the
// program's own in the place of the plugin's.
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

// What the loader learns from a plugin. The first two fields keep place and type in all versions.
struct PolicyPlugin {
  uint32_t api_version = kPluginApiVersion;
  const char* build_tag = kBuildTag;
  // Adds the plugin's policies to a registry that is its own and empty. The factories are called
  // from several threads, each for policies of its own.
  void (*register_policies)(PolicyRegistry&) = nullptr;
};

}  // namespace spillway

// Defined by the plugin, never by Spillway. This declaration gives the definition its C name and
// keeps it visible where a plugin is compiled with hidden symbols. The descriptor that it returns
// lives as long as the plugin is loaded.
extern "C" [[gnu::visibility("default")]] const spillway::PolicyPlugin* SpillwayPolicyPlugin();

#endif  // SPILLWAY_POLICIES_PLUGIN_PLUGIN_H_
