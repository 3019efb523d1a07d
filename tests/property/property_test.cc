// For every trace, policy, allocator and budget, a run has the same bits as in core, sound logs and
// exact accounts. RapidCheck draws the cases and shrinks cases that fail. tests/README.md says how
// to run more cases and how to repeat one.

#include <fmt/format.h>
#include <gtest/gtest.h>
#include <rapidcheck.h>
#include <rapidcheck/detail/TestListenerAdapter.h>

#include <cstdlib>
#include <sstream>
#include <string>

#include "tests/property/random_case.h"
#include "traces/base/error.h"

namespace rc {

using spillway::testing::Act;
using spillway::testing::OpSpec;
using spillway::testing::PolicySpec;
using spillway::testing::RandomCase;
using spillway::testing::TraceSpec;

// Returns any number below `end`, independent of the size of the case.
Gen<uint8_t> Below(uint8_t end) { return gen::resize(kNominalSize, gen::inRange<uint8_t>(0, end)); }

// Half of the numbers are small, the others arbitrary: simple choices are common, and none is
// missing.
Gen<uint8_t> Number() { return gen::weightedOneOf<uint8_t>({{1, Below(8)}, {1, Below(255)}}); }

template <typename T>
Gen<std::vector<T>> UpTo(double part_of_size, Gen<T> element) {
  return gen::scale(part_of_size, gen::container<std::vector<T>>(std::move(element)));
}

template <>
struct Arbitrary<RandomCase> {
  static Gen<RandomCase> arbitrary() {
    const auto trace = gen::build<TraceSpec>(
        gen::set(&TraceSpec::given, UpTo(0.1, Number())),
        gen::set(&TraceSpec::ops, gen::nonEmpty(UpTo(0.3, gen::container<OpSpec>(Number())))));
    const auto policy = gen::build<PolicySpec>(
        gen::set(&PolicySpec::on_failure, Below(4)), gen::set(&PolicySpec::hints, Number()),
        gen::set(&PolicySpec::kernels, Number()),
        gen::set(&PolicySpec::outside, gen::oneOf(gen::just<uint8_t>(0), Number())),
        gen::set(&PolicySpec::acts, UpTo(0.8, gen::container<Act>(Number()))));
    return gen::build<RandomCase>(
        gen::set(&RandomCase::trace, trace), gen::set(&RandomCase::policy, policy),
        gen::set(&RandomCase::budget, Below(255)), gen::set(&RandomCase::host_pool, Number()),
        gen::set(&RandomCase::pools, Number()), gen::set(&RandomCase::alignment, Below(4)),
        gen::set(&RandomCase::allocator, Below(60)), gen::set(&RandomCase::charge_input, Below(2)),
        gen::set(&RandomCase::drain_seed, Number()));
  }
};

}  // namespace rc

namespace spillway::testing {

void showValue(const RandomCase& random_case, std::ostream& out) { out << Describe(random_case); }

namespace {

constexpr int kShards = 4;
constexpr int kCases = 7'000;  // in all shards together

// Returns SPILLWAY_PROPERTY_CASES, or the default. Throws `UsageError` if it is not a positive
// number.
int Cases() {
  const char* const text = std::getenv("SPILLWAY_PROPERTY_CASES");
  if (text == nullptr) return kCases;
  const int cases = std::atoi(text);
  if (cases < 1) throw UsageError(fmt::format("SPILLWAY_PROPERTY_CASES is '{}'", text));
  return cases;
}

class RandomTraces : public ::testing::TestWithParam<int> {};

TEST_P(RandomTraces, KeepEveryPromise) {
  // The seed is fixed, so that a build is judged by its code alone; RC_PARAMS overrides it.
  rc::detail::Configuration defaults;
  defaults.testParams.seed = 20160000 + static_cast<uint64_t>(GetParam());
  defaults.testParams.maxSuccess = (Cases() + kShards - 1) / kShards;
  const char* const given = std::getenv("RC_PARAMS");
  auto configuration = rc::detail::configFromString(given == nullptr ? "" : given, defaults);

  Tally tally;
  rc::detail::TestListenerAdapter silent;
  const rc::detail::TestMetadata name{"random_traces", "random traces"};
  const auto result = rc::detail::checkTestable(
      [&](const RandomCase& random_case) {
        const auto violations = Violations(random_case, tally);
        std::string text;
        for (const std::string& violation : violations) text += violation + "\n";
        if (!text.empty()) RC_FAIL(text);
      },
      name, configuration.testParams, silent, configuration.reproduce);
  if (!result.is<rc::detail::SuccessResult>()) {
    std::ostringstream message;
    rc::detail::printResultMessage(result, message);
    if (result.is<rc::detail::FailureResult>()) {
      configuration.reproduce[name.id] = result.get<rc::detail::FailureResult>().reproduce;
    }
    ADD_FAILURE() << message.str() << "\nthe shrunk case again: RC_PARAMS=\""
                  << rc::detail::configToMinimalString(configuration) << "\"";
  }
  RecordProperty("cases", static_cast<int>(tally.cases));
  fmt::print("{} cases, {} fit; in these {} copies and {} ops run again; {} verbs\n", tally.cases,
             tally.fitted, tally.copies, tally.reruns, tally.verbs);
}

INSTANTIATE_TEST_SUITE_P(Shard, RandomTraces, ::testing::Range(0, kShards));

}  // namespace
}  // namespace spillway::testing
