import json
import stat
from pathlib import Path

ANSWER = Path("/app/answer.json")


def test_total():
    assert stat.S_ISREG(ANSWER.lstat().st_mode)
    value = json.loads(ANSWER.read_text())
    assert list(value) == ["total"]
    assert type(value["total"]) is int
    assert value["total"] == 1204 + 377 + 86 + 5133
