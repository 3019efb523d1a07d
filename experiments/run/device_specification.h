// Reads the specifications of devices and of pools outside them, which a command line gives.

#ifndef SPILLWAY_EXPERIMENTS_RUN_DEVICE_SPECIFICATION_H_
#define SPILLWAY_EXPERIMENTS_RUN_DEVICE_SPECIFICATION_H_

#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "sim/core/device.h"
#include "traces/base/params.h"

namespace spillway::lab {

// Returns the names of the devices that come with the program, sorted.
std::vector<std::string> DeviceNames();

// Returns the path of the device file for `name`, which is one of `DeviceNames` or itself a path
// that ends in ".toml". Throws `UsageError` with a suggestion for an unknown name.
std::filesystem::path DevicePath(const std::string& name);

// Loads a device. The specification is a name or path as for `DevicePath`, without a colon, and
// may go on with changes: "h200:link=2,memory=24GiB". The changes become part of the device's name
// and description. Only properties that no kernel time depends on can be changed, so that recorded
// times stay valid. Throws `UsageError` if the specification is invalid.
Device LoadDevice(const std::string& specification);
// Returns the properties of a device that a specification can change.
std::vector<ParamInfo> DeviceParameters();
// Adds a pool outside the device, or changes one that the device has: "peer:size=40GiB" or
// "host:size=64GiB". Properties of the link that are not given are those of the device file. The
// pool becomes part of the device's name and description. Throws `UsageError` if the specification
// is invalid.
void AddPool(Device& device, const std::string& specification);
// Returns the parameters that the specification of a pool can give.
std::vector<ParamInfo> PoolParameters();
// Returns the part of a device's specification before the first colon: its name or path.
std::string DeviceBase(const std::string& specification);

// Returns the device that comes with the program and whose driver reports the name `gpu`; nullopt
// if there is none.
std::optional<Device> DeviceOf(const std::string& gpu);

// The memory of a card that contexts and libraries take outside the allocator: 760 MiB were
// measured on an H200.
inline constexpr Bytes kOutsideAllocator = Bytes::MiB(760);

}  // namespace spillway::lab

#endif  // SPILLWAY_EXPERIMENTS_RUN_DEVICE_SPECIFICATION_H_
