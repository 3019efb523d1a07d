#include "traces/base/units.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/testing/files.h"
#include "traces/base/error.h"

namespace spillway::testing {
namespace {

using ::spillway::testing::InputErrorOf;
using ::testing::HasSubstr;

TEST(UnitsTest, ParsesBytes) {
  EXPECT_EQ(ParseBytes("0B"), Bytes(0));
  EXPECT_EQ(ParseBytes("12GiB"), Bytes::GiB(12));
  EXPECT_EQ(ParseBytes("12 GiB"), Bytes::GiB(12));
  EXPECT_EQ(ParseBytes("12GB"), Bytes(12'000'000'000));
  EXPECT_EQ(ParseBytes("1KB"), Bytes(1000));
  EXPECT_EQ(ParseBytes("1KiB"), Bytes(1024));
  EXPECT_EQ(ParseBytes("1.5MiB"), Bytes(1'572'864));
  EXPECT_EQ(ParseBytes("1e3MB"), Bytes(1'000'000'000));
  EXPECT_EQ(ParseBytes("1TiB"), Bytes::GiB(1024));
  EXPECT_EQ(ParseBytes("143771MiB"), Bytes::MiB(143771));
}

TEST(UnitsTest, ParsesTheOtherQuantities) {
  EXPECT_EQ(ParseDuration("9us"), Duration::Microseconds(9));
  EXPECT_EQ(ParseDuration("0.31ms"), Duration::Nanoseconds(310'000));
  EXPECT_EQ(ParseDuration("1ps"), Duration::Picoseconds(1));
  EXPECT_EQ(ParseDuration("2 s"), Duration::Milliseconds(2000));
  EXPECT_EQ(ParseBandwidth("12.8GB/s").bytes_per_second, 12'800'000'000);
  EXPECT_EQ(ParseBandwidth("1GiB/s").bytes_per_second, 1 << 30);
  EXPECT_EQ(ParseFlopRate("7TFLOP/s"), 7'000'000'000'000);
  EXPECT_EQ(ParseFlopRate("1PFLOP/s"), 1'000'000'000'000'000);
}

TEST(UnitsTest, LargestQuantity) {
  EXPECT_EQ(ParseBytes("1000000TB"), Bytes(1'000'000'000'000'000'000));
  EXPECT_THAT(InputErrorOf([] { ParseBytes("1000001TB"); }), HasSubstr("it is too large"));
  EXPECT_THAT(InputErrorOf([] { ParseBytes("1e308TiB"); }), HasSubstr("it is too large"));
  EXPECT_THAT(InputErrorOf([] { ParseBytes("1e999B"); }), HasSubstr("its number is out of range"));
}

TEST(UnitsTest, ErrorNamesTextAndUnits) {
  EXPECT_EQ(InputErrorOf([] { ParseBytes("10 gigs"); }),
            "'10 gigs' is not a size: unknown unit 'gigs' (a number and one of: B KB MB GB TB KiB "
            "MiB GiB TiB)");
  EXPECT_EQ(InputErrorOf([] { ParseDuration("3 minutes"); }),
            "'3 minutes' is not a duration: unknown unit 'minutes' (a number and one of: ps ns us "
            "ms s)");
  EXPECT_THAT(InputErrorOf([] { ParseBandwidth("12GB"); }),
              HasSubstr("unknown unit 'GB' (a number and one of: B/s KB/s"));
  EXPECT_THAT(InputErrorOf([] { ParseFlopRate("7 flops"); }), HasSubstr("FLOP/s MFLOP/s"));
}

TEST(UnitsTest, ErrorSuggestsUnitsThatAreNear) {
  EXPECT_THAT(InputErrorOf([] { ParseBytes("12G"); }),
              HasSubstr("unknown unit 'G'; did you mean 12GB or 12GiB? (a number"));
  EXPECT_THAT(InputErrorOf([] { ParseBytes("1.5 gib"); }), HasSubstr("did you mean 1.5GiB? ("));
  EXPECT_THAT(InputErrorOf([] { ParseDuration("3MS"); }), HasSubstr("did you mean 3ms? ("));
  EXPECT_THAT(InputErrorOf([] { ParseBandwidth("3gb/s"); }), HasSubstr("did you mean 3GB/s? ("));
}

TEST(UnitsTest, RefusesWhatIsNotAQuantity) {
  for (const char* text :
       {"",      " ",      "GiB",     "12",    "12 ",     "-1GiB",  "-0GiB",
        "+1GiB", "nanGiB", "infB",    "12gib", "12GiBs",  "12GiB ", " 12GiB",
        "0x10B", "1,5GiB", "1..5GiB", "12Gi",  "12GiB/s", "1EB",    "1e999GiB"}) {
    EXPECT_THROW(ParseBytes(text), InputError) << text;
  }
  for (const char* text : {"12", "12GB", "12/s", "GB/s", "1 GB /s", "12GB/s/s", "12GB/ms"}) {
    EXPECT_THROW(ParseBandwidth(text), InputError) << text;
  }
  EXPECT_THAT(InputErrorOf([] { ParseBytes("-1GiB"); }), HasSubstr("it is negative"));
  EXPECT_THAT(InputErrorOf([] { ParseBytes("12"); }), HasSubstr("the unit is missing"));
  EXPECT_THAT(InputErrorOf([] { ParseBytes("GiB"); }),
              HasSubstr("it does not start with a number"));
}

TEST(UnitsTest, FormatsThreeDigits) {
  EXPECT_EQ(FormatBytes(Bytes(0)), "0 B");
  EXPECT_EQ(FormatBytes(Bytes(1023)), "1023 B");
  EXPECT_EQ(FormatBytes(Bytes(1024)), "1 KiB");
  EXPECT_EQ(FormatBytes(Bytes(1536)), "1.5 KiB");
  EXPECT_EQ(FormatBytes(Bytes::MiB(12185)), "11.9 GiB");
  EXPECT_EQ(FormatBytes(Bytes::GiB(12)), "12 GiB");
  EXPECT_EQ(FormatBytes(Bytes::GiB(100)), "100 GiB");
  EXPECT_EQ(FormatBytes(Bytes::GiB(12345)), "12345 GiB");
  EXPECT_EQ(FormatBytes(Bytes(-1536)), "-1.5 KiB");
  EXPECT_EQ(FormatDuration(Duration::Microseconds(3581)), "3.58 ms");
  EXPECT_EQ(FormatDuration(Duration::Picoseconds(999)), "999 ps");
  EXPECT_EQ(FormatDuration(Duration::Picoseconds(999'999)), "1000 ns");
  EXPECT_EQ(FormatDuration(Duration::Nanoseconds(1000)), "1 us");
  EXPECT_EQ(FormatDuration(Duration::Milliseconds(12'345'000)), "12345 s");
  EXPECT_EQ(FormatDuration(Duration()), "0 ps");
}

TEST(UnitsTest, SizesThatDifferLookDifferent) {
  const Bytes one = Bytes::MiB(49), more = one + Bytes(512);
  EXPECT_EQ(FormatBytes(more, one), "49.0005 MiB");
  EXPECT_EQ(FormatBytes(one, more), "49 MiB");
  EXPECT_EQ(FormatBytes(one, one), "49 MiB");
  EXPECT_EQ(FormatBytes(one, Bytes::GiB(2)), "49 MiB");
  EXPECT_EQ(FormatBytes(Bytes::MiB(1) - Bytes(1), Bytes::MiB(1)), "0.999999 MiB");
  EXPECT_EQ(FormatBytes(Bytes::Unlimited(), Bytes::Unlimited() - Bytes(1)),
            "1152921504606846976 B");
}

TEST(UnitsTest, TransferTimeRoundsUp) {
  EXPECT_EQ(TransferTime(Bytes(0), {1'000'000}), Duration());
  EXPECT_EQ(TransferTime(Bytes(1), {1'000'000'000'000}), Duration::Picoseconds(1));
  EXPECT_EQ(TransferTime(Bytes(1), {1'000'000'000'001}), Duration::Picoseconds(1));
  EXPECT_EQ(TransferTime(Bytes(2), {999'999'999'999}), Duration::Picoseconds(3));
  EXPECT_EQ(TransferTime(Bytes::GiB(12), {12'800'000'000}),
            Duration::Picoseconds(1'006'632'960'000));
}

TEST(UnitsTest, TransferTimeStaysInRange) {
  const Duration longest = TransferTime(Bytes::Unlimited(), {1});
  EXPECT_EQ(longest.picoseconds(), Duration::Max().picoseconds() / 2);
  EXPECT_GT(longest + longest, longest);
}

TEST(UnitsTest, RoundsUpToAlignment) {
  EXPECT_EQ(RoundUp(Bytes(0), Bytes(512)), Bytes(0));
  EXPECT_EQ(RoundUp(Bytes(1), Bytes(512)), Bytes(512));
  EXPECT_EQ(RoundUp(Bytes(512), Bytes(512)), Bytes(512));
  EXPECT_EQ(RoundUp(Bytes(513), Bytes(512)), Bytes(1024));
}

}  // namespace
}  // namespace spillway::testing
