"""``python -S -m workers.harness_host.runner FOLDER``: run the job in FOLDER to its end (`infra.processes`).

Started in a session of its own, it outlives the worker; imports the standard library alone, so it starts fast.
"""

import sys
from pathlib import Path

from infra.processes.supervision import supervise

if __name__ == "__main__":
    supervise(Path(sys.argv[1]))
