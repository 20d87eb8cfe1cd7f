"""Guards around the classes of the compiled runtime: what its host code lets pass and its kernels do not survive.

At ``Model.init`` all of it is checked once, with the rules of the reference runtime (``init``); a batch is checked for
what its tensors and host lists say without a copy from the device (``batch``). Nothing here imports the runtime:
``guarded`` makes subclasses of whatever classes it is given.
"""

from xlite_adapter.runtime.guards.model import guarded_model
from xlite_adapter.runtime.guards.runtime import guarded_runtime

__all__ = ["guarded_model", "guarded_runtime"]
