# find_package(spillway) loads this file. It defines the target spillway::spillway and the function
# spillway_add_policy.
include(${CMAKE_CURRENT_LIST_DIR}/spillwayTargets.cmake)
include(${CMAKE_CURRENT_LIST_DIR}/spillway_add_policy.cmake)
