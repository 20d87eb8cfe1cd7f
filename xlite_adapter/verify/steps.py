"""What the scheduler hands to the model, counted outside the plugin.

Stock vLLM has no counters by path, and the plugin should not be the only witness of what it did: a batch that it never
saw would be missing from its own counts.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Step:
    """One engine step: scheduled tokens, requests, and how many of the requests are new."""

    tokens: int = 0
    requests: int = 0
    new_requests: int = 0

    def is_decode_of(self, requests: int) -> bool:
        """Whether ``requests`` requests decode one token each and nothing else is scheduled."""
        return self.tokens == self.requests == requests and self.new_requests == 0


class StepRecorder:
    """Wraps ``schedule`` of one vLLM scheduler."""

    def __init__(self, scheduler: Any) -> None:
        self.last = Step()
        self._batches = 0
        self._tokens = 0
        self._schedule = scheduler.schedule
        scheduler.schedule = self._record

    def totals(self) -> dict[str, int]:
        """Steps that ran the model, and tokens in them, since the beginning."""
        return {"batches": self._batches, "tokens": self._tokens}

    def _record(self, *args: Any, **kwargs: Any) -> Any:
        output = self._schedule(*args, **kwargs)
        self.last = Step(
            tokens=output.total_num_scheduled_tokens,
            requests=len(output.num_scheduled_tokens),
            new_requests=len(output.scheduled_new_reqs),
        )
        # vLLM also schedules empty steps, to deliver the end of requests; the model does not run in them.
        self._batches += self.last.tokens > 0
        self._tokens += self.last.tokens
        return output
