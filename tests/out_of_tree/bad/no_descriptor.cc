// A plugin whose entry point returns nothing.
#include "policies/plugin/plugin.h"

const spillway::policies::PolicyPlugin* SpillwayPolicyPlugin() { return nullptr; }
