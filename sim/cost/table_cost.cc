#include "sim/cost/table_cost.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <set>
#include <tuple>
#include <utility>

#include "traces/base/error.h"
#include "traces/base/file.h"
#include "traces/base/json.h"
#include "traces/base/json_writer.h"

namespace spillway::sim {
namespace {

constexpr std::string_view kFormat = "spillway-cost-table";
constexpr int kVersion = 1;
// 1000 seconds, which leaves room to add the times of 9000 kernels.
constexpr int64_t kMaxTime = 1'000'000'000'000'000;

using Value = JsonDocument::Value;

bool FasterFirst(const RecordedKernel& a, const RecordedKernel& b) {
  const auto key = [](const RecordedKernel& recorded) {
    const Kernel& kernel = recorded.kernel;
    return std::tuple(kernel.time, kernel.workspace, std::string_view(kernel.algorithm));
  };
  return key(a) < key(b);
}

bool EarlierEntry(const CostEntry& a, const CostEntry& b) {
  return std::tie(a.signature, a.batch) < std::tie(b.signature, b.batch);
}

void Sort(CostTable& table) {
  for (CostEntry& entry : table.entries) {
    std::sort(entry.kernels.begin(), entry.kernels.end(), FasterFirst);
  }
  std::sort(table.entries.begin(), table.entries.end(), EarlierEntry);
}

class TableReader {
 public:
  TableReader(std::string_view text, const std::string& origin) : json_(text, origin) {}

  CostTable Read() {
    json_.ReadHeader(kFormat, kVersion);
    json_.ReadRoot(Required("format", SkipJson), Required("version", SkipJson),
                   Required("workload", String(table_.workload)),
                   Required("provenance", [this](Value v) { ReadProvenance(v); }),
                   Optional("in_sequence_ps",
                            [this](Value v) {
                              table_.in_sequence =
                                  Duration::Picoseconds(json_.ReadInteger(v, 0, kMaxTime));
                            }),
                   Required("entries", [this](Value v) {
                     json_.ReadArray(v, [this](Value entry) { ReadEntry(entry); });
                   }));
    Sort(table_);
    return std::move(table_);
  }

 private:
  struct StringReader {
    JsonDocument& json;
    std::string& target;
    void operator()(Value value) const { target = json.ReadString(value); }
  };
  StringReader String(std::string& target) { return {json_, target}; }

  void ReadProvenance(Value value) {
    Provenance& provenance = table_.provenance;
    json_.ReadObject(
        value, Required("gpu", String(provenance.gpu)),
        Required("driver", String(provenance.driver)), Required("cuda", String(provenance.cuda)),
        Required("cudnn", String(provenance.cudnn)), Required("math", String(provenance.math)),
        Required("date", String(provenance.date)), Required("tool", String(provenance.tool)));
  }

  void ReadEntry(Value value) {
    CostEntry& entry = table_.entries.emplace_back();
    json_.ReadObject(value, Required("signature", String(entry.signature)),
                     Required("batch",
                              [&](Value v) {
                                entry.batch =
                                    json_.ReadInteger(v, 1, std::numeric_limits<int64_t>::max());
                              }),
                     Required("kernels", [&](Value v) {
                       json_.ReadArray(v, [&](Value kernel) { ReadKernel(kernel, entry); });
                       if (entry.kernels.empty()) json_.Fail("the list of kernels is empty");
                     }));
    if (!known_.emplace(entry.signature, entry.batch).second) {
      json_.Fail(fmt::format("'{}' at batch {} is in this table already",
                             JsonExcerpt(entry.signature), entry.batch));
    }
  }

  void ReadKernel(Value value, CostEntry& entry) {
    RecordedKernel recorded;
    Kernel& kernel = recorded.kernel;
    json_.ReadObject(
        value, Required("algorithm", [&](Value v) { ReadAlgorithm(v, entry, kernel); }),
        Required("time_ps",
                 [&](Value v) {
                   kernel.time = Duration::Picoseconds(json_.ReadInteger(v, 1, kMaxTime));
                 }),
        Required("workspace",
                 [&](Value v) {
                   kernel.workspace = Bytes(json_.ReadInteger(v, 0, Bytes::Unlimited().count()));
                 }),
        Required("deterministic", [&](Value v) { kernel.deterministic = json_.ReadBool(v); }),
        Required("repeats",
                 [&](Value v) {
                   recorded.repeats =
                       static_cast<int>(json_.ReadInteger(v, 0, std::numeric_limits<int>::max()));
                 }),
        Required("spread", [&](Value v) {
          recorded.spread = json_.ReadNumber(v);
          if (recorded.spread < 0) json_.Fail("expected a number from 0, got a negative one");
        }));
    entry.kernels.push_back(std::move(recorded));
  }

  void ReadAlgorithm(Value value, const CostEntry& entry, Kernel& kernel) {
    kernel.algorithm = json_.ReadString(value);
    for (const RecordedKernel& other : entry.kernels) {
      if (other.kernel.algorithm == kernel.algorithm) {
        json_.Fail(
            fmt::format("algorithm '{}' is in this entry already", JsonExcerpt(kernel.algorithm)));
      }
    }
  }

  JsonDocument json_;
  CostTable table_;
  std::set<std::pair<std::string, int64_t>> known_;
};

void PutEntry(JsonWriter& json, const CostEntry& entry) {
  json.BeginObject().Put("signature", entry.signature).Put("batch", entry.batch);
  json.Key("kernels").BeginArray();
  for (const auto& [kernel, repeats, spread] : entry.kernels) {
    json.Break(6).BeginObject().Put("algorithm", kernel.algorithm);
    json.Put("time_ps", kernel.time.picoseconds()).Put("workspace", kernel.workspace);
    json.Put("deterministic", kernel.deterministic).Put("repeats", repeats);
    json.Put("spread", spread).EndObject();
  }
  json.EndArray().EndObject();
}

}  // namespace

CostTable ReadCostTable(const std::filesystem::path& path) {
  return ParseCostTable(ReadFile(path), path.string());
}

CostTable ParseCostTable(std::string_view text, const std::string& origin) {
  return TableReader(text, origin).Read();
}

std::string FormatCostTable(const CostTable& table) {
  CostTable sorted = table;
  Sort(sorted);
  const Provenance& provenance = sorted.provenance;
  JsonWriter json(2);
  json.BeginObject().Put("format", kFormat).Put("version", kVersion);
  json.Put("workload", sorted.workload).Key("provenance");
  json.BeginObjectOnOneLine().Put("gpu", provenance.gpu).Put("driver", provenance.driver);
  json.Put("cuda", provenance.cuda).Put("cudnn", provenance.cudnn).Put("math", provenance.math);
  json.Put("date", provenance.date).Put("tool", provenance.tool).EndObject();
  if (table.in_sequence > Duration()) {
    json.Put("in_sequence_ps", table.in_sequence.picoseconds());
  }
  json.Key("entries").BeginArray();
  for (const CostEntry& entry : sorted.entries) PutEntry(json, entry);
  std::string out = json.EndArray().EndObject().Take();
  ParseCostTable(out, fmt::format("cost table '{}'", table.workload));  // throws if a reader would
  return out;
}

void WriteCostTable(const CostTable& table, const std::filesystem::path& path) {
  WriteFile(path, FormatCostTable(table));
}

TableCostModel::TableCostModel(std::vector<CostTable> tables, const Device& device, Missing missing)
    : h2d_(device.h2d), d2h_(device.d2h) {
  if (missing == Missing::kRoofline) rest_.emplace(device);
  if (tables.empty()) throw InputError("a recorded cost model needs at least one cost table");
  provenance_ = tables.front().provenance;
  for (CostTable& table : tables) {
    const auto check = [&](std::string_view key, const std::string& first,
                           const std::string& other) {
      if (first != other) {
        throw InputError(fmt::format(
            "cost tables '{}' and '{}' cannot be used together: {} is '{}' in one, '{}' in the "
            "other",
            tables.front().workload, table.workload, key, first, other));
      }
    };
    check("gpu", provenance_.gpu, table.provenance.gpu);
    check("cudnn", provenance_.cudnn, table.provenance.cudnn);
    check("math", provenance_.math, table.provenance.math);
  }
  for (CostTable& table : tables) Add(std::move(table));
}

TableCostModel::TableCostModel(CostTable table, const Device& device, Missing missing)
    : TableCostModel(std::vector<CostTable>{std::move(table)}, device, missing) {}

void TableCostModel::Add(CostTable table) {
  Sort(table);
  for (CostEntry& entry : table.entries) {
    if (entry.kernels.empty()) {
      throw InputError(fmt::format("cost table '{}': '{}' at batch {} has no kernels",
                                   table.workload, entry.signature, entry.batch));
    }
    const auto [place, inserted] = kernels_[entry.signature].try_emplace(entry.batch);
    if (!inserted) continue;
    for (RecordedKernel& recorded : entry.kernels) {
      recorded.kernel.time += table.in_sequence;
      recorded.kernel.in_sequence = table.in_sequence;
      place->second.push_back(std::move(recorded.kernel));
    }
  }
}

std::vector<int64_t> TableCostModel::Batches(const Op& op, size_t slot) const {
  SPILLWAY_CHECK(slot < op.slots.size());
  std::vector<int64_t> batches;
  if (const auto found = kernels_.find(op.slots[slot].signature); found != kernels_.end()) {
    for (const auto& [batch, kernels] : found->second) {
      if (batch < op.batch) batches.push_back(batch);
    }
  }
  batches.push_back(op.batch);
  return batches;
}

std::span<const Kernel> TableCostModel::Kernels(const Op& op, size_t slot, int64_t batch) const {
  SPILLWAY_CHECK(slot < op.slots.size());
  const std::string& signature = op.slots[slot].signature;
  const auto batches = kernels_.find(signature);
  if (batches != kernels_.end()) {
    const auto found = batches->second.find(batch);
    if (found != batches->second.end()) return found->second;
  }
  if (rest_) return rest_->Kernels(op, slot, batch);
  std::string recorded;
  if (batches != kernels_.end()) {
    for (const auto& [known, kernels] : batches->second) {
      recorded += fmt::format("{}{}", recorded.empty() ? "" : ", ", known);
    }
  }
  throw InputError(fmt::format(
      "no cost for op '{}': '{}' at batch {} is not in the table {} ({}); record it with "
      "`spillway record`",
      op.name, signature, batch, Provenance(),
      recorded.empty() ? "nor at any other batch" : fmt::format("recorded batches: {}", recorded)));
}

Duration TableCostModel::CopyTime(Direction direction, Bytes size) const {
  const Link& link = direction == Direction::kToDevice ? h2d_ : d2h_;
  return link.latency + TransferTime(size, link.bandwidth);
}

std::string TableCostModel::Provenance() const {
  return fmt::format("recorded on {}, cuDNN {}, {}{}", provenance_.gpu, provenance_.cudnn,
                     provenance_.math, rest_ ? ", and the roofline for other slices" : "");
}

}  // namespace spillway::sim
