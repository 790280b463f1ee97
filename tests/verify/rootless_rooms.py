"""Run by test_rootless.py as a plain user: a few behaviours through the whole verification, words as JSON on stdout."""

import asyncio
import json
import sys
from pathlib import Path

from caisson_runner.tasks import load_task
from verify_rig import bench, run


async def main() -> None:
    async with bench(load_task("add-mul"), Path(sys.argv[1])) as made:
        words = {"engine": made.engine.name}
        for agent in sys.argv[2:]:
            words[agent] = (await run(made, agent)).words
    print(json.dumps(words))


asyncio.run(main())
