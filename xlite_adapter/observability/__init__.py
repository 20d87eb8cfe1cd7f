"""What an operator can see: counters and the batch trace."""

from xlite_adapter.observability.counters import BatchCounters
from xlite_adapter.observability.trace import BatchTrace

__all__ = ["BatchCounters", "BatchTrace"]
