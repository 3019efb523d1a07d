// Writes a JSON document piece by piece, with the layout that all of the program's documents share.
//
// Keys come out in the order given and nothing depends on the locale, so the same calls give the
// same bytes. Containers down to a chosen depth spread over lines, deeper ones stay on one.

#ifndef SPILLWAY_EXPERIMENTS_OUTPUT_JSON_WRITER_H_
#define SPILLWAY_EXPERIMENTS_OUTPUT_JSON_WRITER_H_

#include <string>
#include <string_view>
#include <vector>

#include "experiments/output/result_row.h"

namespace spillway {

class JsonWriter {
 public:
  // Containers nested deeper than `spread` are written on one line.
  explicit JsonWriter(size_t spread) : spread_(spread) {}

  // Inside an object, each value or container is preceded by its `Key`.
  JsonWriter& Key(std::string_view key);
  JsonWriter& Put(const Value& value);
  // A number as the text given, for decimals that a `double` cannot hold.
  JsonWriter& PutNumber(std::string_view text);
  JsonWriter& BeginObject() { return Begin('{'); }
  JsonWriter& EndObject() { return End('}'); }
  JsonWriter& BeginArray() { return Begin('['); }
  JsonWriter& EndArray() { return End(']'); }

  JsonWriter& Put(std::string_view key, const Value& value) { return Key(key).Put(value); }
  // The columns of a row as one object.
  JsonWriter& PutRow(const Row& row);

  // The document, ending in a newline. REQUIRES: every container has been ended.
  std::string Take();

 private:
  JsonWriter& Begin(char bracket);
  JsonWriter& End(char bracket);
  void Separate();

  size_t spread_;
  std::string text_;
  std::vector<bool> has_elements_;  // of the containers that are open, outermost first
  bool after_key_ = false;
};

}  // namespace spillway

#endif  // SPILLWAY_EXPERIMENTS_OUTPUT_JSON_WRITER_H_
