"""``offline`` with a variable that only rank 1 has: worker processes import this file again before they start."""

from __future__ import annotations

import multiprocessing
import os

from tests.e2e.offline import main

if multiprocessing.current_process().name.endswith("-1"):
    os.environ["XLITE_ADAPTER_ON_UNSUPPORTED"] = "native"

if __name__ == "__main__":
    main()
