// Traces in the file format that several tests change and read.

#ifndef SPILLWAY_TESTS_UNIT_TRACES_FORMAT_CASES_H_
#define SPILLWAY_TESTS_UNIT_TRACES_FORMAT_CASES_H_

#include <cstdint>
#include <string>
#include <string_view>

#include "traces/trace.h"

namespace spillway::testing {

// The smallest trace with a value of every kind, one element per line.
inline constexpr std::string_view kSmall = R"({
"format": "spillway-trace", "version": 1, "name": "n:2", "network": "n", "batch": 2,
"preset": "torch", "training": true,
"layers": [{"name": "l", "type": "relu"}],
"tensors": [
{"name": "x", "kind": "input", "shape": [2, 3], "size": 24},
{"name": "y", "kind": "activation", "shape": [2, 3], "size": 24, "alias_of": "x"},
{"name": "s", "kind": "scratch", "shape": [], "size": 0}],
"ops": [
{"name": "l.fwd", "layer": "l", "type": "relu", "phase": "forward", "batch": 2, "inputs": ["x"],
 "outputs": ["y"], "scratch": ["s"], "attributes": {"elements": 3, "alpha": 0.5},
 "slots": [{"name": "fwd", "signature": "relu.fwd elements=3", "flops": 6, "traffic": 48}],
 "recomputable": true}]})";

// Returns `kSmall` with the first `from` replaced by `to`.
std::string Edited(std::string_view from, std::string_view to);

// Returns the message of the `InputError` that the trace `Edited(from, to)` in the file t.json
// gives; the test fails if there is none.
std::string ErrorOfEdit(std::string_view from, std::string_view to);

// Returns `text`, which is laid out like `kSmall`, with the ops first, then the tensors, the layers
// and the header.
std::string Shuffled(const std::string& text);

// Returns a random valid trace with chains of aliases, odd names and empty lists.
Trace RandomTrace(uint32_t seed);

}  // namespace spillway::testing

#endif  // SPILLWAY_TESTS_UNIT_TRACES_FORMAT_CASES_H_
