#!/bin/sh
# Installs what is missing: Debian packages by name (root, or sudo without a password), then .venv from the hashed lock.
# Usage: packaging/setup.sh [demo|test|docker]. Says what it cannot install and what that costs; safe to run again.
# docker: only the Debian packages of the Docker tests, which start a daemon of their own; nobody else needs them.
set -eu
cd "$(dirname "$0")/.."
purpose=${1:-demo}
say() { printf 'setup: %s\n' "$*"; }
die() { printf 'setup: %s\n' "$*" >&2; exit 3; }

as_root=""
if [ "$(id -u)" -ne 0 ]; then
  if command -v sudo >/dev/null 2>&1 && sudo -n true 2>/dev/null; then as_root="sudo -n"; else as_root="none"; fi
fi
case $purpose in
  demo) kinds="need" ;; test) kinds="need test" ;; docker) kinds="docker" ;;
  *) die "what for? demo, test or docker, not $purpose" ;;
esac
[ "$(id -u)" -eq 0 ] && kinds="$kinds root"

have() {  # a package counts as present when dpkg has it, or when what it brings is there by other means
  dpkg-query -W -f='${db:Status-Status}' "$1" 2>/dev/null | grep -qx installed && return 0
  case $1 in
    nodejs) command -v node >/dev/null ;; git) command -v git >/dev/null ;;
    docker.io) command -v dockerd >/dev/null ;; busybox-static) [ -x /bin/busybox ] ;; *) return 1 ;;
  esac
}
missing="" needed=""
while read -r kind name; do
  case " $kinds " in *" $kind "*)
    if ! have "$name"; then missing="$missing $name"; [ "$kind" = need ] && needed="$needed $name"; fi ;;
  esac
done < packaging/apt.txt
if [ -n "$needed" ] && [ "$as_root" = none ]; then
  die "these Debian packages are missing and this user cannot install them:$needed. Ask for: apt-get install$needed"
elif [ -n "$missing" ] && [ "$as_root" = none ]; then
  say "not here and not installed by this user:$missing; what needs them is skipped"
elif [ -n "$missing" ]; then
  say "installing$missing"
  $as_root apt-get update -qq
  # shellcheck disable=SC2086
  DEBIAN_FRONTEND=noninteractive $as_root apt-get install -y -qq --no-install-recommends $missing >/dev/null
fi
[ "$purpose" = docker ] && exit 0

usable() { "$1" -c 'import sys, venv, ensurepip; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; }
python=${PYTHON:-}
if [ -z "$python" ]; then
  for candidate in python3 /usr/bin/python3 python3.13 python3.12 python3.11; do
    if usable "$candidate"; then python=$candidate; break; fi
  done
fi
[ -n "$python" ] && usable "$python" || die "no Python 3.11 or newer with the venv module was found; set PYTHON=…"

venv=${VENV:-.venv}
lock=requirements.lock
[ "$purpose" = test ] && lock=requirements-dev.lock
want=$(cat "$lock" pyproject.toml | sha256sum | cut -d' ' -f1)
stamp="$venv/.caisson-$purpose"
if [ "$(cat "$stamp" 2>/dev/null)" != "$want" ]; then
  say "making $venv with $("$python" -V) from $lock"
  [ -x "$venv/bin/python" ] || "$python" -m venv "$venv"
  "$venv/bin/pip" install -q --disable-pip-version-check --require-hashes -r "$lock"
  "$venv/bin/pip" install -q --disable-pip-version-check --no-deps --no-build-isolation -e .
  printf '%s\n' "$want" > "$stamp"
fi
