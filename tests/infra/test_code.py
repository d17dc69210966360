"""Which code runs, and what is said when it is not the code of before."""

from infra.code import Code, what_changed, workflow_code

BEFORE = Code(version="0123456789abcdef0123456789abcdef01234567", workflows="aaaaaaaaaaaa")


def test_the_digest_is_of_the_workflow_code_alone(tmp_path):
    def lay(name: str, files: dict[str, str]):
        for path, text in files.items():
            file = tmp_path / name / path
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(text)
        return workflow_code(tmp_path / name)

    files = {"workflows/cell.py": "a = 1\n", "workflows/messages/ids.py": "b = 2\n", "infra/x.py": "c = 3\n"}
    first = lay("first", files)
    assert first == lay("elsewhere", {**files, "infra/x.py": "c = 4\n", "workflows/__pycache__/cell.pyc": "z"})
    others = [
        lay("content", {**files, "workflows/cell.py": "a = 2\n"}),
        lay("name", {"workflows/cells.py": "a = 1\n", "workflows/messages/ids.py": "b = 2\n"}),
        lay("border", {"workflows/cell.py": "a = 1\nb = 2\n", "workflows/messages/ids.py": ""}),
        lay("more", {**files, "workflows/patches.py": ""}),
    ]
    assert len({first, *others}) == 5


def test_the_code_of_this_checkout_is_known():
    code = Code.here()
    assert len(code.workflows) == 12
    assert code.version


def test_a_run_that_goes_on_with_its_own_code_says_nothing():
    assert what_changed(None, BEFORE) is None  # a new run, or one from before this was recorded
    assert what_changed(BEFORE, BEFORE) is None


def test_other_code_is_one_line():
    same = what_changed(BEFORE, Code(version="fedcba9876543210+changes", workflows=BEFORE.workflows))
    assert same == (
        "recorded until now by code 0123456789ab, goes on with fedcba987654+changes; "
        "the workflow code is the same (aaaaaaaaaaaa)"
    )
    other = what_changed(BEFORE, BEFORE.model_copy(update={"workflows": "bbbbbbbbbbbb"})) or ""
    assert "the workflow code changed from aaaaaaaaaaaa to bbbbbbbbbbbb: workflows that are alive replay" in other
    assert "\n" not in same + other
