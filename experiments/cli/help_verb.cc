// spillway help: help on a verb, and the manual page, both from the declarations of the verbs.

#include <fmt/format.h>

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "experiments/cli/frame/session.h"
#include "experiments/cli/frame/verbs.h"
#include "traces/base/error.h"

namespace spillway::cli {
namespace {

std::vector<const CLI::App*> VerbsOf(const CLI::App& app) {
  return app.get_subcommands([](const CLI::App*) { return true; });
}

// Text as roff reads it: no line of it is a request.
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

std::string OptionRoff(const CLI::Option& option) {
  const std::string name =
      option.get_positional() ? option.get_name(true) : option.get_name(false, true);
  std::string type = option.get_items_expected_max() > 0 ? option.get_type_name() : "";
  if (const std::string initial = option.get_default_str(); !initial.empty()) {
    type += fmt::format(" [{}]", initial);
  }
  return fmt::format(".TP\n\\fB{}\\fR {}\n{}\n", Roff(name), Roff(type),
                     Roff(option.get_description()));
}

void AddVerbRoff(const CLI::App& verb, const std::string& path, std::string& text) {
  text += fmt::format(".SS \"{}\"\n{}\n", Roff(path), Roff(verb.get_description()));
  for (const CLI::Option* option : verb.get_options()) text += OptionRoff(*option);
  for (const CLI::App* below : VerbsOf(verb)) {
    AddVerbRoff(*below, path + " " + below->get_name(), text);
  }
}

std::string ManualPage(const CLI::App& app) {
  std::string text = fmt::format(
      ".TH SPILLWAY 1 \"\" \"spillway {}\"\n.SH NAME\nspillway \\- simulate GPU memory for neural "
      "networks\n.SH SYNOPSIS\n.B spillway\nVERB [ARGUMENTS] [OPTIONS]\n"
      ".SH DESCRIPTION\n{}\n.SH OPTIONS\n",
      SPILLWAY_VERSION, Roff(app.get_description()));
  for (const CLI::Option* option : app.get_options()) text += OptionRoff(*option);
  text += ".SH VERBS\n";
  for (const CLI::App* verb : VerbsOf(app)) AddVerbRoff(*verb, verb->get_name(), text);
  return text + fmt::format(".SH NOTES\n{}\n", Roff(app.get_footer()));
}

const CLI::App& Find(const CLI::App& app, const std::vector<std::string>& words) {
  const CLI::App* at = &app;
  for (const std::string& word : words) {
    const CLI::App* found = nullptr;
    std::vector<std::string> names;
    for (const CLI::App* verb : VerbsOf(*at)) {
      names.push_back(verb->get_name());
      if (verb->get_name() == word) found = verb;
    }
    if (found == nullptr) {
      if (names.empty()) throw UsageError(fmt::format("'{}' has no verbs", at->get_name()));
      throw UsageError(UnknownName("verb", word, names));
    }
    at = found;
  }
  return *at;
}

}  // namespace

void AddHelp(CLI::App& app, int& exit_code, Session& session) {
  CLI::App* verb = app.add_subcommand("help", "Print help on a verb, or the manual page");
  struct Options {
    std::vector<std::string> verbs;
    bool manual = false;
  };
  auto options = std::make_shared<Options>();
  verb->add_option("verb", options->verbs, "A verb, and one of its own where it has some");
  verb->add_flag("--man", options->manual, "Print the manual page, for man -l");
  verb->callback([options, &app, &exit_code, &session] {
    std::string prefix = "spillway";
    for (const std::string& word : options->verbs) prefix += " " + word;
    const std::string parent = prefix.substr(0, prefix.rfind(' '));
    const CLI::App& found = Find(app, options->verbs);
    session.Print(options->manual          ? ManualPage(app)
                  : options->verbs.empty() ? app.get_formatter()->make_help(
                                                 &app, app.get_name(), CLI::AppFormatMode::Normal)
                                           : found.help(parent));
    exit_code = kOk;
  });
}

}  // namespace spillway::cli
