// Finds the tensors that hold the device memory when the most bytes are requested.

#ifndef SPILLWAY_EXPERIMENTS_OUTPUT_PEAK_H_
#define SPILLWAY_EXPERIMENTS_OUTPUT_PEAK_H_

#include <string>
#include <vector>

#include "experiments/output/columns.h"
#include "sim/core/report.h"
#include "traces/trace.h"

namespace spillway::lab {

// A tensor or workspace that is on the device at the peak.
struct PeakHolder {
  std::string name;  // the name of a tensor, or "workspace"
  std::string kind;  // the kind of the tensor, or "workspace"
  Bytes requested;
  // The layer of the op that writes the tensor first, or uses it first if no op writes it. For a
  // parameter, of the op that uses it first.
  std::string layer;
  std::string block;  // the block of that layer (`BlocksOf`); empty if there is none
};

// A block, or layers with equal names in blocks with equal stems, with the bytes that its tensors
// hold.
struct PeakSum {
  std::string name;
  std::string kind;     // empty, or the kind of tensors that belong to no layer: optimizer state
  int64_t tensors = 0;  // number of tensors and workspaces
  Bytes requested;
};

// The moment at which the most bytes are requested.
struct MemoryPeak {
  std::string op;  // name of the op at which the peak is reached first
  Bytes requested;
  std::vector<PeakHolder> holders;  // most bytes first, then by name
};

// Returns the peak. REQUIRES: the logs are complete (`report.fits()`) and belong to `trace`.
MemoryPeak FindPeak(const Trace& trace, const Report& report);

// Returns the sums of each block, most bytes first. The name of the sum of all layers without a
// block is empty. Optimizer state has a sum of its own.
std::vector<PeakSum> BlockSums(const MemoryPeak& peak);
// Returns the sums of the layers, most bytes first. Layers that differ only in the number of their
// block, or in the number of the operator that a recording puts behind the name, are one sum:
// "transformer.h.*/mul".
std::vector<PeakSum> LayerSums(const MemoryPeak& peak);

// Returns a text for people, in lines of at most 80 characters unless names are longer: the bytes
// of each kind, of blocks with equal stems, of the `most` largest sums of layers and of the `most`
// largest tensors.
std::string FormatPeakSums(const MemoryPeak& peak, size_t most);

// Returns a text for people with the bytes of each kind and the `most` largest holders.
std::string FormatPeak(const MemoryPeak& peak, size_t most);

Columns<PeakHolder> PeakColumns();
Columns<PeakSum> PeakSumColumns();

}  // namespace spillway::lab

#endif  // SPILLWAY_EXPERIMENTS_OUTPUT_PEAK_H_
