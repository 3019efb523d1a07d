// The parameters of a policy: sim/core/params.h, under the name by which plugins include it.

#ifndef SPILLWAY_POLICIES_PARAMS_H_
#define SPILLWAY_POLICIES_PARAMS_H_

#include "sim/core/params.h"

#endif  // SPILLWAY_POLICIES_PARAMS_H_
