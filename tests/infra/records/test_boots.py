from concurrent.futures import ThreadPoolExecutor

from infra.records.boots import latest_boot, next_boot
from infra.records.database import open_database


def test_epochs_count_up_per_component(tmp_path):
    engine = open_database(f"sqlite:///{tmp_path}/records.db", create=True)
    assert latest_boot(engine, "cell-1") is None
    assert [next_boot(engine, "cell-1"), next_boot(engine, "cell-1"), next_boot(engine, "proxy")] == [1, 2, 1]
    assert latest_boot(engine, "cell-1") == 2
    engine.dispose()


def test_starts_at_the_same_time_get_different_epochs(tmp_path):
    engine = open_database(f"sqlite:///{tmp_path}/records.db", create=True)
    with ThreadPoolExecutor(8) as pool:
        epochs = list(pool.map(lambda _: next_boot(engine, "cell-0"), range(24)))
    assert sorted(epochs) == list(range(1, 25))
    engine.dispose()
