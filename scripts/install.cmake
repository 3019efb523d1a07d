# Defines what `cmake --install` installs: the program, the library, headers, data, and the files by
# which other projects find the library. Installed files refer to each other by relative paths, so
# the tree may be moved.

include(CMakePackageConfigHelpers)
set(package_dir ${CMAKE_INSTALL_LIBDIR}/cmake/spillway)
set(header_dir ${CMAKE_INSTALL_INCLUDEDIR}/spillway)
set(data_dir ${CMAKE_INSTALL_DATADIR}/spillway)

if(SPILLWAY_BUILD_CLI)
  file(RELATIVE_PATH library_from_program
    ${CMAKE_INSTALL_FULL_BINDIR} ${CMAKE_INSTALL_FULL_LIBDIR})
  set_target_properties(spillway_cli PROPERTIES
    BUILD_RPATH "$ORIGIN/${library_from_program}"
    INSTALL_RPATH "$ORIGIN/${library_from_program};$ORIGIN/${library_from_program}/spillway")
  # A package may bring other libraries in lib/spillway. The older kind of path serves those that they need, too.
  set_target_properties(spillway PROPERTIES INSTALL_RPATH "$ORIGIN/spillway")
  target_link_options(spillway PRIVATE -Wl,--disable-new-dtags)
  target_link_options(spillway_cli PRIVATE -Wl,--disable-new-dtags)
  install(TARGETS spillway_cli)
  if(TARGET spillway_cuda)
    set_target_properties(spillway_cuda PROPERTIES
      INSTALL_RPATH "$ORIGIN"
      INSTALL_RPATH_USE_LINK_PATH ON)  # finds CUDA outside the system directories
    install(TARGETS spillway_cuda LIBRARY NAMELINK_SKIP)
  endif()
  install(FILES ${PROJECT_BINARY_DIR}/spillway.1 DESTINATION ${CMAKE_INSTALL_MANDIR}/man1)
endif()
install(TARGETS spillway EXPORT spillway INCLUDES DESTINATION ${header_dir})

# Headers keep their paths from the root: #include "sim/core/policy.h".
foreach(folder traces sim policies)
  install(DIRECTORY ${folder} DESTINATION ${header_dir} FILES_MATCHING PATTERN "*.h"
    PATTERN base/json.h EXCLUDE  # only readers of files use it
    PATTERN records/sqlite_file.h EXCLUDE  # only stores use it
    PATTERN devices EXCLUDE PATTERN recorded EXCLUDE)
endforeach()
install(DIRECTORY experiments/changes experiments/run experiments/output DESTINATION ${header_dir}/experiments
  FILES_MATCHING PATTERN "*.h" PATTERN execute.h EXCLUDE)  # execute.h needs backends

# The paths below are the paths that experiments/run/data_files.cc looks for.
install(DIRECTORY sim/devices DESTINATION ${data_dir}/sim)
install(DIRECTORY traces/recorded DESTINATION ${data_dir}/traces)
install(FILES experiments/papers/paper-values.csv experiments/papers/items.toml experiments/papers/plot.py
  DESTINATION ${data_dir}/experiments/papers)
install(FILES experiments/evidence/validation/mmcnn-h200.csv  # plot.py draws it
  DESTINATION ${data_dir}/experiments/evidence/validation)
install(FILES scripts/figstyle.py DESTINATION ${data_dir}/scripts)
install(DIRECTORY experiments/schemas DESTINATION ${data_dir}/experiments)
install(DIRECTORY experiments/tools/report/page DESTINATION ${data_dir}/experiments/tools/report)
if(SPILLWAY_DYGRAPHS)
  install(FILES ${SPILLWAY_DYGRAPHS} DESTINATION ${data_dir}/experiments/tools/report/page)
endif()

install(EXPORT spillway NAMESPACE spillway:: FILE spillwayTargets.cmake DESTINATION ${package_dir})
write_basic_package_version_file(${PROJECT_BINARY_DIR}/spillwayConfigVersion.cmake
  COMPATIBILITY SameMinorVersion)
install(FILES
  scripts/spillwayConfig.cmake
  policies/spillway_add_policy.cmake
  ${PROJECT_BINARY_DIR}/spillwayConfigVersion.cmake
  DESTINATION ${package_dir})

file(RELATIVE_PATH prefix_from_pc
  ${CMAKE_INSTALL_FULL_LIBDIR}/pkgconfig ${CMAKE_INSTALL_PREFIX})
string(REGEX REPLACE "/$" "" prefix_from_pc "${prefix_from_pc}")
configure_file(scripts/spillway.pc.in ${PROJECT_BINARY_DIR}/spillway.pc @ONLY)
install(FILES ${PROJECT_BINARY_DIR}/spillway.pc DESTINATION ${CMAKE_INSTALL_LIBDIR}/pkgconfig)
