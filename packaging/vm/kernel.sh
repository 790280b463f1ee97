#!/bin/sh
# Fetches one of Debian's own kernels and makes what QEMU boots: kernel.sh CACHE SUITE META prints the folder, which holds
# vmlinuz, initrd.img and release. CACHE keeps it by package version and by the digest of this script, so a second call takes
# no time; the archive is asked again when its answer is older than a day.
set -eu
cache=$1 suite=$2 meta=$3
here=$(cd "$(dirname "$0")" && pwd)
say() { printf 'vm: %s\n' "$*" >&2; }

# What the guest may load, with everything these need. Built into one kernel and a module in another: both are fine.
modules="virtio_pci virtio_blk virtio_rng ext4 overlay af_packet vsock vsock_loopback af_alg veth dummy tun loop fuse"

recipe=$(cat "$here/kernel.sh" "$here/guest-init" "$here/sources.py" | sha256sum | cut -c1-12)
answer="$cache/answers/$suite-$meta"
mkdir -p "$cache/answers" "$cache/kernels"
apt="$cache/apt/$suite"
if [ -z "$(find "$answer" -newermt '-1 day' 2>/dev/null)" ] || ! [ -s "$answer" ]; then
  "$here/aptroot.sh" "$apt" "$suite"
  export APT_CONFIG="$apt/apt.conf"
  # The meta package names the versioned image; from 7.x on that is split into a binary and a modules package.
  found="" todo="$meta"
  while [ -n "$todo" ]; do
    more=""
    for name in $todo; do
      next=$(apt-cache depends --no-recommends --no-suggests --no-conflicts --no-breaks --no-replaces "$name" |
        sed -n 's/^ *|\{0,1\}Depends: \(linux-\(image\|binary\|modules\)-[0-9][^ ]*\).*/\1/p')
      for one in $next; do
        case " $found $more " in *" $one "*) ;; *) more="$more $one" ;; esac
      done
    done
    found="$found$more" todo="$more"
  done
  [ -n "$found" ] || { say "$suite has no package $meta that leads to a kernel"; exit 3; }
  # shellcheck disable=SC2086
  apt-cache policy $found | awk '/^[^ ].*:$/ {name = substr($1, 1, length($1) - 1)} /Candidate:/ {print name "=" $2}' > "$answer.part"
  mv "$answer.part" "$answer"
fi
packages=$(cat "$answer")
key=$(printf '%s %s' "$packages" "$recipe" | sha256sum | cut -c1-16)
target="$cache/kernels/$key"
if [ -s "$target/release" ]; then
  printf '%s\n' "$target"
  exit 0
fi
say "fetching" $packages
find "$cache/kernels" -maxdepth 1 -name '.work-*' -mmin +120 -exec rm -rf {} + # of runs that were killed
work=$(mktemp -d "$cache/kernels/.work-XXXXXX")
trap 'rm -rf "$work"' EXIT
[ -s "$apt/apt.conf" ] || "$here/aptroot.sh" "$apt" "$suite"
# shellcheck disable=SC2086
(cd "$work" && APT_CONFIG="$apt/apt.conf" apt-get download -qq $packages)
mkdir -p "$work/tree/usr/lib" "$work/out" "$work/ramfs/bin"
ln -s usr/lib "$work/tree/lib"
for deb in "$work"/*.deb; do
  dpkg-deb --fsys-tarfile "$deb" | tar -x -C "$work/tree" --keep-directory-symlink
done
release=$(ls "$work/tree/usr/lib/modules")
cp "$work/tree/boot/vmlinuz-$release" "$work/out/vmlinuz" 2>/dev/null ||
  cp "$(find "$work/tree" -name 'vmlinuz*' -type f | head -1)" "$work/out/vmlinuz"
depmod -b "$work/tree" "$release" 2>/dev/null
list="$work/out/modules"
: > "$list"
for module in $modules; do
  modprobe -d "$work/tree" -S "$release" --show-depends "$module" 2>/dev/null | sed -n 's/^insmod \([^ ]*\).*/\1/p' >> "$list" || true
done
# One flat folder, in the order of loading; busybox reads no compressed modules.
mkdir -p "$work/ramfs/modules"
awk '!seen[$0]++' "$list" | while read -r path; do
  name=$(basename "$path" | sed 's/\.ko.*//').ko
  case $path in
    *.xz) xz -dc "$path" > "$work/ramfs/modules/$name" ;;
    *.zst) zstd -qdc "$path" > "$work/ramfs/modules/$name" ;;
    *) cp "$path" "$work/ramfs/modules/$name" ;;
  esac
  printf '%s\n' "$name" >> "$work/ramfs/modules/order"
done
touch "$work/ramfs/modules/order"
rm "$list"
cp /bin/busybox "$work/ramfs/bin/busybox"
cp "$here/guest-init" "$work/ramfs/init"
chmod 755 "$work/ramfs/init" "$work/ramfs/bin/busybox"
(cd "$work/ramfs" && find . | cpio --quiet -o -H newc | zstd -q -3 > "$work/out/initrd.img")
if ! grep -q '^CONFIG_RD_ZSTD=y' "$work/tree/boot/config-$release" 2>/dev/null; then
  (cd "$work/ramfs" && find . | cpio --quiet -o -H newc | gzip -1 > "$work/out/initrd.img")
fi
printf '%s\n' "$packages" > "$work/out/packages"
printf '%s\n' "$release" > "$work/out/release"
rm -rf "$target"
mv "$work/out" "$target"
printf '%s\n' "$target"
