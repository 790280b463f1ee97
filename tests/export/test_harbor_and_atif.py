"""Bundles as Harbor's jobs and as trajectories: what its models require, and what the witness adds."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import bundle_sample as sample
import pytest
from caisson_proto.record import Kind, Record
from caisson_runner.bundle import Bundle, BundleWriter
from caisson_runner.export import FORMATS, Scene, atif, export, harbor
from caisson_runner.export.errors import ExportError
from published import ATIF, HARBOR, holds


def job(bundle: Bundle, out: Path) -> tuple[Path, Path]:
    harbor.write(bundle, Scene.of(bundle), out)
    (trial,) = [path for path in out.iterdir() if path.is_dir()]
    return out, trial


def read(path: Path) -> Any:
    return json.loads(path.read_bytes())


def test_job_has_the_layout_and_fields_that_harbor_reads(bundle: Bundle, tmp_path: Path) -> None:
    out, trial = job(bundle, tmp_path / "job")
    assert {path.name for path in out.iterdir()} == {"config.json", "result.json", "lock.json", "job.log", trial.name}
    assert {path.name for path in trial.iterdir()} == {
        "config.json", "result.json", "lock.json", "trial.log", "agent", "verifier", "artifacts",
    }  # fmt: skip
    result = read(trial / "result.json")
    assert set(result) >= HARBOR["trial"]
    assert result["schema_version"] == 1
    assert set(read(trial / "lock.json")) >= HARBOR["trial_lock"]
    assert read(trial / "lock.json")["task"]["digest"] == "sha256:" + "d" * 64
    assert set(read(out / "result.json")) >= HARBOR["job"]
    assert set(read(out / "lock.json")) >= HARBOR["job_lock"]
    assert all(set(one) >= HARBOR["artifact"] for one in read(trial / "artifacts/manifest.json"))
    assert result["started_at"] <= result["agent_execution"]["started_at"] <= result["verifier"]["finished_at"]


def test_bundle_travels_with_the_trial_and_still_verifies(bundle: Bundle, tmp_path: Path) -> None:
    _out, trial = job(bundle, tmp_path / "job")
    assert Bundle.open(trial / "artifacts" / harbor.BUNDLE, verify=True).files == bundle.files


@pytest.mark.parametrize(("word", "reward"), [("pass", 1.0), ("fail", 0.0), ("void", 0.0), ("infra", None)])
def test_infra_has_no_reward_and_is_left_out_of_the_statistics(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, word: str, reward: float | None
) -> None:
    monkeypatch.setitem(sample.VERDICT, "word", word)
    out, trial = job(sample.bundle(tmp_path / "b"), tmp_path / "job")
    result, stats = read(trial / "result.json"), read(out / "result.json")["stats"]
    (evaluation,) = stats["evals"].values()
    if reward is None:
        assert result["verifier_result"] is None
        assert result["exception_info"]["exception_type"] == "CaissonInfraError"
        assert not (trial / "verifier/reward.json").exists()
        assert (evaluation["n_trials"], evaluation["n_errors"], stats["n_errored_trials"]) == (0, 1, 1)
    else:
        assert read(trial / "verifier/reward.json") == {"reward": reward} == result["verifier_result"]["rewards"]
        assert evaluation["reward_stats"] == {"reward": {str(reward): [trial.name]}}


def test_job_is_never_written_over_another(bundle: Bundle, tmp_path: Path) -> None:
    with pytest.raises(ExportError, match="exists already"):
        harbor.write(bundle, Scene.of(bundle), tmp_path)


def trajectory(bundle: Bundle, given: object | None = None) -> dict[str, Any]:
    out = io.BytesIO()
    export(bundle, "atif", out, trajectory=None if given is None else json.dumps(given).encode())
    value: dict[str, Any] = json.loads(out.getvalue())
    return value


def valid(value: dict[str, Any]) -> None:
    """The rules beyond types: harbor/models/trajectories/{trajectory,step}.py."""
    holds(value, "trajectory", ATIF, "trajectory")
    assert value["schema_version"] == "ATIF-v1.8"
    assert [step["step_id"] for step in value["steps"]] == list(range(1, len(value["steps"]) + 1))
    for step in value["steps"]:
        assert step["source"] in ("system", "user", "agent")
        if step["source"] != "agent":
            assert not {"tool_calls", "metrics", "model_name", "llm_call_count"} & set(step)
        calls = {call["tool_call_id"] for call in step.get("tool_calls", ())}
        assert {one["source_call_id"] for one in step.get("observation", {"results": []})["results"]} <= calls


def test_witnessed_programs_are_a_valid_trajectory(bundle: Bundle) -> None:
    value = trajectory(bundle)
    valid(value)
    steps = value["steps"][1:]
    assert [step["tool_calls"][0]["arguments"]["argv"][0] for step in steps] == ["/bin/sh", "python3"]
    assert steps[1]["observation"]["results"][0]["content"].startswith("SIGKILL; wrote ")
    assert "192.0.2.1:443 ENETUNREACH" in steps[1]["extra"]["caisson"]["seen"]["connects"]
    assert value["extra"]["caisson"]["findings"] == [{"rule": "test-config-written", "severity": "warn"}]


def test_long_runs_are_cut_and_say_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(atif, "MAX_STEPS", 5)
    records = [Record(Kind.EXEC, pid=at, start_ns=1, given=b"/x", argv=(b"x",)) for at in range(1, 21)]
    value = trajectory(sample.bundle(tmp_path / "b", records))
    valid(value)
    assert len(value["steps"]) == 5
    assert value["notes"].startswith("16 more programs were run")


GIVEN: dict[str, Any] = {
    "schema_version": "ATIF-v1.6",
    "agent": {"name": "a", "version": "1"},
    "extra": {"own": 1},
    "steps": [
        {"step_id": 1, "source": "user", "message": "do it", "timestamp": "2026-11-30T11:59:59Z"},
        {
            "step_id": 2, "source": "agent", "message": "I run the script", "timestamp": "2026-11-30T12:00:00.000Z",
            "tool_calls": [
                {"tool_call_id": "1", "function_name": "bash", "arguments": {"command": "/agent/run.sh"}},
                {"tool_call_id": "2", "function_name": "bash", "arguments": {"command": "pytest -q"}},
                {"tool_call_id": "3", "function_name": "write_file", "arguments": {"path": "impl.py"}},
                {"tool_call_id": "4", "function_name": "write_file", "arguments": {"path": "./conftest.py"}},
            ],
        },
        {"step_id": 3, "source": "agent", "message": "done", "timestamp": "2026-11-30T13:00:00+00:00"},
        {"step_id": 4, "source": "agent", "message": "no time"},
    ],
}  # fmt: skip


def test_claims_stand_beside_what_was_witnessed(bundle: Bundle) -> None:
    value = trajectory(bundle, GIVEN)
    steps = value["steps"]
    first = steps[1]["extra"]["caisson"]
    assert first["claimed"] == {"commands": ["/agent/run.sh", "pytest -q"], "paths": ["impl.py", "./conftest.py"]}
    assert first["claimed_not_witnessed"] == ["pytest -q", "impl.py"]
    assert first["witnessed"]["counts"]["exec"] == 3
    assert "/app/gone" in first["witnessed_not_claimed"]
    assert "/app/conftest.py" not in first["witnessed_not_claimed"]
    assert steps[2]["extra"]["caisson"]["witnessed"]["counts"] == {}
    assert "extra" not in steps[3]
    assert value["extra"]["own"] == 1
    assert value["extra"]["caisson"]["steps_without_time"] == 1


@pytest.mark.parametrize(
    "given", [{}, [], {"schema_version": "ATIF-v1.8"}, {"schema_version": "ATIF-v1.8", "steps": [1]}]
)
def test_what_is_no_trajectory_is_one_clear_line(bundle: Bundle, given: object) -> None:
    with pytest.raises(ExportError, match="is not ATIF") as caught:
        trajectory(bundle, given)
    assert "\n" not in str(caught.value)
    with pytest.raises(ExportError, match="goes with the format atif"):
        export(bundle, "csv", io.BytesIO(), trajectory=b"{}")


def test_steps_of_any_shape_are_let_be(bundle: Bundle) -> None:
    steps = [
        {"timestamp": 7},
        {"tool_calls": 1},
        {"tool_calls": [None, {"arguments": {"command": [1, None]}}], "extra": 3},
    ]
    given = {"schema_version": "ATIF-v1.8", "steps": [*steps, GIVEN["steps"][1]]}
    assert len(trajectory(bundle, given)["steps"]) == 4


def test_folder_format_wants_a_folder(bundle: Bundle) -> None:
    with pytest.raises(ExportError, match="--output"):
        export(bundle, "harbor", io.BytesIO())
    assert [name for name, form in FORMATS.items() if form.folder] == ["harbor"]


def test_infra_run_without_anything_still_makes_a_job(tmp_path: Path) -> None:
    with BundleWriter(tmp_path / "b") as writer:
        writer.add_json("run.json", {"id": "../../evil\x1b\ud800", "task": {"id": "\ud800"}, "wall_s": "x"})
        writer.add_json("verdict.json", {"reason": "\x1b[31m\ud800"})
    _out, trial = job(Bundle.open(tmp_path / "b"), tmp_path / "job")
    assert trial.name == "evil-x1b-xed-xa0-x80"
    assert all(line.isprintable() for line in (trial / "exception.txt").read_text().splitlines())
