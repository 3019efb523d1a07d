# What the run_* scripts share; sourced. Prints a script's header as its help, else sets `directory` and
# `spillway` from its arguments and makes the directory.
if [[ $# -lt 1 || $1 == --help ]]; then
  awk 'NR > 1 { if (!/^#/) exit; sub(/^# ?/, ""); print }' "$0"
  exit 2
fi
directory=$1
spillway=${2:-build/release/bin/spillway}
mkdir -p "$directory"

# NAME, then what `validate` takes: writes DIRECTORY/NAME.csv from 24 iterations, or as many as `iterations`
# says. Exit code 1 is an answer: some case is out of tolerance.
check() {
  "$spillway" validate "${@:2}" --iterations "${iterations:-24}" --tolerance 10% --format csv --quiet \
    -o "$directory/$1.csv" || [[ $? -eq 1 ]]
  echo "$1 done"
}
