from workers.supervisor.process import pause_seconds


def test_the_pause_doubles_up_to_half_a_minute():
    assert [pause_seconds(deaths) for deaths in range(1, 8)] == [1, 2, 4, 8, 16, 30, 30]
