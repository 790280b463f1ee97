from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class GetInfoRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class GetInfoResponse(_message.Message):
    __slots__ = ("version", "api", "tier", "hooks", "manifest_json", "boot_wall_ns")
    VERSION_FIELD_NUMBER: _ClassVar[int]
    API_FIELD_NUMBER: _ClassVar[int]
    TIER_FIELD_NUMBER: _ClassVar[int]
    HOOKS_FIELD_NUMBER: _ClassVar[int]
    MANIFEST_JSON_FIELD_NUMBER: _ClassVar[int]
    BOOT_WALL_NS_FIELD_NUMBER: _ClassVar[int]
    version: str
    api: int
    tier: str
    hooks: _containers.RepeatedScalarFieldContainer[str]
    manifest_json: str
    boot_wall_ns: int
    def __init__(self, version: _Optional[str] = ..., api: _Optional[int] = ..., tier: _Optional[str] = ..., hooks: _Optional[_Iterable[str]] = ..., manifest_json: _Optional[str] = ..., boot_wall_ns: _Optional[int] = ...) -> None: ...

class Limits(_message.Message):
    __slots__ = ("memory_bytes", "pids", "cpu_millis")
    MEMORY_BYTES_FIELD_NUMBER: _ClassVar[int]
    PIDS_FIELD_NUMBER: _ClassVar[int]
    CPU_MILLIS_FIELD_NUMBER: _ClassVar[int]
    memory_bytes: int
    pids: int
    cpu_millis: int
    def __init__(self, memory_bytes: _Optional[int] = ..., pids: _Optional[int] = ..., cpu_millis: _Optional[int] = ...) -> None: ...

class CreateBoxRequest(_message.Message):
    __slots__ = ("id", "limits", "ring_bytes", "lossless", "owner", "looks")
    ID_FIELD_NUMBER: _ClassVar[int]
    LIMITS_FIELD_NUMBER: _ClassVar[int]
    RING_BYTES_FIELD_NUMBER: _ClassVar[int]
    LOSSLESS_FIELD_NUMBER: _ClassVar[int]
    OWNER_FIELD_NUMBER: _ClassVar[int]
    LOOKS_FIELD_NUMBER: _ClassVar[int]
    id: str
    limits: Limits
    ring_bytes: int
    lossless: bool
    owner: Owner
    looks: bool
    def __init__(self, id: _Optional[str] = ..., limits: _Optional[_Union[Limits, _Mapping]] = ..., ring_bytes: _Optional[int] = ..., lossless: _Optional[bool] = ..., owner: _Optional[_Union[Owner, _Mapping]] = ..., looks: _Optional[bool] = ...) -> None: ...

class Owner(_message.Message):
    __slots__ = ("pid", "start_ticks", "pid_namespace")
    PID_FIELD_NUMBER: _ClassVar[int]
    START_TICKS_FIELD_NUMBER: _ClassVar[int]
    PID_NAMESPACE_FIELD_NUMBER: _ClassVar[int]
    pid: int
    start_ticks: int
    pid_namespace: int
    def __init__(self, pid: _Optional[int] = ..., start_ticks: _Optional[int] = ..., pid_namespace: _Optional[int] = ...) -> None: ...

class CreateBoxResponse(_message.Message):
    __slots__ = ("box", "limits_missing")
    BOX_FIELD_NUMBER: _ClassVar[int]
    LIMITS_MISSING_FIELD_NUMBER: _ClassVar[int]
    box: Box
    limits_missing: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, box: _Optional[_Union[Box, _Mapping]] = ..., limits_missing: _Optional[_Iterable[str]] = ...) -> None: ...

class Box(_message.Message):
    __slots__ = ("id", "cgroup_path", "cgroup_id", "state", "journal_bytes", "lossless", "marks")
    class State(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
        __slots__ = ()
        STATE_UNSPECIFIED: _ClassVar[Box.State]
        STATE_OPEN: _ClassVar[Box.State]
        STATE_SEALED: _ClassVar[Box.State]
    STATE_UNSPECIFIED: Box.State
    STATE_OPEN: Box.State
    STATE_SEALED: Box.State
    ID_FIELD_NUMBER: _ClassVar[int]
    CGROUP_PATH_FIELD_NUMBER: _ClassVar[int]
    CGROUP_ID_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    JOURNAL_BYTES_FIELD_NUMBER: _ClassVar[int]
    LOSSLESS_FIELD_NUMBER: _ClassVar[int]
    MARKS_FIELD_NUMBER: _ClassVar[int]
    id: str
    cgroup_path: str
    cgroup_id: int
    state: Box.State
    journal_bytes: int
    lossless: bool
    marks: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, id: _Optional[str] = ..., cgroup_path: _Optional[str] = ..., cgroup_id: _Optional[int] = ..., state: _Optional[_Union[Box.State, str]] = ..., journal_bytes: _Optional[int] = ..., lossless: _Optional[bool] = ..., marks: _Optional[_Iterable[str]] = ...) -> None: ...

class AdmitRequest(_message.Message):
    __slots__ = ("id", "pid", "start_ticks")
    ID_FIELD_NUMBER: _ClassVar[int]
    PID_FIELD_NUMBER: _ClassVar[int]
    START_TICKS_FIELD_NUMBER: _ClassVar[int]
    id: str
    pid: int
    start_ticks: int
    def __init__(self, id: _Optional[str] = ..., pid: _Optional[int] = ..., start_ticks: _Optional[int] = ...) -> None: ...

class AdmitResponse(_message.Message):
    __slots__ = ("start_boottime_ns",)
    START_BOOTTIME_NS_FIELD_NUMBER: _ClassVar[int]
    start_boottime_ns: int
    def __init__(self, start_boottime_ns: _Optional[int] = ...) -> None: ...

class ReadJournalRequest(_message.Message):
    __slots__ = ("id", "offset", "follow")
    ID_FIELD_NUMBER: _ClassVar[int]
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    FOLLOW_FIELD_NUMBER: _ClassVar[int]
    id: str
    offset: int
    follow: bool
    def __init__(self, id: _Optional[str] = ..., offset: _Optional[int] = ..., follow: _Optional[bool] = ...) -> None: ...

class ReadJournalResponse(_message.Message):
    __slots__ = ("offset", "data")
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    DATA_FIELD_NUMBER: _ClassVar[int]
    offset: int
    data: bytes
    def __init__(self, offset: _Optional[int] = ..., data: _Optional[bytes] = ...) -> None: ...

class SealBoxRequest(_message.Message):
    __slots__ = ("id",)
    ID_FIELD_NUMBER: _ClassVar[int]
    id: str
    def __init__(self, id: _Optional[str] = ...) -> None: ...

class SealBoxResponse(_message.Message):
    __slots__ = ("journal_bytes", "counts", "marks", "freezes")
    JOURNAL_BYTES_FIELD_NUMBER: _ClassVar[int]
    COUNTS_FIELD_NUMBER: _ClassVar[int]
    MARKS_FIELD_NUMBER: _ClassVar[int]
    FREEZES_FIELD_NUMBER: _ClassVar[int]
    journal_bytes: int
    counts: _containers.RepeatedCompositeFieldContainer[ClassCount]
    marks: _containers.RepeatedScalarFieldContainer[str]
    freezes: Freezes
    def __init__(self, journal_bytes: _Optional[int] = ..., counts: _Optional[_Iterable[_Union[ClassCount, _Mapping]]] = ..., marks: _Optional[_Iterable[str]] = ..., freezes: _Optional[_Union[Freezes, _Mapping]] = ...) -> None: ...

class Freezes(_message.Message):
    __slots__ = ("count", "total_ns", "longest_ns", "peak_bytes", "ring_bytes", "gaps")
    class Gap(_message.Message):
        __slots__ = ("begin_ns", "end_ns")
        BEGIN_NS_FIELD_NUMBER: _ClassVar[int]
        END_NS_FIELD_NUMBER: _ClassVar[int]
        begin_ns: int
        end_ns: int
        def __init__(self, begin_ns: _Optional[int] = ..., end_ns: _Optional[int] = ...) -> None: ...
    COUNT_FIELD_NUMBER: _ClassVar[int]
    TOTAL_NS_FIELD_NUMBER: _ClassVar[int]
    LONGEST_NS_FIELD_NUMBER: _ClassVar[int]
    PEAK_BYTES_FIELD_NUMBER: _ClassVar[int]
    RING_BYTES_FIELD_NUMBER: _ClassVar[int]
    GAPS_FIELD_NUMBER: _ClassVar[int]
    count: int
    total_ns: int
    longest_ns: int
    peak_bytes: int
    ring_bytes: int
    gaps: _containers.RepeatedCompositeFieldContainer[Freezes.Gap]
    def __init__(self, count: _Optional[int] = ..., total_ns: _Optional[int] = ..., longest_ns: _Optional[int] = ..., peak_bytes: _Optional[int] = ..., ring_bytes: _Optional[int] = ..., gaps: _Optional[_Iterable[_Union[Freezes.Gap, _Mapping]]] = ...) -> None: ...

class ClassCount(_message.Message):
    __slots__ = ("kind", "seen", "delivered", "dropped_ring", "dropped_map", "unreadable", "partial")
    KIND_FIELD_NUMBER: _ClassVar[int]
    SEEN_FIELD_NUMBER: _ClassVar[int]
    DELIVERED_FIELD_NUMBER: _ClassVar[int]
    DROPPED_RING_FIELD_NUMBER: _ClassVar[int]
    DROPPED_MAP_FIELD_NUMBER: _ClassVar[int]
    UNREADABLE_FIELD_NUMBER: _ClassVar[int]
    PARTIAL_FIELD_NUMBER: _ClassVar[int]
    kind: str
    seen: int
    delivered: int
    dropped_ring: int
    dropped_map: int
    unreadable: int
    partial: int
    def __init__(self, kind: _Optional[str] = ..., seen: _Optional[int] = ..., delivered: _Optional[int] = ..., dropped_ring: _Optional[int] = ..., dropped_map: _Optional[int] = ..., unreadable: _Optional[int] = ..., partial: _Optional[int] = ...) -> None: ...

class DropBoxRequest(_message.Message):
    __slots__ = ("id",)
    ID_FIELD_NUMBER: _ClassVar[int]
    id: str
    def __init__(self, id: _Optional[str] = ...) -> None: ...

class DropBoxResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class ListBoxesRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class ListBoxesResponse(_message.Message):
    __slots__ = ("boxes",)
    BOXES_FIELD_NUMBER: _ClassVar[int]
    boxes: _containers.RepeatedCompositeFieldContainer[Box]
    def __init__(self, boxes: _Optional[_Iterable[_Union[Box, _Mapping]]] = ...) -> None: ...

class AttachRequest(_message.Message):
    __slots__ = ("id", "container", "cgroup_path", "ring_bytes", "docker_host", "owner")
    ID_FIELD_NUMBER: _ClassVar[int]
    CONTAINER_FIELD_NUMBER: _ClassVar[int]
    CGROUP_PATH_FIELD_NUMBER: _ClassVar[int]
    RING_BYTES_FIELD_NUMBER: _ClassVar[int]
    DOCKER_HOST_FIELD_NUMBER: _ClassVar[int]
    OWNER_FIELD_NUMBER: _ClassVar[int]
    id: str
    container: str
    cgroup_path: str
    ring_bytes: int
    docker_host: str
    owner: Owner
    def __init__(self, id: _Optional[str] = ..., container: _Optional[str] = ..., cgroup_path: _Optional[str] = ..., ring_bytes: _Optional[int] = ..., docker_host: _Optional[str] = ..., owner: _Optional[_Union[Owner, _Mapping]] = ...) -> None: ...

class AttachResponse(_message.Message):
    __slots__ = ("box", "container_id", "container_name", "since_boottime_ns", "since_wall_ns", "census_json")
    BOX_FIELD_NUMBER: _ClassVar[int]
    CONTAINER_ID_FIELD_NUMBER: _ClassVar[int]
    CONTAINER_NAME_FIELD_NUMBER: _ClassVar[int]
    SINCE_BOOTTIME_NS_FIELD_NUMBER: _ClassVar[int]
    SINCE_WALL_NS_FIELD_NUMBER: _ClassVar[int]
    CENSUS_JSON_FIELD_NUMBER: _ClassVar[int]
    box: Box
    container_id: str
    container_name: str
    since_boottime_ns: int
    since_wall_ns: int
    census_json: str
    def __init__(self, box: _Optional[_Union[Box, _Mapping]] = ..., container_id: _Optional[str] = ..., container_name: _Optional[str] = ..., since_boottime_ns: _Optional[int] = ..., since_wall_ns: _Optional[int] = ..., census_json: _Optional[str] = ...) -> None: ...
