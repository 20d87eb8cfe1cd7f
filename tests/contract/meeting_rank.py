"""One rank of a runtime: ``python -m tests.contract.meeting_rank RANK VARIABLES FILE``; makes its workspace."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

from tests.contract.running import running


def main(rank: int, variables: dict[str, str], file: Path) -> None:
    runtime = running().module.Runtime(0, 0, rank, 2, 1, 2, 1)
    # As the adapter does: between the two.
    os.environ.update(variables)
    file.write_text(json.dumps(runtime.init_tensor_pool(1)))
    # The runtime's threads wait for the other rank.
    os._exit(0)


if __name__ == "__main__":
    main(int(sys.argv[1]), json.loads(sys.argv[2]), Path(sys.argv[3]))
