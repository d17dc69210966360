import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from infra.weights.architecture import Architecture
from infra.weights.checksum import FlatDigest, weights_checksum
from infra.weights.folder import export_folder, folder_checksum, load_weights
from infra.weights.layout import FlatLayout
from infra.weights.names import from_hf, hf_shapes, to_hf
from infra.weights.plain import arrays_checksum
from tests.workers.cell.training.material import write_policy
from workflows.messages.errors import InvalidInput


@pytest.fixture(params=[True, False], ids=["tied", "untied"])
def folder(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    return write_policy(tmp_path / "policy", tied=request.param)


def change(folder: Path, **fields: object) -> None:
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | fields))


def test_the_mapping_loses_nothing(folder: Path) -> None:
    arch, weights = Architecture.from_folder(folder), load_weights(folder)
    back = to_hf(arch, from_hf(arch, weights))
    assert list(back) == list(hf_shapes(arch))
    assert all(torch.equal(back[name], weights[name]) for name in weights)


def test_the_checksum_depends_on_name_shape_dtype_and_every_bit() -> None:
    tensor = torch.arange(6, dtype=torch.float32)
    sums = {
        weights_checksum({"a": tensor}),
        weights_checksum({"b": tensor}),
        weights_checksum({"a": tensor.view(2, 3)}),
        weights_checksum({"a": tensor.view(torch.int32)}),
        weights_checksum({"a": tensor.nextafter(torch.tensor(9.0))}),
        weights_checksum({"a": tensor[:3], "b": tensor[3:]}),
    }
    assert len(sums) == 6
    mixed = {"b": tensor.view(2, 3).T, "a": tensor}
    assert weights_checksum(mixed) == weights_checksum({"a": tensor, "b": mixed["b"].contiguous()})
    assert len(weights_checksum({"a": tensor.to(torch.bfloat16)})) == 64


@pytest.mark.parametrize(
    "wrong",
    [
        {"model_type": "llama"},
        {"hidden_act": "gelu"},
        {"attention_bias": True},
        {"use_sliding_window": True},
        {"rope_parameters": {"rope_type": "yarn", "rope_theta": 1e4}},
    ],
)
def test_another_architecture_is_refused_by_field(folder: Path, wrong: dict[str, object]) -> None:
    change(folder, **wrong)
    with pytest.raises(InvalidInput) as caught:
        Architecture.from_folder(folder)
    assert caught.value.field == next(iter(wrong))


def test_the_older_spelling_of_rope_is_understood(folder: Path) -> None:
    change(folder, rope_parameters=None, rope_theta=5e5)
    assert Architecture.from_folder(folder).rope_theta == 5e5


def test_a_folder_without_config_or_weights_is_refused(tmp_path: Path, folder: Path) -> None:
    with pytest.raises(InvalidInput, match=r"config\.json"):
        Architecture.from_folder(tmp_path / "nothing")
    (folder / "model.safetensors").unlink()
    with pytest.raises(InvalidInput, match="safetensors"):
        load_weights(folder)


def test_export_replaces_a_folder_whole(folder: Path, tmp_path: Path) -> None:
    target = tmp_path / "published"
    weights = load_weights(folder)
    export_folder(target, weights, folder)
    (target / "left-over").write_text("of an older version")
    export_folder(target, {name: tensor + 1 for name, tensor in weights.items()}, folder)
    assert sorted(path.name for path in target.iterdir()) == ["config.json", "model.safetensors"]
    assert folder_checksum(target) == weights_checksum({name: tensor + 1 for name, tensor in weights.items()})


@pytest.mark.parametrize("error", [OSError, KeyboardInterrupt])
def test_an_export_that_fails_leaves_the_old_folder_and_no_draft(
    folder: Path, tmp_path: Path, error: type[BaseException]
) -> None:
    """It lies in memory: a draft nobody removes would be missing there."""
    target, weights = tmp_path / "published" / "v1", load_weights(folder)
    export_folder(target, weights, folder)

    def full(draft: Path, *_: object) -> None:
        (draft / "model.safetensors").write_bytes(b"half")
        raise error("no space left")

    with pytest.raises(error):
        export_folder(target, weights, folder, full)
    assert [path.name for path in target.parent.iterdir()] == ["v1"]
    assert folder_checksum(target) == weights_checksum(weights)


def test_a_flat_buffer_is_seen_through_views() -> None:
    layout = FlatLayout.of({"b": (2, 2), "a": (3,)})
    flat = torch.arange(7, dtype=torch.float32)
    views = layout.views(flat)
    assert (layout.elements, list(views)) == (7, ["a", "b"])
    views["b"][1, 1] = -1
    assert flat.tolist() == [0, 1, 2, 3, 4, 5, -1]


def test_importing_does_not_load_torch() -> None:
    modules = "infra.weights.names, infra.weights.folder, infra.weights.checksum, infra.checkpoints, infra.actor"
    code = f"import sys, {modules}, infra.micro_steps; assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True, cwd=Path(__file__).parents[3], timeout=250)


@given(st.lists(st.integers(1, 97), max_size=12))
def test_bytes_that_come_in_any_pieces_give_the_same_checksum(sizes: list[int]) -> None:
    shapes = {"b": (3, 5), "a": (7,), "none": (0, 4), "c": (1,)}
    layout = FlatLayout.of(shapes)
    flat = torch.randn(layout.elements, generator=torch.Generator().manual_seed(1))
    data = flat.view(torch.uint8).numpy().data
    digest, place = FlatDigest(layout, "float32", 4), 0
    for size in [*sizes, len(data)]:
        digest("weights", data[place : place + size])
        place += size
    tensors = layout.views(flat)
    assert digest.hexdigest() == weights_checksum(tensors)
    assert digest.hexdigest() == arrays_checksum({name: tensor.numpy() for name, tensor in tensors.items()})
