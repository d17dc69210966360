"""What cannot be is refused beside the name of the option, before anything is measured, started or written."""

import pytest

from workers.cli.app import main


def refused(arguments: str, capsys) -> str:
    """What is said on standard error about a command line that has to end with 2."""
    with pytest.raises(SystemExit) as ended:
        main(arguments.split())
    assert ended.value.code == 2
    shown = capsys.readouterr()
    assert "Traceback" not in shown.err
    return " ".join(shown.err.replace("│", " ").split())


@pytest.mark.parametrize(
    ("arguments", "option"),
    [
        ("bench decide --cells 0", "--cells"),
        ("bench decide --calls 0", "--calls"),
        ("bench decide --gpus 0", "--gpus"),
        ("bench demo --seeds 0", "--seeds"),
        ("bench pipeline --stages 0", "--stages"),
        ("bench pipeline --rounds 0", "--rounds"),
        ("bench proxy --streams 0", "--streams"),
        ("bench proxy --pairs -1", "--pairs"),
        ("bench proxy --tokens-per-second 0", "--tokens-per-second"),
        ("bench proxy --only nobody", "--only"),
        ("bench schedulers --split 0", "--split"),
        ("bench session --calls 0", "--calls"),
        ("bench simulate --cells 0", "--cells"),
        ("bench trajectories --rounds 0", "--rounds"),
        ("bench transition --rounds 0", "--rounds"),
        ("bench tree --sharing 0", "--sharing"),
        ("bench tree --row-seconds nan", "--row-seconds"),
        ("bench weights --megabytes 0", "--megabytes"),
        ("demo --bursts 0", "--bursts"),
        ("demo --seed -1", "--seed"),
        ("harness try pi --seconds -1", "--seconds"),
        ("plan --hours 0", "--hours"),
        ("plan --hours nan", "--hours"),
        ("plan --trials 0", "--trials"),
        ("replay first/0 --threads 0", "--threads"),
        ("simulate --seed -1", "--seed"),
        ("up --ready-seconds 0", "--ready-seconds"),
    ],
)
def test_a_number_that_cannot_be_is_refused_by_name(arguments, option, capsys):
    assert option in refused(arguments, capsys)


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        ("simulate --plot FOLDER/none/x.png", "--plot: there is no folder FOLDER/none"),
        ("simulate --plot FOLDER", "--plot: FOLDER is a folder, a file is expected"),
        ("bench session --plot FOLDER/none/x.png", "--plot: there is no folder"),
        ("bench trajectories --plot FOLDER/none/x.png", "--plot: there is no folder"),
        ("bench weights --weights-folder FOLDER/none", "--weights-folder: there is no folder"),
        ("tree first/0/0 --html FOLDER/none/x.html", "--html: there is no folder"),
        ("ledger --csv FOLDER/none/x.csv", "--csv: there is no folder"),
        ("ledger --parquet FOLDER", "--parquet: FOLDER is a folder"),
        ("bench session --model FOLDER/none", "--model: FOLDER/none is no folder"),
        ("bench pipeline --model FOLDER/none", "model: FOLDER/none is no folder"),
    ],
)
def test_a_place_that_cannot_be_written_or_read_is_refused_at_once(arguments, told, tmp_path, capsys):
    said = refused(arguments.replace("FOLDER", str(tmp_path)), capsys)
    assert told.replace("FOLDER", str(tmp_path)) in said
