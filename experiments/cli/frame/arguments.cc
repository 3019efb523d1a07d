#include "experiments/cli/frame/arguments.h"

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <charconv>
#include <map>
#include <string>

#include "experiments/run/pattern.h"
#include "experiments/run/workload_text.h"
#include "traces/base/error.h"

namespace spillway::cli {
namespace {

constexpr const char* kHelpNames = "-h,--help";
constexpr const char* kVersionName = "--version";

std::string Join(const std::vector<std::string>& texts) {
  return fmt::format("{}", fmt::join(texts, ","));
}

// Returns the number of the range that the text is, or nullopt.
std::optional<uint64_t> ParseNumber(const std::string& text, Command::Range range) {
  uint64_t number = 0;
  const char* const end = text.data() + text.size();
  const auto [used, error] = std::from_chars(text.data(), end, number);
  const bool good = error == std::errc() && used == end;
  return good && range.low <= number && number <= range.high ? std::optional(number) : std::nullopt;
}

// Returns a message about words that the command does not take.
std::string Unexpected(const std::vector<std::string>& words, const Command& command,
                       const std::string& path) {
  std::vector<std::string> options, arguments;
  for (const Option& option : command.options) {
    std::vector<std::string>& names = option.is_argument() ? arguments : options;
    names.insert(names.end(), option.names.begin(), option.names.end());
  }
  for (const std::string& word : words) {
    if (!word.starts_with('-')) continue;
    const std::string name = word.substr(0, word.find('='));
    for (const WorkloadOption& option : WorkloadOptions()) {
      if (name != fmt::format("--{}", option.name)) continue;
      return fmt::format("unknown option '{}': it is part of a workload's text, WORKLOAD,{}=VALUE",
                         name, option.name);
    }
    return UnknownName("option", name, options);
  }
  return fmt::format(
      "'{}' is one argument too many for {} (valid: {})", words.front(), path,
      arguments.empty() ? "only options" : fmt::format("{}", fmt::join(arguments, " ")));
}

// Returns a message about an option or argument of the command that is not given.
std::string Missing(const Option& missing, const Command& command, const std::string& path) {
  std::string message =
      fmt::format("{} needs the {} {}: {}", path, missing.is_argument() ? "argument" : "option",
                  missing.name(), missing.Description());
  if (!missing.is_argument()) return message;
  // An option with several values takes an argument that follows it.
  const auto greedy = std::ranges::find_if(command.options, [](const Option& option) {
    return option.given && !option.is_argument() && option.several && !option.one_each;
  });
  if (greedy == command.options.end()) return message;
  return fmt::format("{}; it goes before {}, which takes all values behind it", message,
                     greedy->name());
}

// Returns the end of a message about a command that is given without a verb.
std::string MissingVerb(const Command& command) {
  std::vector<std::string> names;
  for (const Command& verb : command.verbs) names.push_back(verb.name);
  return fmt::format("no verb is given (valid: {})", fmt::join(names, ", "));
}

}  // namespace

std::string Option::Description() const {
  const bool named = std::ranges::all_of(
      choices, [this](const std::string& choice) { return help.find(choice) != help.npos; });
  return named ? help : fmt::format("{}: {}", help, fmt::join(choices, ", "));
}

Option& Option::NotEmpty(std::string message) {
  return Check([message](const std::string& text) { return text.empty() ? message : ""; });
}

Option& Option::Choices(Texts valid) {
  choices = std::move(valid);
  Type(fmt::format("{{{}}}", Join(choices)));
  return Check([this](const std::string& text) {
    return std::ranges::count(choices, text) > 0 ? "" : UnknownName("value", text, choices);
  });
}

Option& Option::Excludes(const Option& other) {
  conflict = [&other, before = std::move(conflict)] {
    if (other.given) return "cannot be given with " + other.name();
    return before ? before() : std::string();
  };
  return Help(fmt::format("{}; not with {}", help, other.name()));
}

Option& Option::Needs(const Option& other) {
  conflict = [&other] { return other.given ? "" : "needs " + other.name(); };
  return Help(fmt::format("{}; needs {}", help, other.name()));
}

Option& Option::OnlyFor(const Option& other, Texts values) {
  Help(fmt::format("{}: {}", fmt::join(values, ", "), help));
  conflict = [&other, values = std::move(values)] { return other.Lacks(values); };
  return *this;
}

std::string Option::Lacks(const Texts& values) const {
  if (std::ranges::count(values, value) > 0) return "";
  return fmt::format("has no meaning with {0} {1}, only with {0} {2}", name(), value,
                     fmt::join(values, " or "));
}

std::string Option::FileProblem(const std::string& path) {
  return path.empty()  ? "the name of the file is empty"
         : path == "-" ? "only --output takes - for standard output"
                       : "";
}

Command::Command(std::string own_name, std::string own_help)
    : name(std::move(own_name)), help(std::move(own_help)) {
  Flag(kHelpNames, Keep<bool>(), "Print this help and exit");
}

Command& Command::Add(const std::string& verb, const std::string& verb_help) {
  return verbs.emplace_back(verb, verb_help);
}

void Command::Version(std::string text) {
  version = std::move(text);
  Flag(kVersionName, Keep<bool>(), "Print the version and exit");
}

Option& Command::Setting(const std::string& names, std::string initial,
                         std::function<void(const std::string&)> set, const std::string& text) {
  Option& option = options.emplace_back();
  option.names = CLI::detail::split(names, ',');
  option.help = text;
  option.type = "TEXT";
  option.initial = std::move(initial);
  option.store = [set = std::move(set)](const Option::Texts& texts) { set(texts.back()); };
  return option;
}

Option& Command::Text(const std::string& names, std::string& value, const std::string& text) {
  return Setting(
      names, value, [&value](const std::string& given) { value = given; }, text);
}

Option& Command::Texts(const std::string& names, std::vector<std::string>& values,
                       const std::string& text) {
  Option& option = Setting(names, fmt::format("{}", fmt::join(values, " ")), {}, text);
  option.several = true;
  option.store = [&values](const Option::Texts& texts) { values = texts; };
  return option;
}

Option& Command::Choice(const std::string& names, std::string& value,
                        std::vector<std::string> choices, const std::string& text) {
  return Text(names, value, text).Choices(std::move(choices));
}

Option& Command::Flag(const std::string& names, bool& value, const std::string& text) {
  return Setting(
             names, "", [&value](const std::string& given) { value = given == "true"; }, text)
      .Type("");
}

Option& Command::File(const std::string& names, std::string& value, const std::string& text) {
  return Text(names, value, text).Type("FILE").Check(Option::FileProblem);
}

Option& Command::Whole(const std::string& names, std::optional<uint64_t> initial, Range range,
                       std::function<void(uint64_t)> set, const std::string& text) {
  const auto check = [range](const std::string& given) {
    return ParseNumber(given, range) ? ""
                                     : fmt::format("'{}' is not a whole number from {} to {}",
                                                   given, range.low, range.high);
  };
  const auto parse = [range, set = std::move(set)](const std::string& given) {
    set(*ParseNumber(given, range));
  };
  const std::string shown = initial ? fmt::to_string(*initial) : "";
  return Setting(names, ParseNumber(shown, range) ? shown : "", parse, text)
      .Type(range.high == UINT64_MAX ? "INT" : fmt::format("{}..{}", range.low, range.high))
      .Check(check);
}

Option& Command::Numbers(const std::string& names, std::vector<int>& values, Range range,
                         const std::string& text) {
  Option& option = Whole(names, values.front(), range, {}, text);
  option.several = true;
  option.store = [&values](const Option::Texts& texts) {
    values.clear();
    for (const std::string& one : texts) values.push_back(std::stoi(one));
  };
  return option;
}

Option& Command::Declared(std::string_view option) {
  return *std::ranges::find(options, option, &Option::name);
}

void Command::Remove(std::string_view option) {
  std::erase_if(options, [&](const Option& one) { return one.name() == option; });
}

Command& Command::Find(const std::string& verb) {
  const auto found = std::ranges::find(verbs, verb, &Command::name);
  if (found != verbs.end()) return *found;
  if (verbs.empty()) throw UsageError(fmt::format("'{}' has no verbs", name));
  std::vector<std::string> names;
  for (const Command& valid : verbs) names.push_back(valid.name);
  throw UsageError(UnknownName("verb", verb, names));
}

// Declares commands to CLI11, which takes the arguments apart; the values are checked here.
class Parser {
 public:
  void Declare(const Command& command, CLI::App& app) {
    app.require_subcommand(0, 1);
    for (const Option& option : command.options) {
      declared_[&option] = Declare(command, option, app);
    }
    for (const Command& verb : command.verbs) {
      Declare(verb, *app.add_subcommand(verb.name));
    }
  }

  // Stores the values that are given for options of the command. `path` names it.
  void Store(Command& command, const std::string& path) {
    for (Option& option : command.options) {
      const CLI::Option& parsed = *declared_.at(&option);
      option.given = parsed.count() > 0;
      option.value = option.given ? parsed.results().back() : option.initial;
      if (option.several || option.type.empty() || parsed.count() < 2) continue;
      throw UsageError(fmt::format("{} is given twice, as '{}' and '{}': it takes one value",
                                   option.name(), parsed.results()[0], parsed.results()[1]));
    }
    for (const Option& option : command.options) {
      if (option.required && !option.given) throw UsageError(Missing(option, command, path));
    }
    for (Option& option : command.options) {
      if (option.given) Store(option, *declared_.at(&option));
    }
  }
  // The descriptions that the stored values ask for.
  const std::string& descriptions() const { return descriptions_; }

 private:
  void Store(Option& option, const CLI::Option& parsed) {
    std::vector<std::string> texts = parsed.results();
    if (option.type.empty()) {
      for (const std::string& text : texts) {
        if (text == "true" || text == "false") continue;
        throw UsageError(
            fmt::format("{}: {}", option.name(), UnknownName("value", text, {"true", "false"})));
      }
      texts.erase(texts.begin(), texts.end() - 1);
    }
    if (option.several && !option.verbatim) {
      texts =
          WithContext([&] { return ExpandSpecifications(texts); }, [&] { return option.name(); });
    }
    for (const std::string& text : texts) {
      const std::string problem = option.problem ? option.problem(text) : "";
      if (!problem.empty()) throw UsageError(fmt::format("{}: {}", option.name(), problem));
    }
    const std::string conflict = option.conflict ? option.conflict() : "";
    if (!conflict.empty()) throw UsageError(fmt::format("{} {}", option.name(), conflict));
    const auto asks = [](const std::string& text) {
      return text == "help" || text.ends_with(":help");
    };
    if (!option.describe || std::ranges::none_of(texts, asks)) return option.store(texts);
    for (const std::string& text : texts) {
      if (asks(text)) descriptions_ += option.describe(text);
    }
  }

  static CLI::Option* Declare(const Command& command, const Option& option, CLI::App& app) {
    const std::string names = Join(option.names);
    if (names == kHelpNames) return app.set_help_flag(names);
    if (names == kVersionName) return app.set_version_flag(names, command.version);
    if (option.type.empty()) return app.add_flag(names);
    CLI::Option* const declared = app.add_option(names, CLI::callback_t());
    if (option.several) declared->expected(CLI::detail::expected_max_vector_size);
    if (option.one_each) declared->allow_extra_args(false);
    // `Store` refuses an option with one value that is given twice.
    return declared->multi_option_policy(CLI::MultiOptionPolicy::TakeAll);
  }

  std::map<const Option*, CLI::Option*> declared_;
  std::string descriptions_;
};

int Command::Execute(const std::vector<std::string>& arguments) {
  // CLI11 would say that a verb is missing if a word is not one.
  Command* command = this;
  for (const std::string& word : arguments) {
    if (command->run || word.starts_with('-')) break;
    command = &command->Find(word);
  }
  CLI::App program(help, name);
  Parser parser;
  parser.Declare(*this, program);
  // The parsed verbs from the program down to the one that runs.
  const auto chain = [&] {
    std::vector<Command*> commands{this};
    for (const CLI::App* app = &program; !app->get_subcommands().empty();) {
      app = app->get_subcommands().front();
      commands.push_back(&commands.back()->Find(app->get_name()));
    }
    return commands;
  };
  try {
    // CLI11 takes a vector from its end.
    program.parse(std::vector<std::string>(arguments.rbegin(), arguments.rend()));
  } catch (const CLI::CallForHelp&) {
    fmt::print("{}", help_text(chain()));
    return 0;
  } catch (const CLI::CallForVersion& call) {
    fmt::print("{}\n", call.what());
    return 0;
  } catch (const CLI::ExtrasError&) {
    throw UsageError(Unexpected(program.remaining(true), *chain().back(), PathOf(chain())));
  } catch (const CLI::ArgumentMismatch& error) {
    // The message begins with the option that has no value.
    const std::string_view message = error.what();
    const Option& option = chain().back()->Declared(message.substr(0, message.find(':')));
    throw UsageError(fmt::format("{} needs a value: {}", option.name(), option.Description()));
  } catch (const CLI::ParseError& error) {
    throw UsageError(error.what());
  }
  for (Command* const parsed : chain()) parser.Store(*(command = parsed), PathOf(chain()));
  if (!command->run) {
    throw UsageError((command == this ? "" : command->name + ": ") + MissingVerb(*command));
  }
  fmt::print("{}", Printable(parser.descriptions()));
  return parser.descriptions().empty() ? command->run() : 0;
}

std::string PathOf(const std::vector<Command*>& chain) {
  std::string path;
  for (const Command* one : chain) path += (path.empty() ? "" : " ") + one->name;
  return path;
}

std::string ParserVersion() { return CLI11_VERSION; }

}  // namespace spillway::cli
