"""The rollout engine of a cell: the real SGLang server, or the paced double the fleet file asks for."""

from pathlib import Path

from infra.settings.run import RunManifest, Secrets
from workers.cell.rollout.command import EngineParameters, LinkerParameters
from workers.cell.rollout.paced.server import PacedServer
from workers.cell.rollout.server import EngineServer
from workflows.messages.fleet import CellSpec


def engine_server(manifest: RunManifest, cell: CellSpec, boot_epoch: int) -> EngineServer | PacedServer:
    """The not yet started server of a cell. Its first weights are those of the base model, version 0."""
    log = manifest.logs / f"engine-{cell.index}.log"
    key = Secrets.of(manifest.folder).admin_key
    fleet = manifest.fleet
    if cell.engine == "paced":
        return PacedServer(
            port=manifest.engine_ports[cell.index],
            model=manifest.model_folder,
            admin_key=key,
            slots=cell.slots,
            kv_tokens=cell.kv_tokens,
            context_tokens=fleet.context_tokens,
            pace=fleet.paced,
            root=Path(manifest.root),
            log_path=log,
        )
    linker = None
    if fleet.kv_handoff:
        linker = LinkerParameters(
            port=manifest.linker_ports[cell.index],
            token=key,
            pool_tokens=fleet.kv_host_tokens,
            boot_epoch=boot_epoch,
            host=manifest.host,
        )
    parameters = EngineParameters(
        model_path=manifest.model_folder,
        port=manifest.engine_ports[cell.index],
        version="0",
        admin_key=key,
        max_running_requests=cell.slots,
        max_total_tokens=cell.kv_tokens,
        context_tokens=fleet.context_tokens,
        linker=linker,
    )
    return EngineServer(parameters, log)
