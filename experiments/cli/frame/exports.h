// The option --export KIND:FILE of a verb, which writes files beside the results.

#ifndef SPILLWAY_EXPERIMENTS_CLI_FRAME_EXPORTS_H_
#define SPILLWAY_EXPERIMENTS_CLI_FRAME_EXPORTS_H_

#include <functional>
#include <map>
#include <string>
#include <vector>

#include "experiments/cli/frame/arguments.h"
#include "experiments/cli/frame/session.h"

namespace spillway::cli {

// A kind of file that a verb can export.
struct ExportKind {
  std::string name;                    // "trace"
  std::string help;                    // says what the file holds and who reads it
  std::vector<std::string> only = {};  // the values of another option that allow it; empty: any
};

struct ExportsOption {
  std::map<std::string, std::string> paths;  // by kind; only those that were asked for

  // Declares the option, which can be given once for each kind. The value `help` describes the
  // kinds. REQUIRES: `other`, the option that `ExportKind::only` speaks of, is given if a kind has
  // such values. The option and this object live as long as the verb.
  void Add(Command& verb, std::vector<ExportKind> kinds, const Option* other = nullptr);
  bool asks_for(const std::string& kind) const { return paths.contains(kind); }
  // Returns the file of the kind, whose path is empty if nobody asked for it.
  Export File(const std::string& kind, std::function<std::string(const Manifest&)> contents) const;
};

}  // namespace spillway::cli

#endif  // SPILLWAY_EXPERIMENTS_CLI_FRAME_EXPORTS_H_
