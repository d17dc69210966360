#!/bin/sh
# The command `gyre`: the checkout it was set up in, in that checkout's own environment.
root=$(dirname "$(dirname "$(dirname "$(readlink -f "$0")")")")
PYTHONPATH="$root${PYTHONPATH:+:$PYTHONPATH}" exec "$root/.venv/bin/python" -P -m workers.cli "$@"
