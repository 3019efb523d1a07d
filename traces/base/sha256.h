// SHA-256 (FIPS 180-4) of a text in memory, used to recognise files. Not meant for secrets.

#ifndef SPILLWAY_TRACES_BASE_SHA256_H_
#define SPILLWAY_TRACES_BASE_SHA256_H_

#include <string>
#include <string_view>

#include "traces/base/namespaces.h"

namespace spillway::traces {

// Returns the digest in 64 lower-case hexadecimal digits.
std::string Sha256(std::string_view text);

}  // namespace spillway::traces

#endif  // SPILLWAY_TRACES_BASE_SHA256_H_
