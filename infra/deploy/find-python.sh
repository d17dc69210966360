#!/usr/bin/env bash
# Prints the path of a Python 3.11 that can make environments; PYTHON names one to try first.
set -euo pipefail

usable() {
    "$1" -c 'import sys, venv, ensurepip; sys.exit(sys.version_info[:2] != (3, 11))' >/dev/null 2>&1
}

for candidate in "${PYTHON:-}" python3.11 /usr/bin/python3.11 /usr/local/bin/python3.11 \
    "$HOME"/.pyenv/versions/3.11.*/bin/python3.11 python3; do
    if [ -n "$candidate" ] && path=$(command -v "$candidate") && usable "$path"; then
        echo "$path"
        exit 0
    fi
done

cat >&2 <<'MESSAGE'
setup: no usable Python 3.11 found (3.11 itself, with its venv module).
  Debian, Ubuntu:  sudo apt-get install python3.11 python3.11-venv
  or name one:     make setup PYTHON=/path/to/python3.11
MESSAGE
exit 1
