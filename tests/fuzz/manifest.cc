// Fuzz target: the files from which runs are repeated. These are a manifest (`spillway replay-run`)
// and the decisions of a run (`--kernels-from`).
//
// Each input is given to both readers, and at most one reader accepts it.

#include "experiments/output/manifest.h"

#include <optional>
#include <string>

#include "experiments/output/decisions.h"
#include "tests/fuzz/property.h"

namespace spillway::fuzz {
namespace {

// Checks that writing a manifest and reading it again gives the same manifest and names the same
// run.
void CheckManifest(const Manifest& manifest) {
  const std::string text = FormatManifest(manifest);
  const Manifest again = ParseManifest(text, "again");
  SPILLWAY_CHECK(FormatManifest(again) == text);
  SPILLWAY_CHECK(RunSha256(again) == RunSha256(manifest));
  SPILLWAY_CHECK(again.arguments == manifest.arguments);
  SPILLWAY_CHECK(again.exit_code == manifest.exit_code && again.exit_code >= 0);
  for (const ManifestOutput& output : again.outputs) SPILLWAY_CHECK(output.bytes >= 0);
}

void CheckKernels(const KernelRecords& records) {
  for (const auto& [op, parts] : records) {
    SPILLWAY_CHECK(!parts.empty());
    for (const KernelRecord& part : parts) {
      SPILLWAY_CHECK(!part.slot.empty() && !part.algorithm.empty() && part.batch >= 1);
    }
  }
}

}  // namespace
}  // namespace spillway::fuzz

int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace spillway::fuzz;
  const std::string_view text = Text(data, size);
  std::optional<Manifest> manifest;
  std::optional<KernelRecords> kernels;
  Accepts("manifest", "", [&] { manifest = ParseManifest(text, "manifest"); });
  Accepts("decisions", "", [&] { kernels = ParseKernelRecords(text, "decisions"); });
  SPILLWAY_CHECK(!manifest || !kernels);
  if (manifest) CheckManifest(*manifest);
  if (kernels) CheckKernels(*kernels);
  return 0;
}
