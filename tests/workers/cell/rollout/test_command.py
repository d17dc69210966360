import json
from pathlib import Path

from tests.workers.cell.rollout.tiny_model import write_tiny_model
from workers.cell.rollout.command import (
    CHECKOUT,
    EngineParameters,
    LinkerParameters,
    command_line,
    environment,
    unused_architectures,
)


def parameters(**changes) -> EngineParameters:
    values = {"model_path": Path("model"), "port": 21000, "version": "4", "admin_key": "k"} | changes
    return EngineParameters(**values)


def value_of(command: list[str], flag: str) -> str:
    return command[command.index(flag) + 1]


def test_the_cpu_engine_serves_fp32_from_ids_to_ids():
    command = command_line(parameters(max_running_requests=3, max_total_tokens=2048))
    assert value_of(command, "--dtype") == "float32"
    assert value_of(command, "--device") == "cpu"
    assert value_of(command, "--weight-version") == "4"
    assert value_of(command, "--max-running-requests") == "3"
    assert value_of(command, "--max-total-tokens") == "2048"
    assert {"--skip-tokenizer-init", "--incremental-streaming-output", "--sleep-on-idle"} <= set(command)
    assert "--enable-unified-cache-external-linker" not in command


def test_stand_ins_are_on_the_path_only_without_cuda():
    cpu = environment(parameters(), {"PYTHONPATH": "mine", "HOME": "home"})
    assert cpu["HOME"] == "home"
    assert cpu["PYTHONPATH"].split(":")[0] == str(CHECKOUT)
    assert cpu["PYTHONPATH"].endswith(":mine")
    assert "standins" in cpu["PYTHONPATH"]
    assert cpu["SGLANG_ENABLE_HEALTH_ENDPOINT_GENERATION"] == "false"
    gpu = environment(parameters(cuda=True), {})
    assert "standins" not in gpu["PYTHONPATH"]
    assert "SGLANG_USE_CPU_ENGINE" not in gpu
    command = command_line(parameters(cuda=True))
    assert "--device" not in command
    assert "--enable-deterministic-inference" in command


def test_the_linker_is_configured_as_json():
    linker = LinkerParameters(port=21001, token="t", pool_tokens=4096, boot_epoch=9)
    config = json.loads(value_of(command_line(parameters(linker=linker)), "--unified-cache-external-linker-config"))
    assert config["linker_extra_config"]["boot_epoch"] == 9
    assert config["linker_module_path"] == "workers.cell.rollout.linker.plugin"


def test_only_the_models_own_architecture_is_imported(tmp_path):
    write_tiny_model(tmp_path)
    unused = unused_architectures(tmp_path)
    assert len(unused) > 100
    assert "qwen3" not in unused
    assert unused_architectures(tmp_path / "nowhere") == []
