// Weights and images from files, in place of synthetic ones.

#ifndef SPILLWAY_EXPERIMENTS_RUN_GIVEN_CONTENTS_H_
#define SPILLWAY_EXPERIMENTS_RUN_GIVEN_CONTENTS_H_

#include <optional>
#include <span>
#include <string>

#include "traces/base/safetensors.h"
#include "traces/trace.h"

namespace spillway {

// Files in the format safetensors, all of F32. `weights` has each parameter and the running
// statistics of an inference, named and shaped as the trace has them ("conv1.weight"), and nothing
// else; `images` has one tensor, of any name, shaped as the trace's image with its batch.
class GivenContents {
 public:
  // An empty path: nothing of that is given. Throws `InputError` as `SafetensorsFile`, and one that
  // names file, tensor and shapes if the files are of another network or batch.
  GivenContents(const std::string& weights, const std::string& images, const Trace& trace);

  // Writes what a tensor starts with, if it is given; of a part, its bytes of the whole. `trace`
  // may be one that a policy made of that of the constructor.
  bool Fill(const Trace& trace, TensorId id, std::span<std::byte> bytes) const;

 private:
  void CheckWeights(const Trace& trace) const;
  void CheckImages(const Trace& trace) const;

  std::optional<SafetensorsFile> weights_, images_;
};

}  // namespace spillway

#endif  // SPILLWAY_EXPERIMENTS_RUN_GIVEN_CONTENTS_H_
