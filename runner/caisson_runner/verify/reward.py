"""Harbor's reward files, read strictly: they were written in a room where agent code ran."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping

MAX_REWARD_FILE = 1 << 16  # bytes

REWARD_JSON = "/logs/verifier/reward.json"
REWARD_TXT = "/logs/verifier/reward.txt"


class RewardInvalid(ValueError):
    """There is no reward, or it is none. The message says which file and why."""


def _finite(name: str, value: object) -> float:
    # Harbor 0.26.0 takes JSON true as 1.0; a flag is not a number here (docs/verdicts.md).
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise RewardInvalid(f"reward.json: {name!r} is no number")
    try:
        number = float(value)
    except OverflowError:
        raise RewardInvalid(f"reward.json: {name!r} is not finite") from None
    if not math.isfinite(number):
        raise RewardInvalid(f"reward.json: {name!r} is not finite")
    return number


def parse_reward_json(data: bytes) -> dict[str, float]:
    """A flat object of names to finite numbers. Raises RewardInvalid."""
    if len(data) > MAX_REWARD_FILE:
        raise RewardInvalid(f"reward.json: longer than {MAX_REWARD_FILE} bytes")
    if not data.strip():
        raise RewardInvalid("reward.json: is empty")

    def unique(pairs: list[tuple[str, object]]) -> dict[str, object]:
        if len(dict(pairs)) != len(pairs):
            raise RewardInvalid("reward.json: a key appears twice")
        return dict(pairs)

    try:
        value = json.loads(data.decode("utf-8"), object_pairs_hook=unique)
    except RewardInvalid:
        raise
    except (ValueError, RecursionError):
        raise RewardInvalid("reward.json: is no JSON") from None
    if not isinstance(value, dict):
        raise RewardInvalid("reward.json: must be an object of names to numbers")
    if not value:
        raise RewardInvalid("reward.json: names no reward")
    return {name: _finite(name, number) for name, number in value.items()}


def parse_reward_txt(data: bytes) -> dict[str, float]:
    """One finite float, under the name `reward`. Raises RewardInvalid."""
    if len(data) > MAX_REWARD_FILE:
        raise RewardInvalid(f"reward.txt: longer than {MAX_REWARD_FILE} bytes")
    text = data.decode("ascii", "replace").strip()
    if not text:
        raise RewardInvalid("reward.txt: is empty")
    try:
        number = float(text)
    except ValueError:
        raise RewardInvalid("reward.txt: is no number") from None
    if "_" in text or not math.isfinite(number):
        raise RewardInvalid("reward.txt: is no finite number")
    return {"reward": number}


def read_rewards(json_file: bytes | None, txt_file: bytes | None) -> dict[str, float]:
    """What the two files say; `reward.json` wins, as in Harbor. Raises RewardInvalid."""
    if json_file is not None:
        return parse_reward_json(json_file)
    if txt_file is not None:
        return parse_reward_txt(txt_file)
    raise RewardInvalid("no reward.json and no reward.txt was written")


def solved(rewards: Mapping[str, float]) -> bool:
    """Whether a task counts as passed: its key `reward`, or every key when it has none of that name, is 1.0."""
    if "reward" in rewards:
        return rewards["reward"] == 1.0
    return bool(rewards) and all(value == 1.0 for value in rewards.values())
