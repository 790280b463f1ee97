#!/bin/sh
# The root file system of the machine that the service is tested in: image.sh CACHE prints its folder. A minimal Debian of this
# machine's release with systemd, and what the package depends on (read from packaging/deb/control.in), so that the package
# installs without a network. Kept by the digest of its recipe; older ones are removed. Root only.
set -eu
cache=$1
here=$(cd "$(dirname "$0")" && pwd)
top=$(cd "$here/../.." && pwd)
suite=$(. /etc/os-release && printf '%s' "$VERSION_CODENAME")

depends=$(sed -n 's/^\(Depends\|Recommends\): //p' "$top/packaging/deb/control.in" | tr ',' '\n' | sed 's/(.*//; s/ //g' | sort -u)
packages=$(printf '%s\n' systemd systemd-sysv dbus python3-minimal libpam-systemd procps $depends | sort -u | paste -sd,)
key=$(printf '%s %s' "$suite" "$packages" | cat - "$here/image.sh" "$top/packaging/vm/sources.py" | sha256sum | cut -c1-16)
target="$cache/$key"
mkdir -p "$cache"
exec 9>"$cache/lock"
flock 9
if [ ! -e "$target/etc/os-release" ]; then
  printf 'service: building the root file system of the test machine\n' >&2
  work=$(mktemp -d "$cache/.work-XXXXXX")
  trap 'rm -rf --one-file-system "$work"' EXIT
  python3 "$top/packaging/vm/sources.py" "$suite" > "$work/sources.list"
  mmdebstrap --quiet --variant=minbase --include="$packages" \
    --aptopt='Acquire::Check-Valid-Until "false"' --aptopt='APT::Install-Recommends "false"' \
    --dpkgopt='path-exclude=/usr/share/doc/*' --dpkgopt='path-exclude=/usr/share/man/*' \
    --dpkgopt='path-exclude=/usr/share/locale/*' \
    --customize-hook='chroot "$1" useradd --create-home alice; chroot "$1" useradd --create-home bob' \
    --customize-hook='rm -f "$1/etc/resolv.conf" "$1/etc/apt/sources.list"; echo service-test > "$1/etc/hostname"' \
    "$suite" "$work/root" "$work/sources.list" >&2
  rm -rf "$work/root/var/cache/apt/archives" "$work/root/var/lib/apt/lists"
  mv "$work/root" "$target"
  # other recipes' results, and what killed runs left more than a day ago
  find "$cache" -mindepth 1 -maxdepth 1 -type d ! -name "$key" \( ! -name '.*' -o -mmin +1440 \) \
    -exec rm -rf --one-file-system {} +
fi
printf '%s\n' "$target"
