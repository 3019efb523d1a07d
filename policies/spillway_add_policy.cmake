# spillway_add_policy(NAME SOURCES...): a plugin with policies, built as NAME.so.
#
# Creates the target NAME: a module that links spillway::spillway and shows nothing but its entry
# point (see policies/plugin/plugin.h). All other properties of the target are the caller's to set.
function(spillway_add_policy name)
  if(NOT ARGN)
    message(FATAL_ERROR "spillway_add_policy(${name}): no sources")
  endif()
  add_library(${name} MODULE ${ARGN})
  target_link_libraries(${name} PRIVATE spillway::spillway)
  set_target_properties(${name} PROPERTIES
    PREFIX ""
    SUFFIX ".so"
    CXX_EXTENSIONS OFF
    CXX_VISIBILITY_PRESET hidden
    VISIBILITY_INLINES_HIDDEN ON)
endfunction()
