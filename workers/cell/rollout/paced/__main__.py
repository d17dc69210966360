"""``python -m workers.cell.rollout.paced --port P ...``: one paced engine on loopback."""

import argparse
import asyncio

import uvicorn

from workers.cell.rollout.paced.engine import PacedEngine
from workers.cell.rollout.paced.routes import paced_app
from workers.cell.rollout.paced.settings import PacedSettings


def main() -> None:
    parser = argparse.ArgumentParser(description="SGLang's native routes with seeded tokens at a set rate.")
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, required=True)
    for name, field in PacedSettings.model_fields.items():
        if name == "may_die":
            continue
        flag = "--" + name.replace("_", "-")
        if field.annotation is bool:
            parser.add_argument(flag, action="store_true", help=field.description)
        else:
            parser.add_argument(flag, type=type(field.default), default=field.default, help=field.description)
    arguments = vars(parser.parse_args())
    host, port = arguments.pop("host"), arguments.pop("port")
    asyncio.run(serve(PacedSettings(**arguments, may_die=True), host, port))


async def serve(settings: PacedSettings, host: str, port: int) -> None:
    """Serve until the process is told to stop."""
    app = paced_app(PacedEngine(settings))
    config = uvicorn.Config(
        app, host=host, port=port, log_level="warning", access_log=False, timeout_graceful_shutdown=1
    )
    await uvicorn.Server(config).serve()


if __name__ == "__main__":
    main()
