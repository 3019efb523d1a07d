// spillway completion: scripts that complete verbs, options and values in bash, zsh and fish.
//
// The scripts are generated from the command line's own declaration, so they know what it knows.
// Names of networks, policies and the like are asked for when a user presses the key: the scripts
// call `spillway completion networks`.

#include <fmt/format.h>

#include <algorithm>
#include <array>

#include "experiments/cli/frame/options.h"
#include "experiments/cli/frame/verbs.h"
#include "policies/registry.h"
#include "sim/alloc/make_allocator.h"
#include "traces/lowering/lowering.h"
#include "traces/zoo/zoo.h"

namespace spillway::cli {
namespace {

// An option or argument whose values are names that the program knows.
struct NamedValues {
  std::string_view option;
  std::string_view names;  // an argument of this verb
};
constexpr std::array kNamedValues{
    NamedValues{"--policy", "policies"},      NamedValues{"--device", "devices"},
    NamedValues{"--allocator", "allocators"}, NamedValues{"--preset", "presets"},
    NamedValues{"workload", "networks"},      NamedValues{"workloads", "networks"},
    NamedValues{"network", "families"},       NamedValues{"verb", "verbs"},
};

std::vector<std::string> Names(const std::string& what) {
  std::vector<std::string> names;
  if (what == "networks") {
    for (const ZooEntry& entry : Zoo()) names.push_back(entry.name + ":");
  } else if (what == "families") {
    for (const ZooEntry& entry : Zoo()) names.push_back(entry.name);
  } else if (what == "policies") {
    PolicyRegistry registry;
    RegisterBuiltinPolicies(registry);
    for (const auto& entry : registry.entries()) names.push_back(entry.name);
  } else if (what == "devices") {
    names = DeviceNames();
  } else if (what == "allocators") {
    for (const AllocatorInfo& info : Allocators()) names.push_back(info.name);
  } else if (what == "presets") {
    for (const Preset& preset : Presets()) names.push_back(preset.name);
  }
  return names;
}

// How an option or argument is completed.
struct Completed {
  std::vector<std::string> spellings;  // "--format"; empty for an argument
  std::string help;
  bool takes_value = true;
  std::vector<std::string> choices;  // the values, where they are declared
  std::string names;                 // or what to ask the program for
  bool files = false;                // or files
};

// One (sub)command: `path` is "/run" or "/trace/build", "" for the program itself.
struct Node {
  std::string path;
  std::string help;
  std::vector<Completed> options;
  std::vector<Completed> arguments;
  std::vector<std::pair<std::string, std::string>> verbs;  // name and help
};

// "TEXT:{table,csv,json}" declares its values between the braces.
std::vector<std::string> Choices(const std::string& type) {
  std::vector<std::string> choices;
  const size_t open = type.find('{'), close = type.find('}');
  if (open == std::string::npos || close == std::string::npos) return choices;
  for (size_t at = open + 1; at < close;) {
    const size_t end = std::min(type.find(',', at), close);
    choices.push_back(type.substr(at, end - at));
    at = end + 1;
  }
  return choices;
}

Completed Describe(const CLI::Option& option) {
  Completed completed;
  for (const std::string& name : option.get_lnames()) completed.spellings.push_back("--" + name);
  for (const std::string& name : option.get_snames()) completed.spellings.push_back("-" + name);
  completed.help = option.get_description();
  completed.takes_value = option.get_items_expected_max() > 0;
  completed.choices = Choices(option.get_type_name());
  const std::string name =
      completed.spellings.empty() ? option.get_name(true) : completed.spellings.front();
  for (const NamedValues& known : kNamedValues) {
    if (known.option == name) completed.names = known.names;
  }
  completed.files =
      completed.choices.empty() &&
      (completed.names.empty() || completed.names == "networks" || completed.names == "devices");
  return completed;
}

void Walk(const CLI::App& app, const std::string& path, std::vector<Node>& nodes) {
  Node node;
  node.path = path;
  node.help = app.get_description();
  for (const CLI::Option* option : app.get_options()) {
    Completed completed = Describe(*option);
    (completed.spellings.empty() ? node.arguments : node.options).push_back(std::move(completed));
  }
  const auto verbs = app.get_subcommands([](const CLI::App*) { return true; });
  for (const CLI::App* verb : verbs) {
    node.verbs.emplace_back(verb->get_name(), verb->get_description());
  }
  nodes.push_back(std::move(node));
  for (const CLI::App* verb : verbs) Walk(*verb, path + "/" + verb->get_name(), nodes);
}

// --- bash and zsh: one function with two ends ---------------------------------------------------

// The words that a shell offers, as an expression in its own language.
std::string ShellWords(const Completed& completed) {
  if (!completed.choices.empty()) return fmt::format("{}", fmt::join(completed.choices, " "));
  if (!completed.names.empty()) {
    return fmt::format("$(\"${{COMP_WORDS[0]:-spillway}}\" completion {} 2>/dev/null)",
                       completed.names);
  }
  return {};
}

std::string ShellCase(const std::string& pattern, const Completed& completed) {
  return fmt::format("    {}) offer=\"{}\"; files={} ;;\n", pattern, ShellWords(completed),
                     completed.files ? 1 : 0);
}

// Sets `offer` and `files` from the variables `at` (the path of verbs), `cur` and `prev`.
std::string ShellCases(const std::vector<Node>& nodes) {
  std::string values, rest;
  for (const Node& node : nodes) {
    std::vector<std::string> spellings;
    for (const Completed& option : node.options) {
      spellings.insert(spellings.end(), option.spellings.begin(), option.spellings.end());
      if (!option.takes_value) continue;
      std::string pattern;
      for (const std::string& spelling : option.spellings) {
        pattern += fmt::format("{}\"{} {}\"", pattern.empty() ? "" : "|", node.path, spelling);
      }
      values += ShellCase(pattern, option);
    }
    rest += fmt::format("    \"{} -\") offer=\"{}\" ;;\n", node.path, fmt::join(spellings, " "));
    if (node.verbs.empty() && node.arguments.empty()) continue;
    Completed next = node.arguments.empty() ? Completed() : node.arguments.front();
    for (const auto& [name, help] : node.verbs) next.choices.push_back(name);
    rest += ShellCase(fmt::format("\"{} \"", node.path), next);
  }
  return fmt::format(
      "  case \"$at $prev\" in\n{}    *) matched=0 ;;\n  esac\n"
      "  if [[ $matched == 0 ]]; then\n    local kind=\"\"\n    [[ $cur == -* ]] && kind=-\n"
      "    case \"$at $kind\" in\n{}    esac\n  fi\n",
      values, rest);
}

// The path of verbs among the words before the cursor: `COMP_WORDS[1..COMP_CWORD)`.
std::string ShellPath(const std::vector<Node>& nodes) {
  std::string patterns;
  for (const Node& node : nodes) {
    if (!node.path.empty()) patterns += fmt::format("{}{}", patterns.empty() ? "" : "|", node.path);
  }
  return fmt::format(
      "  local at=\"\" i\n  for ((i = 1; i < COMP_CWORD; ++i)); do\n"
      "    case \"$at/${{COMP_WORDS[i]}}\" in\n      {}) at=\"$at/${{COMP_WORDS[i]}}\" ;;\n"
      "    esac\n  done\n",
      patterns);
}

std::string BashScript(const std::vector<Node>& nodes) {
  return fmt::format(
      "# bash completion of spillway; use: source <(spillway completion bash)\n"
      "_spillway() {{\n"
      "  local cur=\"${{COMP_WORDS[COMP_CWORD]}}\" prev=\"${{COMP_WORDS[COMP_CWORD - 1]}}\"\n"
      "  local offer=\"\" files=0 matched=1\n"
      "  # --option=value comes as three words\n"
      "  if [[ $cur == = ]]; then cur=\"\"; elif [[ $prev == = ]]; then "
      "prev=\"${{COMP_WORDS[COMP_CWORD - 2]}}\"; fi\n"
      "{}{}"
      "  COMPREPLY=($(compgen -W \"$offer\" -- \"$cur\"))\n"
      "  [[ $files == 1 ]] && COMPREPLY+=($(compgen -f -- \"$cur\"))\n"
      "  [[ ${{#COMPREPLY[@]}} == 1 && ${{COMPREPLY[0]}} == *: ]] && compopt -o nospace "
      "2>/dev/null\n"
      "  return 0\n"
      "}}\n"
      "complete -F _spillway spillway\n",
      ShellPath(nodes), ShellCases(nodes));
}

std::string ZshScript(const std::vector<Node>& nodes) {
  return fmt::format(
      "#compdef spillway\n"
      "# zsh completion of spillway; use: source <(spillway completion zsh)\n"
      "_spillway() {{\n"
      "  setopt localoptions ksh_arrays\n"
      "  local -a COMP_WORDS=(\"${{words[@]}}\")\n"
      "  local COMP_CWORD=$((CURRENT - 1))\n"
      "  local cur=\"${{COMP_WORDS[COMP_CWORD]}}\" prev=\"${{COMP_WORDS[COMP_CWORD - 1]}}\"\n"
      "  local offer=\"\" files=0 matched=1\n"
      "{}{}"
      "  unsetopt ksh_arrays\n"
      "  compadd -- ${{${{=offer}}:#*:}}\n"
      "  compadd -S '' -- ${{(M)${{=offer}}:#*:}}\n"
      "  [[ $files == 1 ]] && _files\n"
      "  return 0\n"
      "}}\n"
      "compdef _spillway spillway\n",
      ShellPath(nodes), ShellCases(nodes));
}

// --- fish ---------------------------------------------------------------------------------------

std::string FishQuote(const std::string& text) {
  std::string quoted = "'";
  for (const char c : text) {
    if (c == '\'' || c == '\\') quoted += '\\';
    quoted += c;
  }
  return quoted + "'";
}

std::string FishWords(const Completed& completed) {
  if (!completed.choices.empty()) {
    return fmt::format(" -a '{}'", fmt::join(completed.choices, " "));
  }
  if (!completed.names.empty()) {
    return fmt::format(" -a '(spillway completion {} 2>/dev/null)'", completed.names);
  }
  return {};
}

std::string FishScript(const std::vector<Node>& nodes) {
  std::string text =
      "# fish completion of spillway; use: spillway completion fish | source\n"
      "complete -c spillway -f\n";
  for (const Node& node : nodes) {
    // The condition: every verb of the path has been typed, and none below it.
    std::string condition;
    for (size_t at = 0; at < node.path.size();) {
      const size_t end = std::min(node.path.find('/', at + 1), node.path.size());
      condition +=
          fmt::format("{}__fish_seen_subcommand_from {}", condition.empty() ? "" : "; and ",
                      node.path.substr(at + 1, end - at - 1));
      at = end;
    }
    if (condition.empty()) condition = "__fish_use_subcommand";
    const std::string prefix = fmt::format("complete -c spillway -n '{}'", condition);
    for (const auto& [name, help] : node.verbs) {
      std::string below = condition;
      if (!node.path.empty()) {
        below += "; and not __fish_seen_subcommand_from";
        for (const auto& [other, ignored] : node.verbs) below += " " + other;
      }
      text +=
          fmt::format("complete -c spillway -n '{}' -a {} -d {}\n", below, name, FishQuote(help));
    }
    for (const Completed& option : node.options) {
      text += prefix;
      for (const std::string& spelling : option.spellings) {
        text +=
            spelling.starts_with("--") ? " -l " + spelling.substr(2) : " -s " + spelling.substr(1);
      }
      if (option.takes_value) text += option.files ? " -r -F" : " -x";
      text += FishWords(option) + " -d " + FishQuote(option.help) + "\n";
    }
    if (!node.arguments.empty()) {
      const Completed& argument = node.arguments.front();
      text += prefix + (argument.files ? " -F" : "") + FishWords(argument) + "\n";
    }
  }
  return text;
}

}  // namespace

void AddCompletion(CLI::App& app, int& exit_code) {
  CLI::App* verb = app.add_subcommand(
      "completion", "Print a completion script for a shell, or the names that it completes");
  auto what = std::make_shared<std::string>();
  verb->add_option("what", *what, "A shell, or a kind of names")
      ->required()
      ->check(CLI::IsMember({"bash", "zsh", "fish", "networks", "families", "policies", "devices",
                             "allocators", "presets", "verbs"}));
  verb->callback([what, &app, &exit_code] {
    std::vector<Node> nodes;
    Walk(app, "", nodes);
    if (*what == "bash") {
      fmt::print("{}", BashScript(nodes));
    } else if (*what == "zsh") {
      fmt::print("{}", ZshScript(nodes));
    } else if (*what == "fish") {
      fmt::print("{}", FishScript(nodes));
    } else if (*what == "verbs") {
      for (const auto& [name, help] : nodes.front().verbs) fmt::print("{}\n", name);
    } else {
      for (const std::string& name : Names(*what)) fmt::print("{}\n", name);
    }
    exit_code = kOk;
  });
}

}  // namespace spillway::cli
