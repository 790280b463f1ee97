"""A Harbor job of one trial, as `harbor view` and others read it, with the bundle among the trial's artifacts.

Source: harbor 0.26.0 (Apache-2.0), ``harbor/models/{job,trial}``.
"""

from __future__ import annotations

import hashlib
import shutil
import uuid
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Final

from caisson_runner.bundle.canonical import dumps
from caisson_runner.bundle.reader import Bundle
from caisson_runner.export import atif
from caisson_runner.export.errors import ExportError
from caisson_runner.export.scene import Scene
from caisson_runner.export.text import shown

BUNDLE: Final = "caisson-bundle"
_NAMES: Final = uuid.UUID("5f2f7a52-3f53-5d0a-9d6a-0f6f0c6f5ca1")
REWARDS: Final = {"pass": 1.0, "fail": 0.0, "void": 0.0}
"""By the verdict's word. `infra` has none: such a trial is left out of the statistics, as Harbor does with its own."""


def write(bundle: Bundle, scene: Scene, out: Path) -> Path:
    """Writes ``out`` as a job's folder; it must not exist yet."""
    try:
        out.mkdir(parents=True)
    except FileExistsError:
        raise ExportError(f"{out} exists already: name a new folder") from None
    trial = out / _slug(scene.name)
    result = trial_result(bundle, scene, trial.name)
    lock = trial_lock(scene)
    _put(out / "config.json", job_config(scene, out.name))
    _put(out / "result.json", job_result(scene, result))
    _put(out / "lock.json", job_lock(scene, lock))
    (out / "job.log").write_bytes(b"")
    _put(trial / "config.json", result["config"])
    _put(trial / "result.json", result)
    _put(trial / "lock.json", lock)
    (trial / "trial.log").write_bytes(b"")
    if result["exception_info"] is not None:
        _bytes(trial / "exception.txt", _line(result["exception_info"]["exception_message"]))
    for name in ("agent.stdout", "agent.stderr"):
        if bundle.has(f"logs/{name}"):
            _bytes(trial / "agent" / name, bundle.read(f"logs/{name}"))
    _bytes(trial / "agent/trajectory.json", atif.document(scene, bundle.records()))
    _bytes(trial / "verifier/test-stdout.txt", _line(str(scene.verdict.get("reason") or "")))
    if result["verifier_result"] is not None:
        _put(trial / "verifier/reward.json", result["verifier_result"]["rewards"])
    shutil.copytree(bundle.root, trial / "artifacts" / BUNDLE)
    _put(trial / "artifacts/manifest.json", [artifact()])
    return out


def artifact() -> dict[str, Any]:
    """The bundle, as an entry of a trial's artifacts."""
    return {
        "source": "/caisson/bundle", "destination": BUNDLE, "type": "directory", "status": "ok", "service": None,
        "exclude": [],
    }  # fmt: skip


def trial_result(bundle: Bundle, scene: Scene, trial_name: str) -> dict[str, Any]:
    """A trial's ``result.json``."""
    begun, ended = _times(scene)
    word = str(scene.verdict.get("word") or "infra")
    reward = REWARDS.get(word)
    phases = scene.run.get("phases_s")
    phases = phases if isinstance(phases, dict) else {}
    end = scene.run.get("agent_end")
    wall = end.get("wall_s") if isinstance(end, dict) else None
    forked = begun + timedelta(seconds=_seconds(phases.get("fork")))
    worked = forked + timedelta(seconds=_seconds(wall))
    return {
        "schema_version": 1,
        "id": str(_id(scene, "trial")),
        "task_name": scene.task or "unknown",
        "trial_name": trial_name,
        "trial_uri": f"caisson-bundle:{bundle.files['run.json'].sha256 if bundle.has('run.json') else scene.name}",
        "task_id": {"path": scene.task or "unknown"},
        "source": None,
        "task_checksum": _digest(scene),
        "config": {
            "schema_version": 1,
            "task": {"path": scene.task or "unknown"},
            "trial_name": trial_name,
            "trials_dir": ".",
            "agent": {"name": scene.agent or "unknown"},
            "job_id": str(_id(scene, "job")),
        },
        "agent_info": {"name": scene.agent or "unknown", "version": "unknown", "model_info": None},
        "agent_result": {"metadata": {"caisson": {"agent_end": end, "findings": list(scene.findings)}}},
        "verifier_result": {"rewards": {"reward": reward}} if reward is not None else None,
        "verifier_environment_mode": "separate",
        "exception_info": None
        if reward is not None
        else {
            "exception_type": "CaissonInfraError",
            "exception_message": str(scene.verdict.get("reason") or "there is no verdict"),
            "exception_traceback": "",
            "occurred_at": _stamp(ended),
        },
        "started_at": _stamp(begun),
        "finished_at": _stamp(ended),
        "environment_setup": {"started_at": _stamp(begun), "finished_at": _stamp(forked)},
        "agent_setup": None,
        "agent_execution": {"started_at": _stamp(forked), "finished_at": _stamp(min(worked, ended))},
        "verifier": {"started_at": _stamp(min(worked, ended)), "finished_at": _stamp(ended)},
        "step_results": None,
        "reward_valid": reward is not None,
    }


def trial_lock(scene: Scene) -> dict[str, Any]:
    """A trial's ``lock.json``."""
    return {
        "schema_version": 2,
        "task": {"name": scene.task or "unknown", "type": "local", "digest": f"sha256:{_digest(scene)}"},
        "agent": {"name": scene.agent or "unknown"},
        "environment": {},
        "verifier": {"environment_mode": "separate"},
    }


def job_config(scene: Scene, name: str) -> dict[str, Any]:
    """A job's ``config.json``."""
    return {
        "schema_version": 1,
        "job_name": name,
        "jobs_dir": ".",
        "n_attempts": 1,
        "n_concurrent_trials": 1,
        "agents": [{"name": scene.agent or "unknown"}],
        "tasks": [{"path": scene.task or "unknown"}],
    }


def job_lock(scene: Scene, trial: Mapping[str, Any]) -> dict[str, Any]:
    """A job's ``lock.json``."""
    begun, _ended = _times(scene)
    return {
        "schema_version": 3,
        "created_at": _stamp(begun),
        "harbor": {"version": None, "git_commit_hash": None, "is_editable": None},
        "n_concurrent_trials": 1,
        "retry": {},
        "trials": [trial],
    }


def job_result(scene: Scene, trial: Mapping[str, Any]) -> dict[str, Any]:
    """A job's ``result.json``, of its one trial."""
    begun, ended = _times(scene)
    name, valid = trial["trial_name"], trial["reward_valid"]
    failure = trial["exception_info"]
    evaluation: dict[str, Any] = {
        "n_trials": int(valid),
        "n_errors": int(failure is not None),
        "metrics": [],
        "pass_at_k": {},
        "reward_stats": {"reward": {str(trial["verifier_result"]["rewards"]["reward"]): [name]}} if valid else {},
        "exception_stats": {} if failure is None else {failure["exception_type"]: [name]},
    }
    return {
        "schema_version": 1,
        "id": str(_id(scene, "job")),
        "started_at": _stamp(begun),
        "updated_at": _stamp(ended),
        "finished_at": _stamp(ended),
        "n_total_trials": 1,
        "stats": {
            "n_completed_trials": 1,
            "n_errored_trials": int(failure is not None),
            "n_running_trials": 0,
            "n_pending_trials": 0,
            "n_cancelled_trials": 0,
            "n_retries": 0,
            "evals": {f"{scene.agent or 'unknown'}__adhoc": evaluation},
            "n_input_tokens": None,
            "n_cache_tokens": None,
            "n_output_tokens": None,
            "cost_usd": None,
        },
    }


def _times(scene: Scene) -> tuple[datetime, datetime]:
    try:
        begun = datetime.fromisoformat(str(scene.run["started"])).astimezone(UTC)
    except (KeyError, ValueError):
        begun = datetime.fromtimestamp(scene.anchor_ns // 1_000_000_000, UTC)
    return begun, begun + timedelta(seconds=_seconds(scene.run.get("wall_s")))


def _seconds(value: object) -> float:
    return float(value) if isinstance(value, int | float) and 0 <= value < 1e9 else 0.0


def _stamp(moment: datetime) -> str:
    return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")


def _digest(scene: Scene) -> str:
    task = scene.run.get("task")
    digest = str(task.get("digest") or "") if isinstance(task, dict) else ""
    plain = digest.removeprefix("sha256:")
    if len(plain) == 64 and not set(plain) - set("0123456789abcdef"):
        return plain
    return hashlib.sha256(digest.encode()).hexdigest()


def _id(scene: Scene, what: str) -> uuid.UUID:
    return uuid.uuid5(_NAMES, f"{what}:{scene.name}:{scene.run.get('started')}")


def _slug(name: str) -> str:
    slug = "".join(char if (char.isalnum() and char.isascii()) or char in "-_." else "-" for char in name)
    return slug[:100].strip("-.") or "trial"


def _line(text: str) -> bytes:
    return shown(text.encode("utf-8", "surrogatepass")).encode("utf-8") + b"\n"


def _put(path: Path, value: object) -> None:
    _bytes(path, dumps(value))


def _bytes(path: Path, data: bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)
