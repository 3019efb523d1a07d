// Validations of a grid on a made-up GPU whose times are the predictions times a factor.

#include "experiments/tools/sweep/validations.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "experiments/run/inputs.h"
#include "experiments/run/prepare.h"
#include "experiments/tools/report/sources.h"
#include "policies/plugin/library.h"
#include "tests/testing/files.h"
#include "tests/testing/runs.h"
#include "traces/base/error.h"

namespace spillway::testing {
namespace {

class ValidationsTest : public ::testing::Test {
 protected:
  ValidationsTest() {
    experiment_.values = {{"workload", {"alexnet:{2,4}"}},
                          {"memory", {"2GiB,unlimited"}},
                          {"policy", {"liveness,vdnn-all:algo=memory"}}};
  }

  // Validates the grid into the store and returns the command of each measured cell.
  std::vector<std::string> Validate(const std::string& machine = "a GPU") {
    std::vector<std::string> measured;
    rows_.clear();
    ValidationRun run;
    run.machine = machine;
    run.program = "spillway 0";
    run.measure = [&](uint64_t, const Case& cell, const std::shared_ptr<const Trace>& trace) {
      if (measured.size() == breaks_at_) throw EnvironmentError("the GPU is gone");
      measured.push_back(CommandOf(cell));
      return Measure(cell, trace);
    };
    run.finished = [&](const Case&, const ResultRow& row, bool) { rows_.push_back(row); };
    SweepStore store(Path(), SweepStore::Open::kCreate, ValidationKind());
    RunValidations(Grid(experiment_, {"liveness"}), shard_, &store, run);
    return measured;
  }

  ValidationResult Measure(const Case& cell, const std::shared_ptr<const Trace>& trace) const {
    const Inputs inputs(cell, trace);
    Validation validation;
    validation.predicted = Predict(inputs.DraftOf(cell));
    validation.measured = validation.predicted;
    validation.decisions_equal = validation.placements_equal = true;
    validation.measured.execution.emplace();
    validation.measured.execution->iteration_times = {Duration::Picoseconds(static_cast<int64_t>(
        static_cast<double>(validation.predicted.report.metrics.iteration.picoseconds()) *
        factor_))};
    return MakeValidationResult(cell, inputs, std::move(validation));
  }

  std::filesystem::path Path() const { return directory_ / "v.sqlite"; }
  std::vector<SweepStore::Entry> Held() const {
    return SweepStore(Path(), SweepStore::Open::kExisting, StoreKindOf(Path())).Read();
  }

  testing::TemporaryDirectory directory_;
  Experiment experiment_;
  Shard shard_;
  double factor_ = 1.04;
  size_t breaks_at_ = 1000;
  std::vector<ResultRow> rows_;
};

TEST_F(ValidationsTest, WhatIsMeasuredIsKeptAndNotMeasuredAgain) {
  breaks_at_ = 3;
  EXPECT_THROW(Validate(), EnvironmentError);
  EXPECT_EQ(Held().size(), 3);
  breaks_at_ = 1000;
  EXPECT_EQ(Validate().size(), 5);
  const std::vector<ResultRow> rows = rows_;
  EXPECT_EQ(Validate().size(), 0);
  EXPECT_EQ(rows_, rows);
  EXPECT_EQ(rows_.size(), 8);
  for (const ResultRow& row : rows_) {
    EXPECT_TRUE(Agrees(row, 0.05));
    EXPECT_FALSE(Agrees(row, 0.03));
  }
}

TEST_F(ValidationsTest, AnotherMachineOrAnotherFileIsMeasuredAnew) {
  EXPECT_EQ(Validate().size(), 8);
  EXPECT_EQ(Validate("another GPU").size(), 8);
  experiment_.values["allocator"] = {"best-fit,first-fit"};
  EXPECT_EQ(Validate().size(), 8);
}

TEST_F(ValidationsTest, ShardsMergeToTheWhole) {
  Validate();
  const auto whole = Held();
  std::filesystem::rename(Path(), directory_ / "whole.sqlite");
  shard_ = {1, 2};
  EXPECT_EQ(Validate().size(), 4);
  std::filesystem::rename(Path(), directory_ / "half.sqlite");
  shard_ = {2, 2};
  EXPECT_EQ(Validate().size(), 4);
  SweepStore(Path(), SweepStore::Open::kExisting, ValidationKind())
      .Merge(directory_ / "half.sqlite");
  const auto merged = Held();
  ASSERT_EQ(merged.size(), whole.size());
  for (size_t i = 0; i < whole.size(); ++i) EXPECT_EQ(merged[i].row, whole[i].row);
}

TEST_F(ValidationsTest, IsReportedAsAValidationAndIsNoSweep) {
  Validate();
  EXPECT_EQ(ReadSource(Path()).kind, ReportSection::Kind::kValidation);
  try {
    const SweepStore store(Path(), SweepStore::Open::kExisting);
    FAIL();
  } catch (const InputError& error) {
    EXPECT_NE(std::string(error.what()).find("not a sweep store"), std::string::npos)
        << error.what();
  }
}

TEST_F(ValidationsTest, APolicyThatFailsIsARow) {
  Case asked{"alexnet:2", "torch", false};
  asked.policy = "mmcnn:limit=1KiB";
  const ResultRow row = RowOf(ValidateForRow(asked, Inputs(asked), {}));
  EXPECT_TRUE(FailureOf(row).value_or("").starts_with("alexnet:2: "))
      << FailureOf(row).value_or("");
  EXPECT_FALSE(Agrees(row, 1));
}

}  // namespace
}  // namespace spillway::testing
