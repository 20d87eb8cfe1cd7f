"""The binary's ranks meet where the adapter tells them to."""

from __future__ import annotations

import json

import pytest

from tests.contract.ranks import run_ranks
from xlite_adapter.integrations.ascend.rendezvous import Peer, free_ports, settle


@pytest.mark.parametrize("hosts", [("127.0.0.1", "127.0.0.1"), ("127.0.0.1", "127.0.0.2")], ids=["one node", "two"])
def test_two_ranks(tmp_path, hosts):
    port = free_ports()
    variables = json.dumps(settle([Peer(host, port, {}) for host in hosts]))
    assert run_ranks("tests.contract.meeting_rank", tmp_path, (variables,), (variables,)) == [0, 0]
