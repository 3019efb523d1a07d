// Reads weights, images and labels from files, which replace synthetic data.

#ifndef SPILLWAY_EXPERIMENTS_RUN_GIVEN_CONTENTS_H_
#define SPILLWAY_EXPERIMENTS_RUN_GIVEN_CONTENTS_H_

#include <optional>
#include <span>
#include <string>

#include "traces/base/safetensors.h"
#include "traces/trace.h"

namespace spillway {

// Weights and images from files in the safetensors format, of type F32; tokens and labels are I32.
// The weights file has exactly the parameters, optimizer state and running statistics of the trace,
// with the names and shapes that the trace gives them ("conv1.weight"). For training it may lack
// optimizer state. The images file has one tensor of any name, with the shape of the trace's image
// or tokens including the batch, and may have the labels of the batch, called "labels". Each
// iteration gets the same.
class GivenContents {
 public:
  // Reads the files. An empty path means that no such file is given. Throws the errors of
  // `SafetensorsFile`. Throws an `InputError` that names file, tensor and shapes if a file belongs
  // to another network or batch.
  GivenContents(const std::string& weights, const std::string& images, const Trace& trace);

  // Writes the given initial contents of a tensor to `bytes` and returns true. Returns false if
  // they are not given. A part of a tensor gets its bytes of the whole tensor. `trace` may be a
  // trace that a policy made from the constructor's trace.
  bool Fill(const Trace& trace, TensorId id, std::span<std::byte> bytes) const;

 private:
  void CheckWeights(const Trace& trace) const;
  void CheckImages(const Trace& trace) const;

  std::optional<SafetensorsFile> weights_, images_;
  std::string labels_;  // the name of the trace's labels; empty if it has none
};

}  // namespace spillway

#endif  // SPILLWAY_EXPERIMENTS_RUN_GIVEN_CONTENTS_H_
