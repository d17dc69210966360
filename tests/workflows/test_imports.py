"""Workflow modules stay light: the sandbox imports them for every worker, and replay must not depend on the rest."""

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
HEAVY = {"torch", "numpy", "sglang", "megatron", "mooncake", "httpx2", "sqlalchemy", "starlette", "transformers"}
OURS = {"infra", "activities", "workers", "harness_adapters"}


def test_the_workflows_import_nothing_heavy():
    modules = sorted(
        str(path.relative_to(ROOT).with_suffix("")).replace("/", ".").removesuffix(".__init__")
        for path in (ROOT / "workflows").rglob("*.py")
    )
    assert "workflows.scheduler" in modules
    program = f"import sys, {', '.join(modules)}; print(*{{name.split('.')[0] for name in sys.modules}})"
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=True)
    loaded = set(done.stdout.split())
    assert "workflows" in loaded
    assert loaded & (HEAVY | OURS) == set()
