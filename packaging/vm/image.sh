#!/bin/sh
# Builds the guest's root file system: image.sh CACHE prints its path. A Debian of this machine's release with systemd, the system
# Python, bcc and the Python packages of the lock that the witness and its tests import. Kept by the digest of all that.
set -eu
cache=$1
here=$(cd "$(dirname "$0")" && pwd)
top=$(cd "$here/../.." && pwd)
say() { printf 'vm: %s\n' "$*" >&2; }

packages="systemd,systemd-sysv,dbus,python3,python3-bpfcc,python3-pytest,bpftool,iproute2,strace,kmod,procps,bubblewrap,libseccomp2,util-linux,ca-certificates,file"
# Imported by tracerd, the record and their tests; everything else stays out of the guest.
wheels="grpcio grpcio-health-checking protobuf click rich markdown-it-py mdurl pygments zstandard pyseccomp pytest
 pytest-asyncio pluggy iniconfig packaging typing-extensions pyroute2 hypothesis sortedcontainers attrs"

pip=$top/${VENV:-.venv}/bin/pip
suite=$(. /etc/os-release && printf '%s' "$VERSION_CODENAME")
version=$(sed -n "s/^$suite //p" "$here/pythons.txt")
[ -n "$version" ] || { say "pythons.txt does not say which Python $suite has"; exit 3; }
mkdir -p "$cache/images"
wanted=$(mktemp "$cache/images/.lock-XXXXXX")
trap 'rm -f "$wanted"' EXIT
python3 "$here/pick.py" "$top/requirements-dev.lock" $wheels > "$wanted"
key=$(cat "$wanted" "$here/image.sh" "$here/pick.py" "$here/sources.py" | sha256sum | cut -c1-16)
target="$cache/images/$key.ext4"
if [ -s "$target" ]; then
  printf '%s\n' "$target"
  exit 0
fi
say "building the guest's root file system"
find "$cache/images" -maxdepth 1 -name '.work-*' -mmin +120 -exec rm -rf {} + # of runs that were killed
work=$(mktemp -d "$cache/images/.work-XXXXXX")
trap 'rm -rf "$work" "$wanted"' EXIT
chmod 755 "$work"
python3 "$here/sources.py" "$suite" > "$work/sources.list"
"$pip" install -qq --disable-pip-version-check --require-hashes --no-deps --no-compile --only-binary :all: \
  --python-version "$version" --implementation cp --target "$work/wheels" -r "$wanted" &
pip_job=$!
mmdebstrap --quiet --variant=minbase --include="$packages" \
  --aptopt='Acquire::Check-Valid-Until "false"' --aptopt='APT::Install-Recommends "false"' \
  --dpkgopt='path-exclude=/usr/share/doc/*' --dpkgopt='path-exclude=/usr/share/man/*' \
  --dpkgopt='path-exclude=/usr/share/locale/*' \
  --customize-hook='rm -f "$1/etc/hostname" "$1/etc/resolv.conf"; echo vm > "$1/etc/hostname"' \
  "$suite" "$work/root" "$work/sources.list" >&2
wait "$pip_job"
rm -rf "$work/root/var/cache/apt" "$work/root/var/lib/apt/lists"
mkdir -p "$work/root/job" "$work/root/out" "$work/root/usr/local/lib/python$version/dist-packages"
cp -a "$work/wheels/." "$work/root/usr/local/lib/python$version/dist-packages/"
chroot "$work/root" python3 -m compileall -q "/usr/local/lib/python$version/dist-packages" >/dev/null 2>&1 || true
mke2fs -q -t ext4 -O ^has_journal -m 0 -E root_owner=0:0,lazy_itable_init=1 -d "$work/root" "$work/image" 2G >/dev/null
mv "$work/image" "$target"
find "$cache/images" -name '*.ext4' ! -name "$key.ext4" -delete
printf '%s\n' "$target"
