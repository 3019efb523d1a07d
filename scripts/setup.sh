# Installs missing Debian packages and prepares the build. Other scripts source this file.
#
# With -h or --help, the script that sources this file prints its opening comment and exits.
#
# It is idempotent, asks no questions, and works as root or with sudo. It sets
# SPILLWAY_COMPILER_LAUNCHER for the presets.

set -euo pipefail
case "${1:-}" in
  -h | --help)
    sed -n '2,/^[^#]/s/^# \{0,1\}//p' "$0"
    exit
    ;;
esac
cd "$(dirname "${BASH_SOURCE[0]}")/.."

install_packages() {
  local missing=() package
  while read -r package; do
    dpkg-query --show --showformat='${db:Status-Status}\n' "$package" 2>/dev/null |
      grep -q '^installed$' || missing+=("$package")
  done < <(sed 's/#.*//; /^\s*$/d' scripts/packages.txt)
  if [ "${#missing[@]}" -eq 0 ]; then
    return
  fi
  local as_root=()
  if [ "$(id -u)" -ne 0 ]; then
    as_root=(sudo)
  fi
  echo "installing: ${missing[*]}" >&2
  export DEBIAN_FRONTEND=noninteractive
  "${as_root[@]}" apt-get update -qq >&2
  "${as_root[@]}" apt-get install -y -qq --no-install-recommends "${missing[@]}" >&2
}

install_packages
SPILLWAY_COMPILER_LAUNCHER=$(command -v ccache || true)
export SPILLWAY_COMPILER_LAUNCHER
# ccache hashes paths relative to this clone, so any other clone finds the results of this one.
export CCACHE_BASEDIR=$PWD CCACHE_NOHASHDIR=1
export CCACHE_SLOPPINESS=pch_defines,time_macros  # without which it caches nothing that has a precompiled header
