"""Run by Python at its start where this folder is on PYTHONPATH: loads a device's libraries.

In every process of a test, since vLLM starts some of its own, and before torch_npu asks for these libraries.
"""

import os
import sys
from pathlib import Path

sys.path.append(str(Path(__file__).parents[4]))
# Otherwise `import torch` imports torch_npu, also in processes that need neither.
os.environ.setdefault("TORCH_DEVICE_BACKEND_AUTOLOAD", "0")

from tests.contract.stub.loader import load_stub

load_stub()
