// An `AllocatorChoice` says how blocks get their places. Either an allocator places each block when
// it is requested, or offsets are planned before the run (`planned`), or trials find the best of
// these ways (`auto`).

#ifndef SPILLWAY_EXPERIMENTS_RUN_ALLOCATOR_CHOICE_H_
#define SPILLWAY_EXPERIMENTS_RUN_ALLOCATOR_CHOICE_H_

#include <cstdint>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "experiments/run/prepared.h"
#include "sim/alloc/make_allocator.h"

namespace spillway::lab {

class AllocatorChoice {
 public:
  // Offsets are planned for the blocks of a recorded run, with these values of `PackingOptions`.
  struct Planned {
    int64_t steps = 0;
    int64_t tolerance = 0;
  };
  // Every allocator is tried with every candidate of the policy. The run that needs the least
  // memory is taken, or the fastest run if `by_time` is true.
  struct Auto {
    bool by_time = false;
  };

  // Parses a specification such as "best-fit", "planned:effort=quick", "auto:by=time" or
  // "pytorch:expandable_segments=true". Throws `UsageError` with a suggestion for an unknown name.
  // Throws `UsageError` for invalid parameters of `planned` and `auto`; `Arena::Make` checks those
  // of allocators.
  AllocatorChoice(std::string_view text);  // NOLINT(google-explicit-constructor)
  AllocatorChoice(const std::string& text) : AllocatorChoice(std::string_view(text)) {}
  AllocatorChoice(const char* text) : AllocatorChoice(std::string_view(text)) {}

  // Returns the text that the constructor was given.
  const std::string& name() const { return name_; }
  // Each returns nullptr unless the choice is of that kind.
  const Planned* planned() const { return std::get_if<Planned>(&choice_); }
  const Auto* automatic() const { return std::get_if<Auto>(&choice_); }
  // Returns the arena of a run before trials decide anything. It has the chosen allocator, for
  // `planned` the arena on which runs are recorded, and for `auto` best fit.
  Arena Undecided() const;

 private:
  std::string name_;
  std::variant<Arena, Planned, Auto> choice_;
};

// Returns all allocators, then `planned` and `auto`, in the order of lists for people.
std::vector<AllocatorInfo> AllocatorChoices();

}  // namespace spillway::lab

#endif  // SPILLWAY_EXPERIMENTS_RUN_ALLOCATOR_CHOICE_H_
