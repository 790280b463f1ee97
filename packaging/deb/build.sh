#!/bin/sh
# Builds dist/caisson_VERSION_ARCH.deb from the tree, for this machine's Debian and its own Python, and prints the path.
# Needs dpkg-deb and .venv (make setup); Python packages come by hash from requirements.lock through pip's ordinary
# configuration. DEB_COMPRESS=none is quick, for tests. Not for root alone: owners are set by dpkg-deb.
set -eu
cd "$(dirname "$0")/../.."
here=packaging/deb
bin=${VENV:-.venv}/bin
out=${1:-dist}
umask 022
say() { printf 'deb: %s\n' "$*" >&2; }

arch=$(dpkg --print-architecture)
python=$(/usr/bin/python3 -I -c 'import sys; print("%d.%d" % sys.version_info[:2])')
next=$(/usr/bin/python3 -I -c 'import sys; print("%d.%d" % (sys.version_info[0], sys.version_info[1] + 1))')
version=$(sed -n 's/^version = "\(.*\)"/\1/p' pyproject.toml)
SOURCE_DATE_EPOCH=${SOURCE_DATE_EPOCH:-$(git log -1 --format=%ct 2>/dev/null || date +%s)}
export SOURCE_DATE_EPOCH
mkdir -p "$out"
work=$(mktemp -d "$out/.deb-XXXXXX")
trap 'rm -rf "$work"' EXIT
tree=$work/tree
home=$tree/usr/lib/caisson
site=$home/lib/python$python/site-packages
mkdir -p "$tree/DEBIAN" "$site" "$home/bin" "$tree/usr/bin" "$tree/usr/sbin" "$tree/usr/share/doc/caisson" \
  "$tree/usr/share/man" "$tree/usr/share/lintian/overrides"

# What tracerd and the runner import, with everything these import. The lock says which versions.
wheels="cel-expr-python cffi click cryptography grpcio grpcio-health-checking markdown-it-py mdurl prometheus-client protobuf
 pycparser pygments pyroute2 pyseccomp rich typing-extensions zstandard"
/usr/bin/python3 -I packaging/vm/pick.py requirements.lock $wheels > "$work/wanted"
"$bin/pip" install -qq --disable-pip-version-check --require-hashes --no-deps --no-compile --only-binary :all: \
  --python-version "$python" --implementation cp --target "$site" -r "$work/wanted"
"$bin/pip" wheel -qq --disable-pip-version-check --no-deps --no-build-isolation -w "$work" .
"$bin/pip" install -qq --disable-pip-version-check --no-deps --no-compile --python-version "$python" \
  --target "$site" --upgrade "$work"/caisson-*.whl
rm -rf "$site/bin" "$site"/*/tests
# What pip leaves about where it found things is nobody's business.
find "$site" \( -name direct_url.json -o -name REQUESTED -o -name INSTALLER \) -delete
find "$site" -name RECORD -exec sed -i '/direct_url.json\|REQUESTED\|INSTALLER\|^\.\.\//d' {} +

# A virtual environment of the distribution's own interpreter: no user's site folder, no PYTHONPATH, no pip.
printf 'home = /usr/bin\ninclude-system-site-packages = false\nversion = %s\n' "$python" > "$home/pyvenv.cfg"
ln -s "../../../bin/python$python" "$home/bin/python"
ln -s python "$home/bin/python3"
command_for() {  # FILE MODULE
  printf '#!/usr/lib/caisson/bin/python -I\nimport sys\n\nfrom %s import main\n\nsys.exit(main())\n' "$2" > "$1"
  chmod 755 "$1"
}
command_for "$tree/usr/sbin/tracerd" caisson_tracerd.cli
command_for "$tree/usr/bin/caisson-run" caisson_runner.cli

"$bin/tracerd" install --root "$tree" --packaged --command /usr/sbin/tracerd >/dev/null
"$bin/python" $here/manpage.py "$tree/usr/share/man"
cp $here/copyright "$tree/usr/share/doc/caisson/copyright"
[ ! -f docs/tracerd.md ] || cp docs/tracerd.md "$tree/usr/share/doc/caisson/"
printf 'caisson (%s) unstable; urgency=medium\n\n  * Built from the tree.\n\n -- Caisson developers <caisson@localhost.test>  %s\n' \
  "$version" "$(date -u -R -d "@$SOURCE_DATE_EPOCH")" | gzip -9n > "$tree/usr/share/doc/caisson/changelog.gz"
cp $here/lintian-overrides "$tree/usr/share/lintian/overrides/caisson"
find "$tree" -type d -exec chmod 755 {} +
# Wheels mark many a module executable that is no script, and the other way round.
find "$tree/usr/lib/caisson" -type f -exec chmod 644 {} +
find "$tree/usr/lib/caisson" -type f \( -name '*.py' -o -name '*.sh' \) -exec sh -c '
  for file; do [ "$(head -c 2 "$file" | tr -d "\\0")" != "#!" ] || chmod 755 "$file"; done' sh {} +
find "$tree/etc" "$tree/usr/share" -type f -exec chmod 644 {} +

size=$(du -sk "$tree" | cut -f1)
sed -e "s/@VERSION@/$version/; s/@ARCH@/$arch/; s/@SIZE@/$size/; s/@PYTHON@/$python/; s/@PYTHON_NEXT@/$next/" \
  $here/control.in > "$tree/DEBIAN/control"
echo /etc/caisson/tracerd.toml > "$tree/DEBIAN/conffiles"
for script in postinst prerm postrm; do install -m 755 $here/$script "$tree/DEBIAN/$script"; done
(cd "$tree" && find . -type f ! -path './DEBIAN/*' -printf '%P\0' | LC_ALL=C sort -z | xargs -0 md5sum > DEBIAN/md5sums)
chmod 644 "$tree/DEBIAN/control" "$tree/DEBIAN/conffiles" "$tree/DEBIAN/md5sums"
find "$tree" -newermt "@$SOURCE_DATE_EPOCH" -exec touch -h -d "@$SOURCE_DATE_EPOCH" {} +
target="$out/caisson_${version}_$arch.deb"
dpkg-deb --root-owner-group -Z"${DEB_COMPRESS:-xz}" --build "$tree" "$target" >/dev/null
say "$(du -h "$target" | cut -f1) in $target"
printf '%s\n' "$target"
