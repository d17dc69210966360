from pathlib import Path

from infra.doctor import Verdict, examine
from infra.doctor.machine import check_cores, check_isolation, check_library, check_memory, check_python
from infra.doctor.packages import TOP_PACKAGES, check_own_packages, lock_differences, only_tools_missing, pins
from infra.processes.isolation import Isolation

ROOT = Path(__file__).parents[3]


def test_pins_are_read_with_extras_and_without_comments():
    lines = ["# a comment", "torch==2.13.0", "pyright[nodejs]==1.1.414", "numpy", ""]
    assert pins(lines) == {"torch": "2.13.0", "pyright": "1.1.414"}


def test_differences_from_the_lock_are_named_but_a_torch_build_is_not_one():
    here = {"torch": "2.13.0+cpu", "rich": "14.0"}
    wanted = {"torch": "2.13.0", "rich": "15.0.0", "simpy": "4.1.2"}
    assert lock_differences(wanted, here.get) == ["rich is 14.0, not 15.0.0", "simpy is missing"]


def test_an_environment_made_for_the_demo_alone_is_no_fault():
    after_demo = {"python", "torch", "runtime", "sglang-needs", "sglang", "system"}
    assert only_tools_missing(["hypothesis is missing", "ruff is missing"], after_demo)
    assert not only_tools_missing(["rich is 14.0, not 15.0.0"], after_demo)
    assert not only_tools_missing(["hypothesis is missing"], {*after_demo, "dev"})
    assert not only_tools_missing(["torch is missing"], {"python"})


def test_a_foreign_workflows_package_is_a_fault_with_a_fix():
    def find(name: str) -> str:
        return "/usr/lib/python3/workflows/__init__.py" if name == "workflows" else str(ROOT / name / "__init__.py")

    finding = check_own_packages(ROOT, find)
    assert finding.verdict is Verdict.FAIL
    assert "workflows comes from /usr/lib" in finding.detail
    assert "PYTHONPATH" in finding.fix


def test_our_packages_are_the_ones_imported_here():
    assert check_own_packages(ROOT).verdict is Verdict.OK
    assert TOP_PACKAGES[0] == "workflows"


def test_what_is_missing_fails_and_what_is_tight_warns():
    assert check_python((3, 12)).verdict is Verdict.FAIL
    assert check_library("libnot-there.so.7").fix.startswith("sudo apt-get install")
    assert check_cores(1).verdict is Verdict.WARN
    assert check_memory(3 << 30).verdict is Verdict.WARN
    assert check_memory(13 << 30).verdict is Verdict.OK


def test_every_finding_that_is_not_fine_names_a_command():
    findings = examine(ROOT)
    assert len({finding.name for finding in findings}) == len(findings)
    assert all(bool(finding.fix) == (finding.verdict is not Verdict.OK) for finding in findings)


def test_isolation_that_does_not_hold_says_why():
    held = check_isolation(Isolation("/bwrap", files=True, processes=True, network=True))
    assert held.verdict is Verdict.OK
    part = check_isolation(Isolation("/bwrap", files=True, processes=True, reason="no network of one's own"))
    assert (part.verdict, "no network of one's own" in part.detail) == (Verdict.WARN, True)
    none = check_isolation(Isolation(reason="bubblewrap is not installed"))
    assert none.verdict is Verdict.WARN
    assert "not isolated: bubblewrap is not installed" in none.detail
    assert "bubblewrap" in none.fix
