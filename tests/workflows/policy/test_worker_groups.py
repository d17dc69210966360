"""The table of worker groups: every component has a row, every verb has steps that exist and that its workers serve."""

import pytest

from workflows.policy.component import CELLS, SLOTS, Component, ComponentView, Strategy, Verb
from workflows.policy.migration import actions_of
from workflows.policy.worker_groups import WORKER_GROUPS, performed
from workflows.steps import STEPS, Queue

QUEUE_OF = {step.name: step.queue for step in STEPS}
ROLLOUT, TRAINING = Component.ROLLOUT, Component.TRAINING


def view(name: Component) -> ComponentView:
    group = WORKER_GROUPS[name]
    return ComponentView(
        name=name,
        resource=group.resource,
        units=4,
        slots_per_unit=1,
        peak_items=1,
        items_per_iteration=1,
        strategies={group.strategy: 1.0},
    )


def test_every_component_has_a_row() -> None:
    assert set(WORKER_GROUPS) == set(Component)


@pytest.mark.parametrize("name", list(Component))
def test_every_verb_is_performed_by_steps_that_workers_serve(name: Component) -> None:
    group = WORKER_GROUPS[name]
    queue = Queue.CELL if group.resource == CELLS else Queue.HARNESS
    for verb, steps in group.steps.items():
        assert steps, verb
        assert {QUEUE_OF[step] for step in steps} == {queue}, verb


@pytest.mark.parametrize("name", list(Component))
def test_every_component_can_give_and_take_by_a_verb_of_its_row(name: Component) -> None:
    other = next(one for one in Component if one is not name and WORKER_GROUPS[one].resource == view(name).resource)
    for actions in (actions_of(view(name), view(other), 1), actions_of(view(other), view(name), 1)):
        assert {action.component for action in actions} == {name, other}
        assert all(action.verb in WORKER_GROUPS[action.component].steps for action in actions)


@pytest.mark.parametrize(("donor", "receiver"), [(ROLLOUT, TRAINING), (TRAINING, ROLLOUT)])
def test_what_a_plan_says_is_what_a_transition_tells_it_has_done(donor: Component, receiver: Component) -> None:
    planned = [str(action) for action in actions_of(view(donor), view(receiver), 1)]
    leave, arrive = WORKER_GROUPS[donor].steps[Verb.SUSPEND], WORKER_GROUPS[receiver].steps[Verb.RESUME]
    assert list(performed([*leave, *arrive])) == planned == [f"{donor} suspend", f"{receiver} resume"]


def test_cells_can_be_rebooted_and_move_state_slots_are_resized() -> None:
    verbs = {name: set(group.steps) for name, group in WORKER_GROUPS.items()}
    assert verbs[ROLLOUT] == verbs[TRAINING] == set(Verb) - {Verb.RESIZE}
    assert verbs[Component.HARNESS] == verbs[Component.EVALUATOR] == {Verb.RESIZE}
    assert {group.resource for group in WORKER_GROUPS.values() if group.strategy is Strategy.RESIZE} == {SLOTS}


def test_verbs_are_performed_when_all_their_steps_are() -> None:
    leaving = ["reroute_executions", "retain_kv", "await_quiet", "pull_kv", "release_kv", "release_rollout"]
    assert performed(leaving) == ("rollout move_state", "rollout suspend")
    assert performed([*leaving, "restore_training"]) == ("rollout move_state", "rollout suspend", "training resume")
    assert performed([step for step in leaving if step != "pull_kv"]) == ("rollout suspend",)
    assert performed(["leave_stream"]) == ()
    back = ["leave_stream", "release_training", "resume_rollout", "load_weights", "verify_engine"]
    assert performed(back) == ("training suspend", "rollout resume")
    assert performed(["load_weights", "verify_engine"]) == (), "a boot resumes nothing"
    assert set(performed(["reboot_cell"])) == {"rollout reboot", "training reboot"}
