#!/bin/sh
# Runs a suite, the comparison of witnesses (compare) or the red team (redteam), with the best witness this user can have.
# As root it starts a tracerd of its own when none answers, and takes it away again (process, pins, mounts) at the end.
set -eu
cd "$(dirname "$0")/.."
suite=$1; shift
bin=${VENV:-.venv}/bin
daemon=""
finish() {
  if [ -n "$daemon" ]; then kill -TERM "$daemon" 2>/dev/null || true; wait "$daemon" 2>/dev/null || true; daemon=""; fi
}
trap finish EXIT
trap 'finish; exit 130' INT
trap 'finish; exit 143' TERM
if [ "$(id -u)" -eq 0 ] && ! "$bin/tracerd" status >/dev/null 2>&1; then
  echo "demo: starting tracerd"
  mkdir -p caisson-out
  "$bin/tracerd" serve --unload-on-exit >caisson-out/tracerd.log 2>&1 &
  daemon=$!
  tries=0
  until "$bin/tracerd" status >/dev/null 2>&1; do
    tries=$((tries + 1))
    if ! kill -0 "$daemon" 2>/dev/null || [ "$tries" -ge 200 ]; then
      echo "demo: tracerd did not become ready; going on without it. Its last words:"; tail -n 3 caisson-out/tracerd.log
      finish
      break
    fi
    sleep 0.2
  done
fi
case $suite in
  compare) "$bin/caisson-run" compare "$@" ;;
  redteam) "$bin/python" tests/redteam/run.py "$@" ;;
  *) "$bin/caisson-run" suite "$suite" "$@" ;;
esac
