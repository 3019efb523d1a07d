#include "experiments/cli/frame/help_text.h"

#include <fmt/format.h>

#include <algorithm>
#include <ranges>
#include <string_view>

#include "experiments/cli/frame/terminal.h"
#include "experiments/output/wrap.h"

namespace spillway::cli {
namespace {

constexpr size_t kTermWidth = 24;  // a row begins with two blanks, the name and two blanks

// Returns a row with a name and a text beside it, or below it if the name is long.
std::string Row(const std::string& name, const std::string& text, size_t width) {
  const std::string term = "  " + name;
  if (term.size() + 2 > kTermWidth) {
    return Wrapped(term, width, 4) +
           Wrapped(std::string(kTermWidth, ' ') + text, width, kTermWidth);
  }
  return Wrapped(fmt::format("{:<{}}{}", term, kTermWidth, text), width, kTermWidth);
}

std::string OptionRow(const Option& option, size_t width) {
  std::string name = fmt::format("{}", fmt::join(option.names, ", "));
  std::string text = option.Description();
  if (!option.type.empty() && !option.is_argument()) {
    name += " " + (option.type.starts_with('{') ? "WORD" : option.type);
  }
  if (option.several) name += " ...";
  if (!option.initial.empty()) text += fmt::format(" (default: {})", option.initial);
  if (option.required && !option.is_argument()) text += " (required)";
  return Row(name, text, width);
}

std::string OptionRows(const Command& command, bool arguments, size_t width) {
  std::string text;
  for (const Option& option : command.options) {
    if (option.is_argument() == arguments) text += OptionRow(option, width);
  }
  if (text.empty()) return text;
  return fmt::format("\n{}:\n{}", arguments ? "Arguments" : "Options", text);
}

// Returns the verbs, each with the first part of its help.
std::string VerbRows(const Command& command, size_t width) {
  std::string text;
  if (!command.verbs.empty() && command.verbs.front().heading.empty()) text += "\nVerbs:\n";
  for (const Command& verb : command.verbs) {
    if (!verb.heading.empty()) text += fmt::format("\n{}:\n", verb.heading);
    const size_t end = std::min({verb.help.find(": "), verb.help.find("; "), verb.help.find(". ")});
    text += Row(verb.name, verb.help.substr(0, end), width);
  }
  return text;
}

std::string Sentence(const std::string& text) { return text.ends_with('?') ? text : text + "."; }

std::string Usage(const std::vector<Command*>& chain) {
  const Command& command = *chain.back();
  std::string usage = "usage: " + PathOf(chain);
  if (!command.verbs.empty()) usage += command.run ? " [VERB]" : " VERB";
  for (const Option& option : command.options) {
    if (!option.is_argument()) continue;
    const std::string name = option.name() + (option.several ? "..." : "");
    usage += option.required ? " " + name : fmt::format(" [{}]", name);
  }
  return usage + " [OPTIONS]";
}

}  // namespace

std::string HelpText(const std::vector<Command*>& chain) {
  const Command& command = *chain.back();
  const size_t terminal = TerminalWidth(), width = terminal > 0 ? terminal : kTextWidth;
  std::string text =
      Wrapped(Usage(chain), width, 4) + "\n" + Wrapped(Sentence(command.help), width);
  text += VerbRows(command, width);
  text += OptionRows(command, true, width) + OptionRows(command, false, width);
  if (!command.examples.empty()) text += "\nExamples:\n";
  for (const std::string& example : command.examples) {
    const std::string lines =
        Wrapped(fmt::format("  {} {}", chain.front()->name, example), width - 2, 6);
    for (size_t i = 0; i < lines.size(); ++i) {
      text += lines[i] == '\n' && i + 1 < lines.size() ? " \\\n" : std::string(1, lines[i]);
    }
  }
  for (const Command* one : chain | std::views::reverse) {
    if (one->footer.empty()) continue;
    return text + "\n" + Wrapped(one->footer, width);
  }
  return text;
}

}  // namespace spillway::cli
