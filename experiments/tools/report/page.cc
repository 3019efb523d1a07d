#include "experiments/tools/report/page.h"

#include <fmt/format.h>

#include <array>
#include <filesystem>
#include <optional>
#include <string_view>

#include "experiments/output/run_result.h"
#include "experiments/run/data_files.h"
#include "policies/registry.h"
#include "traces/base/error.h"
#include "traces/base/file.h"
#include "traces/base/json_writer.h"

namespace spillway::lab {
namespace {

std::string Escaped(std::string_view text) {
  std::string escaped;
  for (const char c : text) {
    escaped += c == '<'   ? "&lt;"
               : c == '>' ? "&gt;"
               : c == '&' ? "&amp;"
               : c == '"' ? "&quot;"
                          : std::string(1, c);
  }
  return escaped;
}

// Returns the JSON with each '<' escaped, so that the JSON cannot end a script element. JSON has
// this character only within strings, where the escape is valid.
std::string ForScript(std::string_view json) {
  std::string text;
  text.reserve(json.size());
  for (const char c : json) {
    if (c == '<') {
      text += "\\u003c";
    } else {
      text += c;
    }
  }
  return text;
}

// The scripts of the page, in the order in which they use each other.
constexpr std::array kScripts{"words.js", "table.js",    "summary.js",
                              "plot.js",  "timeline.js", "page.js"};

std::string PageFile(const std::string& name) {
  const auto path = FindDataFile(std::filesystem::path("experiments/tools/report/page") / name);
  if (!path)
    throw InputError(fmt::format("experiments/tools/report/page/{}: no such data file", name));
  return ReadFile(*path);
}

std::string Dygraphs() {
  if (const auto path = FindDataFile("experiments/tools/report/page/dygraph.min.js")) {
    return ReadFile(*path);
  }
#ifdef SPILLWAY_DYGRAPHS
  std::error_code ignored;
  if (std::filesystem::exists(SPILLWAY_DYGRAPHS, ignored)) return ReadFile(SPILLWAY_DYGRAPHS);
#endif
  throw EnvironmentError(
      "reports need the plotting library dygraphs: apt-get install libjs-dygraphs, then build "
      "again");
}

std::string_view Name(ReportSection::Kind kind) {
  constexpr std::array<std::string_view, 4> kNames{"results", "validation", "table", "timeline"};
  return kNames[static_cast<size_t>(kind)];
}

// Returns a JSON object with the meaning of each result column and of each policy, and with the
// columns' headers.
std::string GlossaryJson() {
  JsonWriter json(0);
  json.BeginObject().Key("columns").BeginObject();
  for (const Column<RunResult>& column : ResultColumns()) {
    json.Key(column.name).BeginObject().Put("header", column.header).Put("help", column.help);
    json.EndObject();
  }
  json.EndObject().Key("policies").BeginObject();
  PolicyRegistry policies;
  RegisterBuiltinPolicies(policies);
  for (const PolicyRegistry::Entry& policy : policies.entries()) {
    json.Put(policy.name, policy.description);
  }
  return json.EndObject().EndObject().Take();
}

}  // namespace

std::string FormatReport(const std::string& title, const std::vector<ReportSection>& sections) {
  std::string body, data;
  for (size_t i = 0; i < sections.size(); ++i) {
    const ReportSection& section = sections[i];
    const std::string command = section.command.empty()
                                    ? ""
                                    : fmt::format("<pre class=\"command\"><code>{}</code></pre>\n",
                                                  Escaped(section.command));
    body += fmt::format(
        "<section data-kind=\"{}\" data-from=\"data-{}\" aria-labelledby=\"title-{}\">\n"
        "<h2 id=\"title-{}\">{}</h2>\n{}</section>\n",
        Name(section.kind), i, i, i, Escaped(section.title), command);
    data += fmt::format("<script type=\"application/json\" id=\"data-{}\">{}</script>\n", i,
                        ForScript(section.json));
  }
  std::string scripts;
  for (const char* script : kScripts) scripts += PageFile(script);
  return fmt::format(
      "<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n"
      "<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n"
      "<link rel=\"icon\" href=\"data:,\">\n<title>{0}</title>\n<style>\n{1}</style>\n</head>\n"
      "<body>\n<header><h1>{0}</h1>\n<nav aria-label=\"Sections\"></nav>\n"
      "<button id=\"theme\" type=\"button\">Dark or light</button></header>\n<main>\n{2}</main>\n"
      "{3}<script type=\"application/json\" "
      "id=\"glossary\">{4}</script>\n<script>\n{5}\n</script>\n"
      "<script>\n{6}</script>\n</body>\n</html>\n",
      Escaped(title), PageFile("page.css"), body, data, ForScript(GlossaryJson()), Dygraphs(),
      scripts);
}

}  // namespace spillway::lab
