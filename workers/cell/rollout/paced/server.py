"""The paced engine as a child process of the cell worker; the same life as the real one's."""

import sys
from collections.abc import Mapping
from pathlib import Path

from infra.settings.fleet import PacedEngine
from workers.cell.rollout.server import ChildServer


class PacedServer(ChildServer):
    """One life of a paced engine. `pace` gives tokens a second."""

    def __init__(
        self,
        *,
        port: int,
        model: Path,
        admin_key: str,
        slots: int,
        kv_tokens: int,
        context_tokens: int,
        pace: PacedEngine,
        root: Path,
        log_path: Path,
    ) -> None:
        super().__init__(log_path)
        self._root = root
        self._flags = {
            "port": port,
            "model": model,
            "admin-api-key": admin_key,
            "slots": slots,
            "kv-tokens": kv_tokens,
            "context": context_tokens,
            "tokens-per-second": pace.tokens_per_second,
            "prefill-tokens-per-second": pace.prefill_tokens_per_second,
            "version": "0",
        }
        if pace.script:
            self._flags["script"] = pace.script

    def command(self) -> list[str]:
        pairs = [part for name, value in self._flags.items() for part in (f"--{name}", str(value))]
        return [sys.executable, "-m", "workers.cell.rollout.paced", *pairs]

    def environment(self, base: Mapping[str, str]) -> dict[str, str]:
        return {**base, "PYTHONPATH": str(self._root)}
