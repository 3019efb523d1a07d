#include "traces/import/execution_trace.h"

#include <fmt/format.h>
#include <simdjson.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <string_view>
#include <utility>

#include "traces/base/error.h"
#include "traces/base/json.h"
#include "traces/base/json_elements.h"
#include "traces/base/units.h"
#include "traces/import/how_to_record.h"

namespace spillway::traces {
namespace {

using simdjson::ondemand::array;
using simdjson::ondemand::object;
using simdjson::ondemand::value;
using TensorRef = ExecutionTrace::TensorRef;

constexpr std::string_view kOldSchema = "1.0.1";  // its nodes begin with their name
constexpr int kDeepest = 16;                      // depth of nested lists
constexpr int64_t kMost = int64_t{1} << 58;       // bytes of a storage, extent of a shape
constexpr int64_t kMostTotal = int64_t{1} << 60;  // bytes of all operands, so that no sum overflows
constexpr int64_t kMostElementSize = 64;

// A tensor is a list of five integers and the name of a device.
constexpr size_t kTensorIntegers = 5;

// The types of elements as execution traces call them: "Tensor(c10::BFloat16)".
constexpr std::array kElementTypes = std::to_array<std::pair<std::string_view, DataType>>({
    {"float", DataType::kFloat32},
    {"double", DataType::kFloat64},
    {"c10::Half", DataType::kFloat16},
    {"c10::BFloat16", DataType::kBfloat16},
    {"c10::Float8_e4m3fn", DataType::kFloat8E4m3fn},
    {"c10::Float8_e5m2", DataType::kFloat8E5m2},
    {"long", DataType::kInt64},
    {"long int", DataType::kInt64},
    {"int", DataType::kInt32},
    {"short", DataType::kInt16},
    {"short int", DataType::kInt16},
    {"signed char", DataType::kInt8},
    {"unsigned char", DataType::kUint8},
    {"bool", DataType::kBool},
    {"c10::complex<float>", DataType::kComplex64},
    {"c10::complex<double>", DataType::kComplex128},
});

// Appends the element types of the tensors in the type of an argument, such as
// "GenericList[Tensor(float),Tensor(long int)]".
void AppendElementTypes(std::string_view type, std::vector<DataType>& types) {
  constexpr std::string_view kTensor = "Tensor(";
  for (size_t at = type.find(kTensor); at != type.npos; at = type.find(kTensor, at)) {
    at += kTensor.size();
    const std::string_view name = type.substr(at, type.find(')', at) - at);
    const auto known =
        std::ranges::find(kElementTypes, name, [](const auto& row) { return row.first; });
    types.push_back(known == kElementTypes.end() ? DataType::kFloat32 : known->second);
  }
}

class NodeReader {
 public:
  // False if a node is broken or says what cannot be.
  bool Read(std::string_view text, ExecutionTrace::Node& node) {
    simdjson::ondemand::document document;
    object root;
    if (parser_.iterate(text, text.size() + JsonElements::kPadding).get(document) !=
        simdjson::SUCCESS)
      return false;
    if (document.get_object().get(root) != simdjson::SUCCESS) return false;
    inputs_ = {};
    outputs_ = {};
    bool has_id = false;
    for (auto result : root) {
      simdjson::ondemand::field field;
      std::string_view key;
      if (std::move(result).get(field) != simdjson::SUCCESS) return false;
      if (field.unescaped_key().get(key) != simdjson::SUCCESS) return false;
      value content = field.value();
      if (key == "id") {
        if (!Integer(content, node.id)) return false;
        has_id = true;
      } else if (key == "ctrl_deps" || key == "parent") {
        if (!Integer(content, node.parent)) return false;
      } else if (key == "name") {
        std::string_view name;
        if (content.get_string().get(name) != simdjson::SUCCESS) return false;
        node.name = name;
      } else if (key == "inputs") {
        if (!ReadOperands(content, inputs_)) return false;
      } else if (key == "outputs") {
        if (!ReadOperands(content, outputs_)) return false;
      } else if (key == "input_shapes") {
        if (!ReadList(content, false, inputs_)) return false;
      } else if (key == "output_shapes") {
        if (!ReadList(content, false, outputs_)) return false;
      } else if (key == "input_types" || key == "output_types") {
        ReadTypes(content, key == "input_types" ? inputs_ : outputs_);
      } else if (key == "attrs") {
        if (!ReadAttributes(content, node)) return false;
      } else if (!ReadAttribute(key, content, node)) {
        return false;
      }
    }
    SetTypes(inputs_);
    SetTypes(outputs_);
    node.inputs = WithShapes(inputs_);
    node.outputs = WithShapes(outputs_);
    return has_id && !node.name.empty();
  }

 private:
  static bool Integer(value number, int64_t& integer) {
    return number.get_int64().get(integer) == simdjson::SUCCESS;
  }

  bool ReadAttributes(value content, ExecutionTrace::Node& node) {
    array attributes;
    if (content.get_array().get(attributes) != simdjson::SUCCESS) return false;
    for (auto element : attributes) {
      object attribute;
      if (element.get_object().get(attribute) != simdjson::SUCCESS) return false;
      std::string_view name;
      if (attribute["name"].get_string().get(name) != simdjson::SUCCESS) return false;
      value held;
      if (attribute["value"].get(held) != simdjson::SUCCESS) continue;
      if (!ReadAttribute(name, held, node)) return false;
    }
    return true;
  }

  // Reads an attribute, which is a field of the node in schema 1.0.1. Returns false if its value is
  // broken.
  static bool ReadAttribute(std::string_view name, value content, ExecutionTrace::Node& node) {
    int64_t* const target = name == "rf_id"    ? &node.record
                            : name == "seq_id" ? &node.sequence
                            : name == "tid"    ? &node.thread
                                               : nullptr;
    if (target != nullptr) {
      // An unsigned number of 2^63 or more means that there is none.
      if (!Integer(content, *target)) *target = -1;
    } else if (name == "op_schema") {
      std::string_view schema;
      if (content.get_string().get(schema) != simdjson::SUCCESS) return false;
      node.schema = schema;
    }
    return true;
  }

  // The operands of a node on one side. Their shapes and types may be read before them.
  struct Operands {
    std::vector<TensorRef> refs;
    std::vector<std::vector<DataType>> types;  // by argument: the types of its tensors
    std::vector<std::pair<uint32_t, std::vector<int64_t>>> shapes;  // with their arguments
  };

  // Reads a list of values, or an object with lists of values and of shapes.
  bool ReadOperands(value content, Operands& to) {
    simdjson::ondemand::json_type type;
    if (content.type().get(type) != simdjson::SUCCESS) return false;
    if (type == simdjson::ondemand::json_type::array) return ReadList(content, true, to);
    object operands;
    if (content.get_object().get(operands) != simdjson::SUCCESS) return false;
    for (auto result : operands) {
      simdjson::ondemand::field field;
      std::string_view key;
      if (std::move(result).get(field) != simdjson::SUCCESS) return false;
      if (field.unescaped_key().get(key) != simdjson::SUCCESS) return false;
      if (key == "types") ReadTypes(field.value(), to);
      if (key != "values" && key != "shapes") continue;
      if (!ReadList(field.value(), key == "values", to)) return false;
    }
    return true;
  }

  // Reads a list of values, or one of shapes.
  bool ReadList(value content, bool values, Operands& to) {
    array list;
    if (content.get_array().get(list) != simdjson::SUCCESS) return false;
    uint32_t argument = 0;
    for (auto element : list) {
      value one;
      if (std::move(element).get(one) != simdjson::SUCCESS) return false;
      if (values ? !ReadValue(one, argument, 0, to) : !ReadShapes(one, argument, 0, to)) {
        return false;
      }
      ++argument;
    }
    return true;
  }

  // Collects the tensors of a value, which may be a tensor or nested lists of tensors.
  bool ReadValue(value content, uint32_t argument, int depth, Operands& to) {
    simdjson::ondemand::json_type type;
    if (content.type().get(type) != simdjson::SUCCESS) return false;
    if (type != simdjson::ondemand::json_type::array) return true;
    if (depth == kDeepest) return false;
    array list;
    if (content.get_array().get(list) != simdjson::SUCCESS) return false;
    int64_t integers[kTensorIntegers];
    size_t count = 0;
    bool is_tensor = true;
    for (auto element : list) {
      value one;
      if (std::move(element).get(one) != simdjson::SUCCESS) return false;
      if (one.type().get(type) != simdjson::SUCCESS) return false;
      if (type == simdjson::ondemand::json_type::array) {
        is_tensor = false;
        if (!ReadValue(one, argument, depth + 1, to)) return false;
      } else if (is_tensor && count < kTensorIntegers) {
        is_tensor =
            type == simdjson::ondemand::json_type::number && Integer(one, integers[count++]);
      } else if (is_tensor && count == kTensorIntegers) {
        ++count;
        std::string_view device;
        is_tensor = type == simdjson::ondemand::json_type::string &&
                    one.get_string().get(device) == simdjson::SUCCESS;
        if (is_tensor && !AddTensor(integers, device, argument, to)) return false;
      } else {
        is_tensor = false;
      }
    }
    return true;
  }

  // `integers` are the ids of tensor and storage, the offset, the number of elements and the bytes
  // per element.
  bool AddTensor(const int64_t (&integers)[kTensorIntegers], std::string_view device,
                 uint32_t argument, Operands& to) {
    TensorRef ref;
    ref.storage = integers[1];
    ref.offset = integers[2];
    ref.elements = integers[3];
    ref.element_size = integers[4];
    ref.argument = argument;
    if (device.starts_with("cuda")) {
      ref.on_gpu = true;
      const size_t colon = device.find(':');
      if (colon != device.npos) {
        std::from_chars(device.data() + colon + 1, device.data() + device.size(), ref.device);
      }
    } else if (device != "cpu") {
      return true;  // "meta" and other devices hold no data
    }
    if (ref.offset < 0 || ref.elements < 0 || ref.element_size < 0 ||
        ref.element_size > kMostElementSize || ref.offset > kMost / kMostElementSize ||
        ref.elements > kMost / kMostElementSize) {
      return false;
    }
    if (ref.end() > kMostTotal - total_) return false;
    total_ += ref.end();
    to.refs.push_back(std::move(ref));
    return true;
  }

  // Collects the types of the arguments. A broken list of types counts as none.
  static void ReadTypes(value content, Operands& to) {
    array list;
    to.types.clear();
    if (content.get_array().get(list) != simdjson::SUCCESS) return;
    for (auto element : list) {
      std::string_view type;
      if (element.get_string().get(type) != simdjson::SUCCESS) return to.types.clear();
      AppendElementTypes(type, to.types.emplace_back());
    }
  }

  // Gives each tensor its type, in arguments that have a type for each of their tensors.
  static void SetTypes(Operands& operands) {
    std::vector<size_t> counts(operands.types.size());
    for (const TensorRef& ref : operands.refs) {
      if (ref.argument < counts.size()) ++counts[ref.argument];
    }
    std::vector<size_t> next(counts.size());
    for (TensorRef& ref : operands.refs) {
      if (ref.argument >= counts.size()) continue;
      const std::vector<DataType>& types = operands.types[ref.argument];
      if (types.size() == counts[ref.argument]) ref.dtype = types[next[ref.argument]++];
    }
  }

  // Collects shapes. A tensor's shape is a list of integers; the shapes of other values are empty.
  static bool ReadShapes(value content, uint32_t argument, int depth, Operands& to) {
    array list;
    if (content.get_array().get(list) != simdjson::SUCCESS) return true;
    if (depth == kDeepest) return false;
    std::vector<int64_t> shape;
    bool nested = false;
    for (auto element : list) {
      value one;
      int64_t extent = 0;
      if (std::move(element).get(one) != simdjson::SUCCESS) return false;
      simdjson::ondemand::json_type type;
      if (one.type().get(type) != simdjson::SUCCESS) return false;
      if (type == simdjson::ondemand::json_type::array) {
        nested = true;
        if (!ReadShapes(one, argument, depth + 1, to)) return false;
      } else if (Integer(one, extent)) {
        shape.push_back(extent);
      }
    }
    if (!nested) to.shapes.emplace_back(argument, std::move(shape));
    return true;
  }

  // Returns the tensors. Each tensor of an argument has the next shape of that argument with as
  // many elements.
  static std::vector<TensorRef> WithShapes(Operands& operands) {
    auto shape = operands.shapes.begin();
    for (TensorRef& ref : operands.refs) {
      const auto fits = [&](const auto& candidate) {
        if (candidate.first != ref.argument) return false;
        Int128 product = 1;
        for (const int64_t extent : candidate.second) {
          if (extent < 0 || extent > kMost || product > kMost) return false;
          product *= extent;
        }
        return product == ref.elements;
      };
      const auto found = std::find_if(shape, operands.shapes.end(), fits);
      if (found == operands.shapes.end()) {
        ref.shape = {ref.elements};
        continue;
      }
      ref.shape = std::move(found->second);
      shape = std::next(found);
    }
    return std::move(operands.refs);
  }

  simdjson::ondemand::parser parser_;
  int64_t total_ = 0;          // bytes of all operands so far
  Operands inputs_, outputs_;  // the operands of the node being read
};

// Returns the schema that the text before the nodes names, or "?".
std::string SchemaOf(const std::string& header) {
  simdjson::padded_string text(header);
  simdjson::ondemand::parser parser;
  simdjson::ondemand::document document;
  std::string_view schema;
  if (parser.iterate(text).get(document) != simdjson::SUCCESS ||
      document["schema"].get_string().get(schema) != simdjson::SUCCESS) {
    return "?";
  }
  return JsonExcerpt(schema);
}

}  // namespace

ExecutionTrace ReadExecutionTrace(TextStream& stream) {
  JsonElements elements(stream, "nodes", "id", "an execution trace of PyTorch");
  const std::string schema = SchemaOf(elements.header());
  if (schema == kOldSchema) elements.set_first_key("name");
  ExecutionTrace trace;
  NodeReader reader;
  while (const auto text = elements.Next()) {
    ExecutionTrace::Node node;
    if (reader.Read(*text, node)) {
      trace.nodes.push_back(std::move(node));
    } else {
      ++trace.broken;
    }
  }
  trace.broken += elements.cut_off();
  if (elements.truncated() && elements.cut_off() == 0) ++trace.broken;
  if (trace.nodes.empty()) {
    throw InputError(fmt::format(
        "{}: no node of schema {} can be read, expected an execution trace of PyTorch (schemas "
        "1.0.1 to 1.1.1){}",
        stream.origin(), schema, kHowToRecord));
  }
  std::ranges::stable_sort(trace.nodes, {}, &ExecutionTrace::Node::id);
  return trace;
}

}  // namespace spillway::traces
