// spillway completion: scripts that complete verbs, options and values in bash, zsh and fish.
//
// The scripts are made from the declared options. For names of networks, policies, devices and
// allocators a script calls the program when a user presses the key: `spillway completion
// networks`.

#include <fmt/format.h>

#include <algorithm>
#include <array>

#include "experiments/cli/frame/arguments.h"
#include "experiments/cli/frame/session.h"
#include "experiments/cli/frame/verbs.h"
#include "experiments/run/allocator_choice.h"
#include "experiments/run/device_specification.h"
#include "policies/registry.h"
#include "traces/zoo/zoo.h"

namespace spillway::cli {
namespace {

// An option or argument whose values are names that `spillway completion` prints.
struct NamedValues {
  std::string_view option;
  std::string_view names;  // the argument of `spillway completion`
};
constexpr std::array kNamedValues{
    NamedValues{"--policy", "policies"},
    NamedValues{"--device", "devices"},
    NamedValues{"--allocator", "allocators"},
    NamedValues{"workload", "networks"},
    NamedValues{"workloads", "networks"},
    NamedValues{"network", "families"},
    NamedValues{"verb", "verbs"},
};

std::vector<std::string> Names(const std::string& what, const Command& program) {
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
    for (const AllocatorInfo& info : AllocatorChoices()) names.push_back(info.name);
  } else if (what == "verbs") {
    for (const Command& verb : program.verbs) names.push_back(verb.name);
  }
  return names;
}

// The completion of the value of an option or argument: choices, else names, and files.
struct Values {
  std::vector<std::string> choices;  // the values, if they are declared
  std::string_view names;            // the argument of `spillway completion`; may be empty
  bool files = false;                // the value may be the path of a file
};

Values ValuesOf(const Option& option) {
  Values values{option.choices, "", false};
  for (const NamedValues& known : kNamedValues) {
    if (known.option == option.name()) values.names = known.names;
  }
  if (option.type == "KIND:FILE") {
    for (std::string& kind : values.choices) kind += ":";
  }
  values.files = values.choices.empty() &&
                 (values.names.empty() || values.names == "networks" || values.names == "devices");
  return values;
}

// A command with the path of words that name it: "/run" or "/trace/build", "" for the program.
struct Node {
  std::string path;
  const Command* command;

  const Option* argument() const {
    const auto found = std::ranges::find_if(command->options, &Option::is_argument);
    return found == command->options.end() ? nullptr : &*found;
  }
};

void Walk(const Command& command, const std::string& path, std::vector<Node>& nodes) {
  nodes.push_back({path, &command});
  for (const Command& verb : command.verbs) Walk(verb, path + "/" + verb.name, nodes);
}

// --- bash and zsh: one function with two ends ---------------------------------------------------

// Returns the words that a shell offers, as an expression of bash and zsh.
std::string ShellWords(const Values& values) {
  if (!values.choices.empty()) return fmt::format("{}", fmt::join(values.choices, " "));
  if (values.names.empty()) return {};
  return fmt::format("$(\"${{COMP_WORDS[0]:-spillway}}\" completion {} 2>/dev/null)", values.names);
}

std::string ShellCase(const std::string& pattern, const Values& values) {
  return fmt::format("    {}) offer=\"{}\"; files={} ;;\n", pattern, ShellWords(values),
                     values.files ? 1 : 0);
}

// Returns shell code that sets `offer` and `files` from the variables `at` (the path of verbs),
// `cur` and `prev`.
std::string ShellCases(const std::vector<Node>& nodes) {
  std::string values, rest;
  for (const Node& node : nodes) {
    std::vector<std::string> spellings;
    for (const Option& option : node.command->options) {
      if (option.is_argument()) continue;
      std::string pattern;
      for (const std::string& spelling : option.names) {
        spellings.push_back(spelling);
        pattern += fmt::format("{}\"{} {}\"", pattern.empty() ? "" : "|", node.path, spelling);
      }
      if (!option.type.empty()) values += ShellCase(pattern, ValuesOf(option));
    }
    rest += fmt::format("    \"{} -\") offer=\"{}\" ;;\n", node.path, fmt::join(spellings, " "));
    const Option* argument = node.argument();
    if (node.command->verbs.empty() && argument == nullptr) continue;
    Values next = argument == nullptr ? Values() : ValuesOf(*argument);
    for (const Command& verb : node.command->verbs) next.choices.push_back(verb.name);
    rest += ShellCase(fmt::format("\"{} \"", node.path), next);
  }
  return fmt::format(
      "  case \"$at $prev\" in\n{}    *) matched=0 ;;\n  esac\n"
      "  if [[ $matched == 0 ]]; then\n    local kind=\"\"\n    [[ $cur == -* ]] && kind=-\n"
      "    case \"$at $kind\" in\n{}    esac\n  fi\n",
      values, rest);
}

// Returns shell code that sets `at` to the path of verbs in `COMP_WORDS[1..COMP_CWORD)`, the words
// before the cursor.
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

std::string FishWords(const Values& values) {
  if (!values.choices.empty()) return fmt::format(" -a '{}'", fmt::join(values.choices, " "));
  if (values.names.empty()) return {};
  return fmt::format(" -a '(spillway completion {} 2>/dev/null)'", values.names);
}

std::string FishScript(const std::vector<Node>& nodes) {
  std::string text =
      "# fish completion of spillway; use: spillway completion fish | source\n"
      "complete -c spillway -f\n";
  for (const Node& node : nodes) {
    // The condition is that the user has typed every verb of the path.
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
    for (const Command& verb : node.command->verbs) {
      std::string below = condition;
      if (!node.path.empty()) {
        below += "; and not __fish_seen_subcommand_from";
        for (const Command& other : node.command->verbs) below += " " + other.name;
      }
      text += fmt::format("complete -c spillway -n '{}' -a {} -d {}\n", below, verb.name,
                          FishQuote(verb.help));
    }
    for (const Option& option : node.command->options) {
      if (option.is_argument()) continue;
      const Values values = ValuesOf(option);
      text += prefix;
      for (const std::string& spelling : option.names) {
        text +=
            spelling.starts_with("--") ? " -l " + spelling.substr(2) : " -s " + spelling.substr(1);
      }
      if (!option.type.empty()) text += (values.files ? " -r -F" : " -x") + FishWords(values);
      text += " -d " + FishQuote(option.help) + "\n";
    }
    if (const Option* argument = node.argument()) {
      const Values values = ValuesOf(*argument);
      text += prefix + (values.files ? " -F" : "") + FishWords(values) + "\n";
    }
  }
  return text;
}

}  // namespace

void AddCompletion(Command& program, Session& session) {
  Command& verb = program.Add(
      "completion", "Print a completion script for a shell, or the names that it completes");
  verb.examples = {"completion bash", "completion policies"};
  auto& what = verb.Keep<std::string>();
  verb.Choice("what", what,
              {"bash", "zsh", "fish", "networks", "families", "policies", "devices", "allocators",
               "verbs"},
              "A shell, or a kind of names")
      .Required();
  verb.Runs([&what, &program, &session] {
    std::vector<Node> nodes;
    Walk(program, "", nodes);
    if (what == "bash") return session.Finish(BashScript(nodes), kOk);
    if (what == "zsh") return session.Finish(ZshScript(nodes), kOk);
    if (what == "fish") return session.Finish(FishScript(nodes), kOk);
    return session.Finish(fmt::format("{}\n", fmt::join(Names(what, program), "\n")), kOk);
  });
}

}  // namespace spillway::cli
