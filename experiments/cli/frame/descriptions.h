// The texts of `spillway list`, and of options whose value is "help".

#ifndef SPILLWAY_EXPERIMENTS_CLI_FRAME_DESCRIPTIONS_H_
#define SPILLWAY_EXPERIMENTS_CLI_FRAME_DESCRIPTIONS_H_

#include <functional>
#include <string>
#include <string_view>

namespace spillway::cli {

std::string DescribePolicies();
// Returns the description of the policies that a specification ending in "help" asks for: "help",
// "./mine.so:help", "vdnn-all:help".
std::string DescribePolicies(const std::string& specification);
std::string DescribeDevices();
std::string DescribeAllocators();
std::string DescribeNetworks();
std::string DescribePresets();
std::string DescribeWorkloads();

// Returns the `Option::describe` of the option of that name, which is empty if it has none.
std::function<std::string(const std::string&)> DescriptionOf(std::string_view option);

}  // namespace spillway::cli

#endif  // SPILLWAY_EXPERIMENTS_CLI_FRAME_DESCRIPTIONS_H_
