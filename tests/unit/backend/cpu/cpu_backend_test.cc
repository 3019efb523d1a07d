// Tests the memory of the CPU backend: reading freed or abandoned memory gives NaN.

#include "backend/cpu/cpu_backend.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "tests/testing/fixtures.h"
#include "traces/base/error.h"

namespace spillway::testing {
namespace {

using ::testing::Each;

constexpr std::byte kPoison{0xff};
constexpr Block kX{Bytes(0), Bytes(8)}, kY{Bytes(8), Bytes(8)}, kRest{Bytes(16), Bytes(8)};

class CpuBackendTest : public ::testing::Test {
 protected:
  CpuBackendTest()
      : trace_(testing::TraceBuilder()
                   .Tensor("x", TensorKind::kInput, 8)
                   .Tensor("y", TensorKind::kActivation, 8)
                   .Op("f1", Phase::kForward, {"x"}, {"y"})
                   .Build()),
        backend_(trace_, {Bytes(64), {Bytes(64)}, 1, std::nullopt},
                 [this](const Op&, const auto&, const auto& inputs, const auto& outputs, uint64_t) {
                   rest_at_run_ = Contents(kRest);
                   std::copy(inputs[0].begin(), inputs[0].end(), outputs[0].begin());
                 }) {
    backend_.OnArrive(TensorId{0}, kX, PoolId::kDevice);
  }

  // Issues f1 from x to y. `scratch` and `workspace` lie in the remaining memory.
  Event Enqueue(std::vector<Block> scratch, Block workspace) {
    const std::vector<Block> inputs{kX}, outputs{kY};
    Launch launch;
    launch.inputs = inputs;
    launch.outputs = outputs;
    launch.scratch = scratch;
    launch.workspace = workspace;
    return backend_.Enqueue(launch, {});
  }

  // Returns the 8 bytes of a block.
  std::vector<std::byte> Contents(const Block& block, PoolId pool = PoolId::kDevice) const {
    std::vector<std::byte> bytes(8);
    backend_.Read(block, pool, bytes);
    return bytes;
  }

  const Trace trace_;
  std::vector<std::byte> rest_at_run_;
  CpuBackend backend_;
};

TEST_F(CpuBackendTest, AbandonedRangesArePoisonedWhenNothingNeedsThem) {
  const Event ran = Enqueue({}, {});
  const Wait wait{ran, WaitCause::kSource};
  backend_.Copy(PoolId::kHost, Direction::kToHost, kY, kX, Bytes(8), std::span(&wait, 1));
  backend_.OnAbandon(kY, PoolId::kDevice);
  backend_.Synchronize();
  EXPECT_THAT(Contents(kY), Each(kPoison));
  EXPECT_THAT(Contents(kX), ::testing::Not(Each(kPoison)));
  EXPECT_EQ(Contents(kX, PoolId::kHost), Contents(kX));  // the copy came first
  backend_.TakeTimeline();
  backend_.OnAbandon(kX, PoolId::kHost);
  backend_.Synchronize();
  EXPECT_THAT(Contents(kX, PoolId::kHost), Each(kPoison));
}

TEST_F(CpuBackendTest, RangesInUseAgainAreNotPoisoned) {
  backend_.OnFree(kX);
  backend_.OnArrive(TensorId{0}, kX, PoolId::kDevice);
  backend_.Synchronize();
  EXPECT_THAT(Contents(kX), ::testing::Not(Each(kPoison)));
}

TEST_F(CpuBackendTest, ScratchAndWorkspaceArePoisonedBeforeAnOp) {
  Enqueue({kRest}, {});
  backend_.Synchronize();
  EXPECT_THAT(rest_at_run_, Each(kPoison));
  backend_.OnArrive(TensorId{0}, kRest, PoolId::kDevice);
  backend_.TakeTimeline();
  Enqueue({}, kRest);
  backend_.Synchronize();
  EXPECT_THAT(rest_at_run_, Each(kPoison));
}

TEST_F(CpuBackendTest, RangesBeyondItsMemoryAreRefusedAtOnce) {
  EXPECT_THROW(Enqueue({}, {Bytes(60), Bytes(8)}), InputError);
  EXPECT_THROW(
      backend_.Copy(PoolId::kHost, Direction::kToHost, kX, {Bytes(60), Bytes(8)}, Bytes(8), {}),
      InputError);
}

}  // namespace
}  // namespace spillway::testing
