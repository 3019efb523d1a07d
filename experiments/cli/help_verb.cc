// spillway help: prints help on a verb, or the manual page, from the declared options.

#include <fmt/format.h>

#include <string>
#include <string_view>
#include <vector>

#include "experiments/cli/frame/session.h"
#include "experiments/cli/frame/verbs.h"

namespace spillway::cli {
namespace {

// Returns the text with escapes for roff, so that no line of the text is a request.
std::string Roff(std::string_view text) {
  std::string escaped;
  for (const char c : text) {
    if (escaped.empty() || escaped.back() == '\n') escaped += c == '.' || c == '\'' ? "\\&" : "";
    if (c == '\\') {
      escaped += "\\e";
    } else {
      escaped += c == '-' ? "\\-" : std::string(1, c);
    }
  }
  return escaped;
}

std::string OptionsRoff(const Command& command) {
  std::string text;
  for (const Option& option : command.options) {
    std::string type = option.type;
    if (!option.initial.empty()) type += fmt::format(" [{}]", option.initial);
    text += fmt::format(".TP\n\\fB{}\\fR {}\n{}\n",
                        Roff(fmt::format("{}", fmt::join(option.names, ","))), Roff(type),
                        Roff(option.help));
  }
  return text;
}

void AddVerbsRoff(const Command& command, const std::string& path, std::string& text) {
  for (const Command& verb : command.verbs) {
    const std::string words = path + verb.name;
    text += fmt::format(".SS \"{}\"\n{}\n", Roff(words), Roff(verb.help)) + OptionsRoff(verb);
    for (const std::string& example : verb.examples) {
      text += fmt::format(".P\nspillway {}\n", Roff(example));
    }
    AddVerbsRoff(verb, words + " ", text);
  }
}

std::string ManualPage(const Command& program) {
  std::string text = fmt::format(
      ".TH SPILLWAY 1 \"\" \"spillway {}\"\n.SH NAME\nspillway \\- simulate GPU memory for neural "
      "networks\n.SH SYNOPSIS\n.B spillway\nVERB [ARGUMENTS] [OPTIONS]\n"
      ".SH DESCRIPTION\n{}\n.SH OPTIONS\n",
      SPILLWAY_VERSION, Roff(program.help));
  text += OptionsRoff(program) + ".SH VERBS\n";
  AddVerbsRoff(program, "", text);
  return text + fmt::format(".SH NOTES\n{}\n", Roff(program.footer));
}

}  // namespace

void AddHelp(Command& program, Session& session) {
  Command& verb = program.Add("help", "Print help on a verb, or the manual page");
  verb.examples = {"help compare", "help trace import"};
  auto& verbs = verb.Keep<std::vector<std::string>>();
  auto& manual = verb.Keep<bool>();
  verb.Texts("verb", verbs, "A verb, then one of its own verbs if it has some").Verbatim();
  verb.Flag("--man", manual, "Print the manual page, for man -l");
  verb.Runs([&program, &verbs, &manual, &session] {
    if (manual) return session.Finish(ManualPage(program), kOk);
    Command* named = &program;
    for (const std::string& word : verbs) named = &named->Find(word);
    std::vector<std::string> arguments = verbs;
    arguments.emplace_back("--help");
    return program.Execute(arguments);
  });
}

}  // namespace spillway::cli
