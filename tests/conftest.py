"""The whole suite: fast tests first, so that a plain mistake is seen before minutes of slow tests.

Property tests take the same examples every time and have no time limit of their own, so that a busy machine changes
nothing. `pytest --hypothesis-profile=explore` looks further.
"""

import pytest
from hypothesis import HealthCheck, settings

settings.register_profile("steady", deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("explore", settings.get_profile("steady"), derandomize=False, max_examples=500)
settings.load_profile("steady")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    items.sort(key=lambda item: item.get_closest_marker("slow") is not None)
