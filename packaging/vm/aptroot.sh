#!/bin/sh
# Makes a separate apt root for one suite: aptroot.sh FOLDER SUITE. Afterwards `APT_CONFIG=FOLDER/apt.conf apt-get …` speaks of
# that suite and of nothing of the machine's own apt, whose state is never touched. The mirror is the machine's own: its
# sources are read and only the suite is exchanged. FOLDER/sources is the result, for other tools.
set -eu
root=$1 suite=$2
here=$(dirname "$0")
mkdir -p "$root/etc/apt.conf.d" "$root/etc/preferences.d" "$root/lists/partial" "$root/archives/partial" "$root/dpkg"
: > "$root/dpkg/status"
python3 "$here/sources.py" "$suite" > "$root/sources.list"
cat > "$root/apt.conf" <<CONF
Dir::Etc::SourceList "$root/sources.list";
Dir::Etc::SourceParts "/dev/null";
Dir::Etc::Preferences "/dev/null";
Dir::Etc::PreferencesParts "$root/etc/preferences.d";
Dir::State "$root";
Dir::State::Lists "$root/lists";
Dir::State::status "$root/dpkg/status";
Dir::Cache "$root";
Dir::Cache::Archives "$root/archives";
Dir::Cache::pkgcache "";
Dir::Cache::srcpkgcache "";
Acquire::Languages "none";
APT::Sandbox::User "root";
CONF
APT_CONFIG="$root/apt.conf" apt-get update -qq
