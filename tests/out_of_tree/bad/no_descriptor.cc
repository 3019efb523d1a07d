// A plugin whose entry point returns nothing.
#include "policies/plugin.h"

const spillway::PolicyPlugin* SpillwayPolicyPlugin() { return nullptr; }
