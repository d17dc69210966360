from pathlib import Path

import pytest
import torch

from infra.weights.architecture import Architecture
from infra.weights.folder import load_weights
from tests.workers.cell.training.material import write_policy
from workers.cell.training.model import PolicyModel, build_model


@pytest.fixture(scope="session", autouse=True)
def _one_thread() -> None:
    torch.set_num_threads(1)


@pytest.fixture(scope="session")
def policy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_policy(tmp_path_factory.mktemp("policy") / "tied")


@pytest.fixture(scope="session")
def untied_policy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_policy(tmp_path_factory.mktemp("policy") / "untied", tied=False, seed=1)


@pytest.fixture
def model(policy: Path) -> PolicyModel:
    return loaded(policy)


def loaded(folder: Path) -> PolicyModel:
    model = build_model(Architecture.from_folder(folder))
    model.load_hf(load_weights(folder))
    return model
