"""What is run: Harbor task directories with Caisson's own file beside them, suites and scripted behaviours."""

from caisson_runner.tasks.agent import AgentPlan, plan_agent
from caisson_runner.tasks.behaviour import Behaviour, load_behaviour
from caisson_runner.tasks.catalogue import Catalogue, Scenario, load_catalogue
from caisson_runner.tasks.errors import (
    ScenarioError,
    SuiteMalformed,
    TaskMalformed,
    TaskNotFound,
    UnknownBehaviour,
    UnsupportedTask,
)
from caisson_runner.tasks.suite import Experiment, Suite, load_suite
from caisson_runner.tasks.task import Task, load_task

__all__ = [
    "AgentPlan",
    "Behaviour",
    "Catalogue",
    "Experiment",
    "Scenario",
    "ScenarioError",
    "Suite",
    "SuiteMalformed",
    "Task",
    "TaskMalformed",
    "TaskNotFound",
    "UnknownBehaviour",
    "UnsupportedTask",
    "load_behaviour",
    "load_catalogue",
    "load_suite",
    "load_task",
    "plan_agent",
]
