"""Variables that the ranks of one runtime agree on."""

from __future__ import annotations

import socket

import pytest

from xlite_adapter.errors import RankMismatchError, UnsupportedOperationError
from xlite_adapter.integrations.ascend.rendezvous import Peer, free_ports, meeting, settle


def peers(*hosts, given=None):
    return [Peer(host, 20000 + rank, dict(given or {})) for rank, host in enumerate(hosts)]


def test_one_node():
    assert settle(peers("a", "a", "a")) == {"XLITE_PORT": "20000", "XLITE_DEVS_PER_NODE": "3"}


def test_two_nodes():
    found = settle(peers("10.0.0.1", "10.0.0.1", "10.0.0.2", "10.0.0.2"))
    nodes = {"XLITE_DEVS_PER_NODE": "2", "XLITE_NODE_IPS": "10.0.0.1,10.0.0.2"}
    assert found == {"XLITE_PORT": "20000", **nodes}


def test_a_rank_alone_meets_nobody():
    assert settle(peers("a")) == {}


def test_what_the_user_sets_stays():
    environ = {"XLITE_PORT": "30000", "OTHER": "1"}
    brought = []

    def gather(own):
        brought.append(own)
        return [own, Peer("a", 1, {"XLITE_PORT": "30000"})]

    with meeting("a", gather, environ):
        assert environ == {"XLITE_PORT": "30000", "OTHER": "1", "XLITE_DEVS_PER_NODE": "2"}
    assert environ == {"XLITE_PORT": "30000", "OTHER": "1"}
    assert brought[0].given == {"XLITE_PORT": "30000"}


def test_variables_that_differ():
    two = [*peers("a", given={"XLITE_PORT": "1"}), *peers("b")]
    with pytest.raises(RankMismatchError, match="rank 0 on a has XLITE_PORT=1, rank 1 on b has none"):
        settle(two)


@pytest.mark.parametrize("hosts", [("a", "a", "b"), ("a", "b", "a", "b")])
def test_ranks_that_the_binary_would_look_for_elsewhere(hosts):
    with pytest.raises(UnsupportedOperationError, match=r"this runtime has 2 on a, [12] on b"):
        settle(peers(*hosts))


def test_ports_are_free():
    first = free_ports()
    for port in (first, first + 200):
        with socket.socket() as free:
            free.bind(("", port))
