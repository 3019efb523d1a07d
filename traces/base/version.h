// The version of Spillway. CMake reads it from here.
//
// Before 1.0 a new minor version may change any interface; a patch version changes none. This
// header is a leaf: it includes no other header.

#ifndef SPILLWAY_TRACES_BASE_VERSION_H_
#define SPILLWAY_TRACES_BASE_VERSION_H_

#define SPILLWAY_VERSION_STRING "0.1.0"

#endif  // SPILLWAY_TRACES_BASE_VERSION_H_
