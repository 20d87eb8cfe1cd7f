"""How the ranks of one xlite runtime find each other.

The binary reads three variables when it makes its workspace, and not later: XLITE_PORT, the first of a few TCP ports on
which its ranks meet; XLITE_DEVS_PER_NODE, 8 if unset; and XLITE_NODE_IPS, the addresses of the nodes, needed with more
ranks than one node has. Its default port is the same for all engines: two on one host would join each other's ranks.
So the ranks of an engine agree on a port that is free, and tell the binary which nodes they are on.
"""

from __future__ import annotations

import random
import socket
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, MutableMapping, Sequence
from contextlib import ExitStack, contextmanager
from typing import NamedTuple

from xlite_adapter.errors import RankMismatchError, UnsupportedOperationError

PORT, PER_NODE, NODES = "XLITE_PORT", "XLITE_DEVS_PER_NODE", "XLITE_NODE_IPS"
VARIABLES = (PORT, PER_NODE, NODES)
# Ports of the groups of ranks lie so far apart, beginning with the first.
_STEPS = (0, 200, 400, 600)


class Peer(NamedTuple):
    """What one rank brings: its node's address, ports that are free there, and the user's own variables."""

    host: str
    port: int
    given: dict[str, str]


@contextmanager
def meeting(
    host: str, gather: Callable[[Peer], Sequence[Peer]], environ: MutableMapping[str, str]
) -> Iterator[dict[str, str]]:
    """Sets the variables while the workspace is made; those that the user has set stay as they are.

    Args:
        host: Address of this node.
        gather: What all ranks of the runtime bring, in rank order.
        environ: Of this process.

    Raises:
        RankMismatchError: The user's variables differ between ranks.
        UnsupportedOperationError: The nodes have different numbers of ranks.
    """
    given = {name: environ[name] for name in VARIABLES if name in environ}
    variables = settle(gather(Peer(host, free_ports(), given)))
    environ.update(variables)
    try:
        yield variables
    finally:
        for name in variables.keys() - given.keys():
            environ.pop(name, None)


def settle(peers: Sequence[Peer]) -> dict[str, str]:
    """Variables for all of these ranks, the same on each; none for one alone."""
    first = peers[0]
    for rank, peer in enumerate(peers):
        if peer.given != first.given:
            raise RankMismatchError(
                f"ranks of one xlite runtime have different variables: rank 0 on {first.host} has "
                f"{_shown(first.given)}, rank {rank} on {peer.host} has {_shown(peer.given)}; set them alike on all "
                "nodes, or leave them out"
            )
    if len(peers) == 1:
        return {}
    counts = Counter(peer.host for peer in peers)
    nodes = list(counts)
    if len(set(counts.values())) > 1 or [peer.host for peer in peers] != sorted(
        (peer.host for peer in peers), key=nodes.index
    ):
        raise UnsupportedOperationError(
            "xlite takes as many ranks from each node, one node after the other; this runtime has "
            f"{', '.join(f'{count} on {host}' for host, count in counts.items())}"
        )
    found = {PORT: str(first.port), PER_NODE: str(counts[first.host])}
    if len(nodes) > 1:
        found[NODES] = ",".join(nodes)
    return {**found, **first.given}


def _shown(given: Mapping[str, str]) -> str:
    return ", ".join(f"{name}={value}" for name, value in given.items()) or "none"


def free_ports() -> int:
    """The first of the ports that a runtime's groups take, all free now."""
    for _ in range(100):
        first = random.randrange(20000, 60000)
        with ExitStack() as held:
            try:
                for step in _STEPS:
                    held.enter_context(socket.socket()).bind(("", first + step))
            except OSError:
                continue
            return first
    raise UnsupportedOperationError("no free TCP ports between 20000 and 60600 for xlite's ranks; set XLITE_PORT")
