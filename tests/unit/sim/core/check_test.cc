// Tests that the checker finds errors planted in an otherwise sound report.

#include "sim/core/check.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "policies/registry.h"
#include "tests/testing/fixtures.h"
#include "traces/base/error.h"

namespace spillway::testing {
namespace {

using ::testing::Contains;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

class CheckTest : public ::testing::Test {
 protected:
  CheckTest() : trace_(testing::ChainTrace()) {
    PolicyRegistry registry;
    RegisterBuiltinPolicies(registry);
    report_ = testing::RunSim(trace_, testing::FixedCost(), *registry.Make("vdnn-conv")).report;
  }

  std::vector<std::string> Check() const { return sim::Check(trace_, report_); }

  TimelineEntry& Command(CommandKind kind, size_t index) {
    for (TimelineEntry& entry : report_.timeline) {
      if (entry.kind == kind && index-- == 0) return entry;
    }
    throw Error("no such command");
  }

  Trace trace_;
  Report report_;
};

TEST_F(CheckTest, SoundReportsPass) { EXPECT_THAT(Check(), IsEmpty()); }

TEST_F(CheckTest, FindsAPlantedOverlap) {
  Placement* last = nullptr;
  for (Placement& placement : report_.placements) {
    if (placement.kind != PlacementKind::kAllocate || !placement.on_device()) continue;
    if (last != nullptr && placement.tensor == TensorId{2}) {
      placement.block.offset = last->block.offset + Bytes(1);
    }
    last = &placement;
  }
  EXPECT_THAT(Check(), Contains(HasSubstr("overlaps")));
}

// A kernel is moved to a time before the end of the copy that brings its input.
TEST_F(CheckTest, FindsAPlantedEarlyRead) {
  const TimelineEntry& copy = Command(CommandKind::kToDevice, 0);
  bool moved = false;
  for (TimelineEntry& entry : report_.timeline) {
    const Op& op = trace_.op(entry.op);
    if (moved || entry.kind != CommandKind::kKernel || op.phase != Phase::kBackward) continue;
    for (const TensorId input : op.inputs) {
      if (input != copy.tensor) continue;
      entry.interval.start = copy.interval.end - Duration::Picoseconds(1);
      moved = true;
    }
  }
  ASSERT_TRUE(moved);
  EXPECT_THAT(Check(), Contains(HasSubstr("starts before")));
}

// The times may happen to be valid, but the checker finds the missing order.
TEST_F(CheckTest, FindsAPlantedLostWait) {
  size_t found = 0;
  for (TimelineEntry& entry : report_.timeline) {
    if (entry.wait_count == 0) continue;
    const uint32_t kept = std::exchange(entry.wait_count, 0);
    if (!Check().empty()) ++found;
    entry.wait_count = kept;
  }
  EXPECT_GE(found, 4u);
  EXPECT_THAT(Check(), IsEmpty());
}

TEST_F(CheckTest, FindsAWaitForTheFuture) {
  for (TimelineEntry& entry : report_.timeline) {
    if (entry.wait_count > 0) report_.waits[entry.first_wait].event.sequence = 1000;
  }
  EXPECT_THAT(Check(), Contains(HasSubstr("was not issued before it")));
}

TEST_F(CheckTest, FindsAReleaseTooEarly) {
  // The first release of a storage is moved before the command that reads it last.
  for (Placement& placement : report_.placements) {
    if (placement.kind == PlacementKind::kFree && placement.on_device()) {
      placement.commands = 0;
      break;
    }
  }
  EXPECT_THAT(Check(), ::testing::Not(IsEmpty()));
}

TEST_F(CheckTest, FindsStaleContents) {
  // The op list says that b1 reads x; make the copy to the host carry another tensor.
  Command(CommandKind::kToHost, 0).tensor = TensorId{2};
  EXPECT_THAT(Check(), ::testing::Not(IsEmpty()));
}

// The copy runs on the host's stream, although its block is in the peer's pool.
TEST_F(CheckTest, FindsACopyToTheWrongPool) {
  PolicyRegistry registry;
  RegisterBuiltinPolicies(registry);
  report_ = testing::RunSim(trace_, testing::FixedCost(), *registry.Make("vdnn-conv"),
                            {.device = testing::DeviceWithPeer(Bytes::GiB(1))})
                .report;
  EXPECT_THAT(Check(), IsEmpty());
  TimelineEntry& copy = Command(CommandKind::kToHost, 0);
  ASSERT_EQ(copy.event.stream, StreamOf(OutsidePool(1), Direction::kToHost));
  copy.event.stream = Stream::kToHost;
  EXPECT_THAT(Check(), Contains(HasSubstr("has no block on one side")));
}

TEST_F(CheckTest, FindsStreamsThatOverlapThemselves) {
  Command(CommandKind::kKernel, 1).interval.start = Duration();
  EXPECT_THAT(Check(), Contains(HasSubstr("its predecessor on the stream")));
}

TEST_F(CheckTest, StopsAtTheLimit) {
  for (TimelineEntry& entry : report_.timeline) entry.wait_count = 0;
  EXPECT_EQ(sim::Check(trace_, report_, 1).size(), 1u);
}

}  // namespace
}  // namespace spillway::testing
