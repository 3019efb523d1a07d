#include "backend/common/held_commands.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

namespace spillway::testing {
namespace {

Block At(int64_t offset) { return {Bytes(offset), Bytes(512)}; }

Launch LaunchOf(uint32_t op) {
  Launch launch;
  launch.op = OpId{op};
  return launch;
}

// Releases the held commands and returns one line for each.
std::vector<std::string> Released(HeldCommands& held) {
  std::vector<std::string> lines;
  const auto add = [&](std::string line, std::span<const Wait> waits) {
    for (const Wait& wait : waits) {
      line +=
          " after " + std::string(Name(wait.event.stream)) + std::to_string(wait.event.sequence);
    }
    lines.push_back(std::move(line));
  };
  held.Release(
      [&](const Launch& launch, std::span<const Wait> waits) {
        std::string line = "op" + std::to_string(Index(launch.op));
        for (const KernelRun& run : launch.runs) line += " k" + std::to_string(run.kernel);
        for (const auto blocks : {launch.inputs, launch.outputs, launch.scratch}) {
          line += " |";
          for (const Block& block : blocks) line += " " + std::to_string(block.offset.count());
        }
        add(std::move(line), waits);
      },
      [&](PoolId pool, Direction direction, const Block& device, const Block& outside, Bytes size,
          std::span<const Wait> waits) {
        add(std::string(Name(StreamOf(pool, direction))) + " " +
                std::to_string(device.offset.count()) + " " +
                std::to_string(outside.offset.count()) + " of " + std::to_string(size.count()),
            waits);
      });
  return lines;
}

TEST(HeldCommands, ComeOutInOrderWithWhatTheyWereGivenWith) {
  HeldCommands held;
  {  // these arguments no longer exist when the commands are released
    const std::vector<Wait> none;
    const std::vector<Wait> copied{{{Stream::kToDevice, 1}, WaitCause::kFetch}};
    const std::vector<KernelRun> runs{{0, 3, 1}, {0, 4, 1}};
    const std::vector<Block> inputs{At(0), At(1024)}, outputs{At(2048)}, scratch{At(4096)};
    EXPECT_EQ(held.Copy(PoolId::kHost, Direction::kToDevice, At(0), At(512), Bytes(100), none),
              (Event{Stream::kToDevice, 1}));
    Launch launch = LaunchOf(7);
    launch.runs = runs;
    launch.inputs = inputs;
    launch.outputs = outputs;
    launch.scratch = scratch;
    EXPECT_EQ(held.Enqueue(launch, copied), (Event{Stream::kCompute, 1}));
    EXPECT_EQ(held.Enqueue(LaunchOf(8), none), (Event{Stream::kCompute, 2}));
    EXPECT_EQ(held.Copy(PoolId::kHost, Direction::kToHost, At(2048), At(0), Bytes(512), copied),
              (Event{Stream::kToHost, 1}));
  }
  EXPECT_EQ(Released(held), (std::vector<std::string>{
                                "h2d 0 512 of 100", "op7 k3 k4 | 0 1024 | 2048 | 4096 after h2d1",
                                "op8 | | |", "d2h 2048 0 of 512 after h2d1"}));
  EXPECT_TRUE(Released(held).empty());
}

TEST(HeldCommands, CountOnUntilTheIterationEnds) {
  HeldCommands held;
  held.Enqueue(LaunchOf(1), {});
  Released(held);
  EXPECT_EQ(held.Enqueue(LaunchOf(2), {}).sequence, 2u);
  held.EndIteration();
  EXPECT_EQ(Released(held), std::vector<std::string>{"op2 | | |"});
  EXPECT_EQ(held.Enqueue(LaunchOf(3), {}).sequence, 1u);
}

// Each place held a command of the other kind before.
TEST(HeldCommands, ForgetWhatStoodInTheirPlace) {
  HeldCommands held;
  const std::vector<Wait> waits{{{Stream::kToHost, 5}, WaitCause::kMemory}};
  held.Copy(PoolId::kHost, Direction::kToDevice, At(0), At(0), Bytes(1), waits);
  held.Enqueue(LaunchOf(1), waits);
  Released(held);
  held.Enqueue(LaunchOf(2), {});
  held.Copy(PoolId::kHost, Direction::kToDevice, At(0), At(0), Bytes(2), {});
  EXPECT_EQ(Released(held), (std::vector<std::string>{"op2 | | |", "h2d 0 0 of 2"}));
}

}  // namespace
}  // namespace spillway::testing
