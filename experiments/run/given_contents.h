// Reads weights and data from files, which replace synthetic data, and writes weights.

#ifndef SPILLWAY_EXPERIMENTS_RUN_GIVEN_CONTENTS_H_
#define SPILLWAY_EXPERIMENTS_RUN_GIVEN_CONTENTS_H_

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "traces/base/safetensors.h"
#include "traces/trace.h"

namespace spillway::lab {

// The paths of the files. An empty path means that no such file is given.
struct GivenFiles {
  std::string weights, images, text;

  bool any() const { return !weights.empty() || has_data(); }
  bool has_data() const { return !images.empty() || !text.empty(); }
};

// Weights, images and tokens from files in the safetensors format, and text. Weights have the type
// of the trace, F32 or BF16; images are of type F32, tokens and labels of I32.
//
// The weights file has exactly the parameters, optimizer state and running statistics of the trace,
// with the names and shapes that the trace gives them ("conv1.weight"). For training it may lack
// optimizer state: master copies then begin as the parameters, and all else with zeros.
//
// The images file has one tensor of any name, and may have another one called "labels". They hold a
// whole number of batches of the trace's images or tokens and of its labels. Each iteration gets
// the next batch, and the first follows on the last.
//
// The tokens of a text are its bytes. Each sample follows on the one before, in the next iteration,
// too, and the start of the text follows on its end. The label of a token is the next one.
class GivenContents {
 public:
  // Reads the files. Throws the errors of `SafetensorsFile` and `ReadFile`. Throws an `InputError`
  // that names the file if it belongs to another network or batch. REQUIRES: at most one of
  // images and text is given.
  GivenContents(const GivenFiles& files, const Trace& trace);

  // Writes the given contents of a tensor in an iteration, from 0, to `bytes` and returns true.
  // Returns false if they are not given. A part of a tensor gets its bytes of the whole tensor.
  // `trace` may be a trace that a policy made from the constructor's trace.
  bool Fill(const Trace& trace, TensorId id, int64_t iteration, std::span<std::byte> bytes) const;

 private:
  void CheckWeights(const Trace& trace) const;
  void CheckImages(const Trace& trace) const;
  // Fills a master copy, which the file lacks, from the parameter of bfloat16. Returns false if the
  // tensor is none.
  bool FillMaster(std::string_view name, std::span<std::byte> bytes) const;
  void ReadText(const std::string& path, const Trace& trace);

  std::optional<SafetensorsFile> weights_, images_;
  std::string text_;
  std::string labels_;  // the name of the trace's labels; empty if it has none
};

// Returns a file in the safetensors format with the parameters and optimizer state of the trace.
// REQUIRES: `contents` are those of `Execution::weights`.
std::string FormatWeights(const Trace& trace, std::string_view contents);

}  // namespace spillway::lab

#endif  // SPILLWAY_EXPERIMENTS_RUN_GIVEN_CONTENTS_H_
