// The command line as it is declared: a tree of commands with their options, and its parse.
//
// An option is bound to a variable, which keeps its value unless the option is given. The value
// that the variable has when the option is declared is the default that help shows. Help,
// completion and the manual page read the declarations.

#ifndef SPILLWAY_EXPERIMENTS_CLI_FRAME_ARGUMENTS_H_
#define SPILLWAY_EXPERIMENTS_CLI_FRAME_ARGUMENTS_H_

#include <cstdint>
#include <functional>
#include <list>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace spillway::cli {

// An option of a command ("-o,--output") or, if its name has no hyphen, a positional argument.
struct Option {
  using Texts = std::vector<std::string>;
  // Returns the problem with a value, or an empty text if there is none.
  using Problem = std::function<std::string(const std::string& value)>;

  Texts names;  // "-o", "--output"
  std::string help;
  std::string type;     // name of a value in help; empty for a flag
  std::string initial;  // the default as text; empty if there is none
  Texts choices;        // the valid values; empty if `problem` alone decides
  bool required = false;
  bool several = false;   // takes several values
  bool one_each = false;  // takes one value for each time that it is given
  bool verbatim = false;  // its several values are not split at commas and not expanded
  Problem problem;
  std::function<std::string()> conflict;  // the problem with other options
  // The text that the value "help", or one that ends in ":help", prints; empty for other options.
  std::function<std::string(const std::string& value)> describe;
  std::function<void(const Texts&)> store;
  // After the parse:
  bool given = false;
  std::string value;  // the last one that was given, else `initial`

  const std::string& name() const { return names.back(); }
  bool is_argument() const { return !names.front().starts_with('-'); }
  // Returns `help` with the choices that it does not name.
  std::string Description() const;

  // Each of these changes the option and returns it.
  Option& Help(std::string text) { return help = std::move(text), *this; }
  Option& Type(std::string text) { return type = std::move(text), *this; }
  Option& Required() { return initial.clear(), required = true, *this; }
  Option& OneEach() { return one_each = true, *this; }
  Option& Verbatim() { return verbatim = true, *this; }
  Option& Check(Problem check) { return problem = std::move(check), *this; }
  Option& NotEmpty(std::string message);
  // The value is one of these.
  Option& Choices(Texts valid);
  // The option cannot be given together with the other one.
  Option& Excludes(const Option& other);
  // The option cannot be given without the other one.
  Option& Needs(const Option& other);
  // The option cannot be given unless the other one has one of the values, which open the help.
  Option& OnlyFor(const Option& other, Texts values);

  // Returns the problem with what needs one of the values of this option, or an empty text if the
  // option has one of them.
  std::string Lacks(const Texts& values) const;
  // Returns the problem with the path of a file, which is neither empty nor "-".
  static std::string FileProblem(const std::string& path);
};

// The program or one of its verbs. A command without `Runs` needs one of its verbs.
struct Command {
  // Whole numbers from `low` to `high`, both included.
  struct Range {
    uint64_t low = 0, high = UINT64_MAX;
  };

  std::string name, help;
  std::string heading;  // the verbs from this one on stand under it in the help; may be empty
  std::vector<std::string> examples;  // commands without the name of the program
  std::string footer;                 // the end of the help, also of the verbs without one
  std::string version;                // text of --version
  std::list<Option> options;
  std::list<Command> verbs;
  std::function<int()> run;  // does the work and returns the exit code
  // Returns the help on the last command of `chain`, in which each command is a verb of the command
  // before it. Set for the program itself.
  std::function<std::string(const std::vector<Command*>& chain)> help_text;
  std::vector<std::shared_ptr<void>> kept;

  Command(std::string own_name, std::string own_help);
  Command(const Command&) = delete;
  Command& operator=(const Command&) = delete;

  // Adds a verb.
  Command& Add(const std::string& verb, const std::string& verb_help);
  void Runs(std::function<int()> work) { run = std::move(work); }
  // Lets the command call `work` with options, which the function returns, and the context.
  template <typename Options, typename Context>
  Options& Runs(int (*work)(const Options&, Context&), Context& context) {
    Options& kept_options = Keep<Options>();
    Runs([&kept_options, &context, work] { return work(kept_options, context); });
    return kept_options;
  }
  // Declares --version, which prints the text.
  void Version(std::string text);

  // Each of these declares an option; `text` is its help. Options with several values take them as
  // experiments/run/pattern.h says. REQUIRES: the variable lives as long as the command.
  Option& Text(const std::string& names, std::string& value, const std::string& text);
  Option& Texts(const std::string& names, std::vector<std::string>& values,
                const std::string& text);
  Option& Choice(const std::string& names, std::string& value, std::vector<std::string> choices,
                 const std::string& text);
  Option& Flag(const std::string& names, bool& value, const std::string& text);
  // The path of a file, neither empty nor "-".
  Option& File(const std::string& names, std::string& value, const std::string& text);
  // `Value` is a type of integers or an optional one. A value out of range is no default.
  template <typename Value>
  Option& Number(const std::string& names, Value& value, Range range, const std::string& text) {
    const auto set = [&value](uint64_t number) { value = static_cast<Value>(number); };
    return Whole(names, std::optional<uint64_t>(value), range, set, text);
  }
  // REQUIRES: `values` holds one.
  Option& Numbers(const std::string& names, std::vector<int>& values, Range range,
                  const std::string& text);
  // Calls `set` with the text that is given. The parse passes exceptions of `set` on.
  Option& Setting(const std::string& names, std::string initial,
                  std::function<void(const std::string&)> set, const std::string& text);

  // Returns or removes the option of that `Option::name`. REQUIRES: it was declared.
  Option& Declared(std::string_view option);
  void Remove(std::string_view option);

  // Returns a new value that lives as long as the command, for the variables of options.
  template <typename Value>
  Value& Keep() {
    const auto value = std::make_shared<Value>();
    kept.push_back(value);
    return *value;
  }

  // Returns the verb of that name. Throws `UsageError` if there is none.
  Command& Find(const std::string& verb);

  // Parses the arguments of the program, stores the values that they give and runs the verb that
  // they name, or prints help, version or descriptions on standard output. Returns the exit code.
  // Throws `UsageError` for bad arguments, with a message of one line that says which values are
  // valid, and passes exceptions of the verb on.
  int Execute(const std::vector<std::string>& arguments);

 private:
  Option& Whole(const std::string& names, std::optional<uint64_t> initial, Range range,
                std::function<void(uint64_t)> set, const std::string& text);
};

// Returns the names of commands, each of which is a verb of the one before it: "spillway trace
// build".
std::string PathOf(const std::vector<Command*>& chain);

// The version of the library that parses.
std::string ParserVersion();

}  // namespace spillway::cli

#endif  // SPILLWAY_EXPERIMENTS_CLI_FRAME_ARGUMENTS_H_
