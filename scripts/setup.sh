# Sourced by the other scripts: installs the Debian packages that are missing, and prepares the build.
#
# Idempotent, asks nothing, works as root or with sudo. Sets SPILLWAY_COMPILER_LAUNCHER for the presets.

set -euo pipefail
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
# Paths are hashed as they are seen from the clone: any other clone finds what this one has compiled.
export CCACHE_BASEDIR=$PWD CCACHE_NOHASHDIR=1
export CCACHE_SLOPPINESS=pch_defines,time_macros  # without which it caches nothing that has a precompiled header
