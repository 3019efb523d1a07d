#include "experiments/run/compression_plan.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <utility>

#include "sim/compression/zero_value.h"
#include "traces/base/csv.h"
#include "traces/base/error.h"
#include "traces/base/file.h"

namespace spillway::lab {
namespace {

constexpr Bytes kMaxDensitiesFile = Bytes::MiB(16);

// An estimate of the time until a thread that waits for a copy wakes after the copy has landed.
constexpr Duration kOverhead = Duration::Microseconds(20);

std::optional<double> ParseShare(std::string_view text) {
  double value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  const bool whole = error == std::errc() && end == text.data() + text.size();
  return whole && value >= 0 && value <= 1 ? std::optional(value) : std::nullopt;
}

bool IsFeatureMap(const Tensor& tensor) {
  return tensor.kind == TensorKind::kActivation && !tensor.alias_of;
}

Growth GrowthOf(const HostCompression& compression) {
  return {compression.fraction, compression.threads};
}

// Returns the bytes that a storage takes in the compressed store.
Bytes StoredSize(const HostCompression& compression, Bytes size, double density) {
  Bytes total;
  for (int64_t i = 0; i < compression.pieces(size); ++i) {
    total += CompressedSize(compression.PieceOf(size, i), density, GrowthOf(compression));
  }
  return total;
}

bool SavesEnough(const CompressionPlan& plan, Bytes size, double density) {
  const Bytes saved = size - StoredSize(plan.machine, size, density);
  return static_cast<double>(saved.count()) >= plan.saving * static_cast<double>(size.count());
}

// Reads the keys of a request, except density, saving and slower, which `values` does not have.
// Throws `UsageError` for an invalid value.
Params ReadKeys(Params::Values values, CompressionRequest& request) {
  Params params("compression", std::move(values));
  HostCompression& machine = request.machine;
  const auto integer = [&](const char* name, int initial, int most, const char* help) {
    return static_cast<int>(params.Integer(name, initial, 1, most, help));
  };
  machine.threads = integer("threads", 0, 1024,
                            "threads of the host that compress; the same number decompresses; "
                            "without it, the number in the device file");
  machine.piece = params.Size("piece", machine.piece, "size of a staging buffer");
  machine.buffers = integer("buffers", machine.buffers, 1024, "staging buffers in each direction");
  machine.fraction = integer("fraction", machine.fraction, 4096,
                             "the compressed store grows by 1 / (fraction * threads) of a piece");
  if (machine.piece < Bytes::KiB(4) || machine.piece > Bytes::GiB(4)) {
    throw UsageError("compression: piece must be from 4KiB to 4GiB");
  }
  machine.piece = RoundUp(machine.piece, Bytes::KiB(4));
  params.Finish();
  return params;
}

std::optional<std::string> Take(Params::Values& values, std::string_view key) {
  const auto found = values.find(key);
  if (found == values.end()) return std::nullopt;
  std::string value = std::move(found->second);
  values.erase(found);
  return value;
}

// Returns the storages that were copied to the host during the iteration.
std::set<TensorId> Offloaded(const Report& report) {
  std::set<TensorId> offloaded;
  for (const TimelineEntry& entry : report.timeline) {
    if (entry.event.stream == Stream::kToHost) offloaded.insert(entry.tensor);
  }
  return offloaded;
}

}  // namespace

// --- Densities ----------------------------------------------------------------------------------

Densities ReadDensities(const std::filesystem::path& path) {
  return ParseDensities(ReadFile(path, kMaxDensitiesFile), path.string());
}

Densities ParseDensities(std::string_view contents, const std::string& origin) {
  const std::string_view text = PlainText(contents, origin);
  if (text.empty()) throw InputError(origin + ":1:1: the file is empty");
  Densities densities;
  ForEachCsvLine(text, origin, [&](size_t number, const auto& fields) {
    const auto fail = [&](const std::string& what) {
      throw InputError(fmt::format("{}:{}:1: {}", origin, number, what));
    };
    if (number == 1) {
      if (fields.size() < 2 || fields[0] != "tensor" || fields[1] != "density") {
        fail("expected a header that begins with tensor,density");
      }
      return;
    }
    if (fields.size() < 2) fail("expected a tensor and its density");
    const std::optional<double> density = ParseShare(fields[1]);
    if (!density) fail(fmt::format("'{}' is not a density from 0 to 1", fields[1]));
    if (!densities.emplace(fields[0], *density).second) {
      fail(fmt::format("'{}' is there twice", fields[0]));
    }
  });
  return densities;
}

std::string FormatDensities(const Trace& trace, const std::vector<StoredContents>& stored) {
  std::string text = "tensor,density,bytes,compressed_bytes\r\n";
  for (const StoredContents& contents : stored) {
    text += fmt::format("{},{},{},{}\r\n", CsvField(trace.tensor(contents.storage).name),
                        contents.density, contents.size.count(), contents.held.count());
  }
  return text;
}

std::optional<double> CompressionPlan::DensityOf(const Tensor& tensor) const {
  if (density) return density;
  if (!densities) return std::nullopt;
  const auto found = densities->find(tensor.name);
  return found == densities->end() ? std::nullopt : std::optional(found->second);
}

bool CompressionPlan::Hides(Duration iteration) const {
  return baseline && static_cast<double>(iteration.picoseconds()) <=
                         (1 + slower) * static_cast<double>(baseline->picoseconds());
}

// --- The specification --------------------------------------------------------------------------

CompressionRequest ParseCompression(std::string_view text) {
  Specification specification = ParseSpecification("compression", text);
  const std::vector<std::string> modes{"all", "hidden"};
  if (std::find(modes.begin(), modes.end(), specification.name) == modes.end()) {
    throw UsageError(UnknownName("compression", specification.name, modes));
  }
  CompressionRequest request;
  request.text = text;
  request.only_hidden = specification.name == "hidden";
  const auto take_share = [&](const char* key, double& share) {
    const auto given = Take(specification.values, key);
    if (!given) return;
    const auto parsed = ParseShare(*given);
    if (!parsed) {
      throw UsageError(fmt::format("compression: {}='{}' is not a share from 0 to 1", key, *given));
    }
    share = *parsed;
  };
  take_share("saving", request.saving);
  take_share("slower", request.slower);
  const auto density = Take(specification.values, "density");
  ReadKeys(std::move(specification.values), request);
  if (!density) return request;
  request.density = ParseShare(*density);
  if (request.density) return request;
  const bool number = density->find_first_not_of("0123456789.-+eE") == std::string::npos;
  if (number) {
    throw UsageError(fmt::format("compression: density='{}' is not a share from 0 to 1", *density));
  }
  request.densities_file = *density;
  return request;
}

CompressionPlan::CompressionPlan(const CompressionRequest& request, const Device& device)
    : CompressionRequest(request) {
  if (machine.threads == 0) machine.threads = device.codec.threads;
  machine.compress = {device.codec.compress.bytes_per_second * machine.threads};
  machine.decompress = {device.codec.decompress.bytes_per_second * machine.threads};
  machine.overhead = kOverhead;
  if (!densities_file.empty()) densities = ReadDensities(densities_file);
}

std::string DescribeCompression() {
  CompressionRequest request;
  const Params params = ReadKeys({}, request);
  std::string text =
      "all\n    every offloaded feature map that saves enough\n"
      "hidden\n    of those as many, the sparsest first, as make the iteration no longer\n"
      "    density=number|FILE: share of the words that are not zero, of every feature map, or a "
      "CSV file tensor,density (--export densities writes one); needed for predictions\n"
      "    slower=share (default 0): an iteration longer by no more than this counts as hidden\n"
      "    saving=share (default 0.1): least part of a storage's bytes that is worth it\n";
  for (const ParamInfo& param : params.declared()) {
    text += fmt::format("    {}={} (default {}): {}\n", param.name, param.type, param.initial,
                        param.help);
  }
  return text;
}

// --- The choice ---------------------------------------------------------------------------------

HostCompression CompressionOf(const CompressionPlan& plan, const Trace& trace) {
  HostCompression compression = plan.machine;
  compression.kept.resize(trace.tensors.size());
  for (size_t i = 0; i < trace.tensors.size(); ++i) {
    const Tensor& tensor = trace.tensors[i];
    compression.kept[i] =
        IsFeatureMap(tensor) && (!plan.chosen || plan.chosen->contains(tensor.name));
  }
  return compression;
}

std::vector<FeatureMap> WorthKeeping(const CompressionPlan& plan, const Trace& trace,
                                     const Report& report) {
  std::vector<FeatureMap> worth;
  for (const TensorId id : Offloaded(report)) {
    const Tensor& tensor = trace.tensor(id);
    const std::optional<double> density = plan.DensityOf(tensor);
    if (!IsFeatureMap(tensor) || !density || !SavesEnough(plan, tensor.size, *density)) continue;
    worth.push_back({tensor.name, *density});
  }
  return worth;
}

// --- The outcome --------------------------------------------------------------------------------

CompressionSummary Summarize(const CompressionPlan& plan, const HostCompression& compression,
                             const Trace& trace, const Report& report) {
  CompressionSummary summary;
  summary.baseline = plan.baseline;
  for (const TensorId id : Offloaded(report)) {
    const Tensor& tensor = trace.tensor(id);
    OffloadedStorage storage{id, tensor.size, plan.DensityOf(tensor), compression.Keeps(id), {}};
    if (!IsFeatureMap(tensor)) storage.density.reset();  // the plan's density is for feature maps
    if (storage.compressed) {
      ++summary.storages;
      if (storage.density) storage.held = StoredSize(compression, tensor.size, *storage.density);
    }
    summary.offloaded.push_back(storage);
  }
  if (summary.storages > 0) summary.staging = compression.staging();
  Bytes plain, pinned, pageable;
  for (const Placement& placement : report.placements) {
    if (placement.pool != PoolId::kHost) continue;
    const bool keeps = placement.tensor != kNoTensor && compression.Keeps(placement.tensor);
    const int64_t sign = placement.kind == PlacementKind::kAllocate ? 1 : -1;
    plain += placement.block.size * sign;
    if (keeps) {
      const Tensor& tensor = trace.tensor(placement.tensor);
      pageable += StoredSize(compression, tensor.size, plan.DensityOf(tensor).value_or(1.0)) * sign;
    } else {
      pinned += placement.block.size * sign;
    }
    summary.plain_peak = std::max(summary.plain_peak, plain);
    summary.pinned_peak = std::max(summary.pinned_peak, pinned);
    summary.pageable_peak = std::max(summary.pageable_peak, pageable);
  }
  summary.pinned_peak += summary.staging;
  return summary;
}

void CompressionSummary::Measured(std::vector<StoredContents> contents, Bytes peak) {
  stored = std::move(contents);
  pageable_peak = peak;
  for (OffloadedStorage& storage : offloaded) {
    const auto found = std::find_if(
        stored.begin(), stored.end(),
        [&](const StoredContents& measured) { return measured.storage == storage.storage; });
    if (found == stored.end()) continue;
    storage.density = found->density;
    storage.held = found->held;
  }
}

}  // namespace spillway::lab
