#include "traces/logs/open_log.h"

#include <array>
#include <fstream>

#include "traces/base/error.h"
#include "traces/base/file.h"
#include "traces/logs/pytorch_snapshot.h"
#include "traces/logs/text_logs.h"

namespace spillway::traces {
namespace {

constexpr char kPickleProto = '\x80';

}  // namespace

std::unique_ptr<MemoryLog> ParseMemoryLog(std::string contents, const std::string& origin,
                                          std::optional<int> device) {
  if (contents.starts_with(kPickleProto)) {
    return ParsePyTorchSnapshot(std::move(contents), origin, device);
  }
  contents.erase(0, contents.size() - PlainText(contents, origin).size());
  const size_t first = contents.find_first_not_of(" \t\r\n");
  if (first != std::string::npos && contents[first] == '{') {
    return ParseDecisionsLog(contents, origin);
  }
  const std::string_view text = contents;
  const std::string_view header = first == std::string::npos
                                      ? text.substr(0, 0)
                                      : text.substr(first, text.find('\n', first) - first);
  if (IsRmmHeader(header)) return ParseRmmLog(std::move(contents), origin);
  if (IsStaticHeader(header)) return ParseStaticProblem(contents, origin);
  throw InputError(
      origin +
      ": unknown format (valid: a PyTorch memory snapshot, the JSON of spillway run "
      "--export decisions, CSV with the columns Action,Pointer,Size,Stream of RMM, CSV with the "
      "columns id,lower,upper,size)");
}

std::unique_ptr<MemoryLog> OpenMemoryLog(const std::filesystem::path& path,
                                         std::optional<int> device) {
  // A snapshot may be larger than memory, so it is never read as a whole.
  char first = 0;
  std::ifstream(path, std::ios::binary).get(first);
  if (first == kPickleProto) return OpenPyTorchSnapshot(path, device);
  return ParseMemoryLog(ReadFile(path), path.string(), device);
}

}  // namespace spillway::traces
