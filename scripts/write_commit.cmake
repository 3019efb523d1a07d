# Writes a source file with the commit of the source tree SOURCE to OUTPUT, unless OUTPUT is already
# up to date. The commit is "unknown" if SOURCE is not the top of a Git working tree, for example an
# unpacked archive.
cmake_minimum_required(VERSION 3.25)
execute_process(COMMAND git -C ${SOURCE} rev-parse --show-cdup
  OUTPUT_VARIABLE up RESULT_VARIABLE failed ERROR_QUIET OUTPUT_STRIP_TRAILING_WHITESPACE)
set(commit unknown)
if(failed EQUAL 0 AND up STREQUAL "")
  execute_process(COMMAND git -C ${SOURCE} describe --always --dirty --abbrev=12 --exclude=*
    OUTPUT_VARIABLE described RESULT_VARIABLE failed ERROR_QUIET OUTPUT_STRIP_TRAILING_WHITESPACE)
  if(failed EQUAL 0 AND described MATCHES "^[-0-9a-z]+$")
    set(commit ${described})
  endif()
endif()
file(CONFIGURE OUTPUT ${OUTPUT} CONTENT "#include \"experiments/cli/frame/commit.h\"

const char* const spillway::cli::kCommit = \"@commit@\";
" @ONLY)
