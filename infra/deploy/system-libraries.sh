#!/usr/bin/env bash
# The one system library that Python packages do not bring: Mooncake links libibverbs, also where there is no RDMA.
# PYTHON is an interpreter to test with. Installs only where that needs no password.
set -euo pipefail

present() {
    "$PYTHON" -c 'import ctypes; ctypes.CDLL("libibverbs.so.1")' 2>/dev/null
}

present && exit 0

install="apt-get install -y --no-install-recommends libibverbs1"
as_root=none
if command -v apt-get >/dev/null; then
    if [ "$(id -u)" -eq 0 ]; then
        as_root=""
    elif command -v sudo >/dev/null && sudo -n true 2>/dev/null; then
        as_root="sudo -n"
    fi
fi

if [ "$as_root" != none ]; then
    echo "setup: installing libibverbs1"
    export DEBIAN_FRONTEND=noninteractive
    log=$(mktemp)
    trap 'rm -f "$log"' EXIT
    # Words are meant to split here. A package list may be missing or old, so one more try after an update.
    $as_root $install >"$log" 2>&1 || { $as_root apt-get update && $as_root $install; } >"$log" 2>&1 || cat "$log" >&2
    present && exit 0
fi

cat >&2 <<MESSAGE
setup: the system library libibverbs.so.1 is missing (Mooncake's transfer engine links it). Install it, then run make again:
  Debian, Ubuntu:  sudo $install
  Fedora, RHEL:    sudo dnf install -y libibverbs
MESSAGE
exit 1
