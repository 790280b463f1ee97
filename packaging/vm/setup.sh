#!/bin/sh
# Installs what virtual machines for tests need on the host: the Debian packages of apt.txt, by name. Safe to run again.
set -eu
here=$(dirname "$0")
missing=""
while read -r name; do
  case $name in ''|\#*) continue ;; esac
  [ "$(dpkg-query -W -f='${db:Status-Status}' "$name" 2>/dev/null)" = installed ] || missing="$missing $name"
done < "$here/apt.txt"
[ -n "$missing" ] || exit 0
if [ "$(id -u)" -ne 0 ]; then
  printf 'vm: these Debian packages are missing:%s. Ask for: apt-get install%s\n' "$missing" "$missing" >&2
  exit 3
fi
printf 'vm: installing%s\n' "$missing"
apt-get update -qq
# shellcheck disable=SC2086
DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends $missing >/dev/null
