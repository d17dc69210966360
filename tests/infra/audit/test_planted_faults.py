"""Every fault of the catalogue, planted in a recorded run, is found by its code."""

import pytest

from infra.audit import audit_records
from infra.audit.catalogue import CATALOGUE, VERSION_CODES
from tests.infra.audit.any_run import PLANTS
from tests.infra.audit.faults import FAULTS, Fault
from tests.infra.audit.recording import SyntheticRun


def test_every_kind_of_fault_is_planted() -> None:
    assert {code for code, _, _ in FAULTS} == CATALOGUE.keys()
    assert CATALOGUE.keys() >= VERSION_CODES
    assert {fault.invariant for fault in CATALOGUE.values()} == set(range(1, 10))
    assert {code for code, _ in PLANTS} == CATALOGUE.keys()


@pytest.mark.parametrize(("code", "fault"), [(c, f) for c, _, f in FAULTS], ids=[f"{c}-{n}" for c, n, _ in FAULTS])
def test_planted_fault_is_found(recorded: SyntheticRun, code: str, fault: Fault) -> None:
    fault(recorded)
    report = audit_records(recorded.engine, recorded.store, at_rest=True)
    assert not report.ok
    assert code in report.codes()
    finding = next(finding for finding in report.findings if finding.code == code)
    assert finding.invariant == CATALOGUE[code].invariant
    assert finding.subject
    assert CATALOGUE[code].meaning in finding.detail


@pytest.mark.slow
@pytest.mark.parametrize(("code", "plant"), PLANTS, ids=[f"{code}-{plant.__name__}" for code, plant in PLANTS])
def test_what_is_planted_in_any_run_is_found_in_this_one(recorded: SyntheticRun, code: str, plant: Fault) -> None:
    plant(recorded)
    assert code in audit_records(recorded.engine, recorded.store, at_rest=True).codes()
