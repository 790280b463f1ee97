"""What the formats' own schemas say, as far as the exporters use them: facts, each with the place it was taken from.

The whole schemas are not kept here. The exporters' output was checked against them once with the originals: OCSF
1.9-dev, ECS 9.5-dev, Tetragon's protobuf of August 2026, Harbor 0.26.0's own models.
"""

from __future__ import annotations

from typing import Any, Final

# ocsf/ocsf-schema, events/ and objects/: attributes with requirement "required" (base_event, and those of the class)
OCSF_BASE: Final = {
    "activity_id": int, "category_uid": int, "class_uid": int, "metadata": dict, "severity_id": int, "time": int,
    "type_uid": int,
}  # fmt: skip
OCSF_CLASSES: Final[dict[int, dict[str, Any]]] = {
    1001: {"category": 1, "required": {"actor", "device", "file"}, "activities": {*range(15), 99}},
    1003: {"category": 1, "required": {"actor", "device", "kernel"}, "activities": {*range(5), 99}},
    1007: {"category": 1, "required": {"actor", "device", "process"}, "activities": {*range(6), 99}},
    2004: {"category": 2, "required": {"finding_info"}, "activities": {0, 1, 2, 3, 99}},
    4001: {"category": 4, "required": set(), "activities": {*range(8), 99}},
}
OCSF_OBJECTS: Final = {
    "metadata": {"product", "version"}, "device": {"type_id", "os"}, "file": {"name", "type_id"},
    "file_result": {"name", "type_id"}, "kernel": {"name", "type_id"}, "connection_info": {"direction_id"},
    "finding_info": {"uid", "title"}, "os": {"name", "type_id"},
}  # fmt: skip
OCSF_ONE_OF: Final = {
    "actor": {"process", "user"}, "process": {"pid", "uid"}, "parent_process": {"pid", "uid"}, "user": {"uid", "name"},
    "device": {"hostname", "ip", "uid", "name"}, "dst_endpoint": {"ip", "uid", "name"},
    "src_endpoint": {"ip", "uid", "name"},
}  # fmt: skip

# elastic/ecs, schemas/*.yml (generated/ecs/ecs_flat.yml): every field that is written, with its type
ECS: Final = {
    "@timestamp": "date", "destination.address": "keyword", "destination.ip": "ip", "destination.port": "long",
    "ecs.version": "keyword", "error.code": "keyword", "event.action": "keyword", "event.category": "keyword[]",
    "event.dataset": "keyword", "event.id": "keyword", "event.kind": "keyword", "event.module": "keyword",
    "event.outcome": "keyword", "event.provider": "keyword", "event.sequence": "long", "event.type": "keyword[]",
    "file.directory": "keyword", "file.inode": "keyword", "file.name": "keyword", "file.path": "keyword",
    "file.target_path": "keyword", "group.id": "keyword", "host.name": "keyword", "host.os.type": "keyword",
    "network.direction": "keyword", "network.iana_number": "keyword", "network.transport": "keyword",
    "network.type": "keyword", "process.args": "keyword[]", "process.args_count": "long",
    "process.command_line": "wildcard", "process.end": "date", "process.entity_id": "keyword",
    "process.executable": "keyword", "process.exit_code": "long", "process.name": "keyword",
    "process.parent.entity_id": "keyword", "process.parent.pid": "long", "process.pid": "long", "process.start": "date",
    "process.thread.id": "long", "process.working_directory": "keyword", "source.address": "keyword",
    "source.ip": "ip", "source.port": "long", "user.id": "keyword",
}  # fmt: skip
ECS_TYPES_OF: Final = {  # expected_event_types of event.category
    "process": {"access", "change", "end", "info", "start"},
    "file": {"access", "change", "creation", "deletion", "info"},
    "network": {"access", "allowed", "connection", "denied", "end", "info", "protocol", "start"},
}
ECS_OUTCOMES: Final = {"failure", "success", "unknown"}

# cilium/tetragon, api/v1/tetragon/{events,tetragon}.proto: messages as the protobuf JSON form has them
TETRAGON: Final[dict[str, dict[str, Any]]] = {
    "GetEventsResponse": {
        "process_exec": "ProcessExec", "process_exit": "ProcessExit", "process_tracepoint": "ProcessTracepoint",
        "node_name": str, "time": "timestamp",
    },
    "ProcessExec": {"process": "Process", "parent": "Process"},
    "ProcessExit": {"process": "Process", "parent": "Process", "signal": str, "status": int},
    "ProcessTracepoint": {
        "process": "Process", "parent": "Process", "subsys": str, "event": str, "args": ["KprobeArgument"],
    },
    "Process": {
        "exec_id": str, "pid": int, "uid": int, "cwd": str, "binary": str, "arguments": str, "flags": str,
        "start_time": "timestamp", "auid": int, "parent_exec_id": str,
    },
    "KprobeArgument": {"string_arg": str, "int_arg": int, "sock_arg": "KprobeSock"},
    "KprobeSock": {
        "family": str, "type": str, "protocol": str, "saddr": str, "daddr": str, "sport": int, "dport": int,
    },
}  # fmt: skip

# harbor 0.26.0, harbor/models/trajectories: no other key is allowed at any level but below `extra`
ATIF: Final[dict[str, dict[str, Any]]] = {
    "trajectory": {
        "schema_version": str, "session_id": str, "trajectory_id": str, "agent": "agent", "steps": ["step"],
        "notes": str, "final_metrics": "final", "extra": dict,
    },
    "agent": {"name": str, "version": str, "model_name": str, "tool_definitions": list, "extra": dict},
    "step": {
        "step_id": int, "timestamp": "timestamp", "source": str, "message": str, "model_name": str,
        "tool_calls": ["call"], "observation": "observation", "metrics": dict, "llm_call_count": int, "extra": dict,
    },
    "call": {"tool_call_id": str, "function_name": str, "arguments": dict, "extra": dict},
    "observation": {"results": ["result"]},
    "result": {"source_call_id": str, "content": str, "extra": dict},
    "final": {"total_steps": int, "extra": dict},
}  # fmt: skip

# harbor 0.26.0, harbor/models/{job,trial}: fields without a default
HARBOR: Final = {
    "trial": {"task_name", "trial_name", "trial_uri", "task_id", "task_checksum", "config", "agent_info"},
    "trial_lock": {"task", "agent", "environment", "verifier"},
    "job": {"id", "started_at", "n_total_trials", "stats"},
    "job_lock": {"n_concurrent_trials", "retry"},
    "artifact": {"source", "destination", "type", "status"},
}


def holds(value: object, kind: Any, messages: dict[str, dict[str, Any]], where: str) -> None:
    """Checks a value by one of the tables of messages above: no key but its own, each of its type."""
    if isinstance(kind, list):
        assert isinstance(value, list), where
        for at, one in enumerate(value):
            holds(one, kind[0], messages, f"{where}[{at}]")
    elif kind == "timestamp":
        from datetime import datetime

        assert isinstance(value, str) and value.endswith("Z"), where
        datetime.fromisoformat(value[:26])
    elif isinstance(kind, str):
        assert isinstance(value, dict), where
        for key, one in value.items():
            assert key in messages[kind], f"{where}.{key} is no field of {kind}"
            holds(one, messages[kind][key], messages, f"{where}.{key}")
    else:
        assert type(value) is kind, f"{where} is {value!r}, no {kind.__name__}"
