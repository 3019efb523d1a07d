# The common part of the run_* scripts, which source it. Without arguments or with --help, prints the header of the
# script and exits. Otherwise sets `directory` and `spillway` from the arguments and makes the directory.
if [[ $# -lt 1 || $1 == --help ]]; then
  awk 'NR > 1 { if (!/^#/) exit; sub(/^# ?/, ""); print }' "$0"
  exit 2
fi
directory=$1
spillway=${2:-build/release/bin/spillway}
mkdir -p "$directory"

# check NAME ARGUMENTS...: runs `spillway validate ARGUMENTS...` and writes DIRECTORY/NAME.csv. The number of
# iterations is $iterations, 24 by default. Exit code 1 is no error: it means that a case is out of tolerance.
check() {
  "$spillway" validate "${@:2}" --iterations "${iterations:-24}" --tolerance 10% --format csv --quiet \
    -o "$directory/$1.csv" || [[ $? -eq 1 ]]
  echo "$1 done"
}
