"""Hints for options of Kafka's source, which its users type by habit."""

from __future__ import annotations

from typing import Final

_HINTS: Final = {
    "kafka.bootstrap.servers": "name servers of the cluster with 'service.url', as txn://host:port",
    "subscribe": "name topics with 'topic', or several with 'topics', as topic://tenant/namespace/name",
    "subscribepattern": "use 'topicsPattern'; it matches the whole of a name, as topic://public/shop/.*",
    "assign": "name topics with 'topic' or 'topics'; segments come and go, so all of a topic are read",
    "maxoffsetspertrigger": "use 'maxRowsPerTrigger', or 'maxEntriesPerTrigger' or 'maxBytesPerTrigger'",
    "minoffsetspertrigger": "use 'minEntriesPerTrigger'; an entry is a producer's batch",
    "maxtriggerdelay": "use 'maxTriggerDelayMs', in milliseconds, with 'minEntriesPerTrigger'",
    "includeheaders": "headers are the column 'properties', which is always there: leave it out",
    "startingoffsetsbytimestampstrategy": "a time to come begins at the latest: leave it out",
    "kafka.isolation.level": "use 'isolationLevel'; read_committed is the default",
    "kafka.group.id": "a query reads by its checkpoint, not in a group: leave it out",
    "groupidprefix": "a query reads by its checkpoint, not in a group: leave it out",
    "kafka.request.timeout.ms": "use 'service.timeoutMs'",
    "kafka.transaction.timeout.ms": "use 'transactionTimeoutMs'",
    "kafka.transactional.id": "the sink names its transactions itself: 'sinkName' is part of that",
    "fetchoffset.numretries": "use 'service.timeoutMs': requests are repeated until then",
    "kafkaconsumer.polltimeoutms": "use 'service.timeoutMs'",
    "maxrecordsperpartition": "use 'minPartitions'",
}


def hint_of(name: str) -> str | None:
    """Names the option to use instead of a Kafka option, which is given in lower case; None for other options."""
    hint = _HINTS.get(name)
    if hint is None and name.startswith("kafka."):
        return "this source uses no client of Kafka's: leave it out; docs/spark.md lists the options"
    return hint
