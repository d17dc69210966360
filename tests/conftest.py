"""Order of the whole suite: fast tests first, so that a plain mistake is seen before minutes of slow tests."""

import pytest


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    items.sort(key=lambda item: item.get_closest_marker("slow") is not None)
