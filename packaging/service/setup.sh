#!/bin/sh
# Installs the Debian packages of packaging/service/apt.txt where they are missing (root only); says so where it cannot.
set -eu
here=$(dirname "$0")
missing=""
for name in $(sed 's/#.*//' "$here/apt.txt"); do
  dpkg-query -W -f='${db:Status-Status}' "$name" 2>/dev/null | grep -qx installed || missing="$missing $name"
done
[ -n "$missing" ] || exit 0
if [ "$(id -u)" -ne 0 ]; then
  printf 'service: these Debian packages are missing; ask for: apt-get install%s\n' "$missing" >&2
  exit 3
fi
printf 'service: installing%s\n' "$missing" >&2
apt-get update -qq
# shellcheck disable=SC2086
DEBIAN_FRONTEND=noninteractive apt-get -o DPkg::Lock::Timeout=300 install -y -qq --no-install-recommends $missing >/dev/null
