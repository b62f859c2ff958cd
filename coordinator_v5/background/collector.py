"""Collection: deletes decided headers after their retention, once they have no op left. Source: DESIGN §5.

Steady state reads nothing: transactions that this coordinator decided, or found decided, wait in memory. After a
refused batch it reads the headers: transactions that still have ops are set aside and tried again, less and less often;
it touches their leftovers only if their segment has no owner.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Final, NamedTuple

import structlog

from coordinator_v5.state import UNREADABLE, CoordinatorState
from coordinator_v5.transactions import OwnedTcid, Seen
from txnstore import keys
from txnstore.access.paging import in_pages
from txnstore.writes.collection_transitions import (
    Collectable,
    Horizon,
    Leftover,
    Leftovers,
    OutcomeBitmap,
    batches_of,
    block_of,
    leftover_records,
    name_rewrite,
    parts_of,
    plan_collect,
    plan_expire_outcomes,
    plan_leftovers,
    read_collect_verdict,
    read_horizon,
    read_outcomes,
)
from txnstore.writes.op_transitions import Rewrite
from txnstore.writes.transitions import RecordedDecision, decision_of
from txnwire.errors import DataCorrupt, NotOwner, TxnError
from txnwire.ids import TxnId
from txnwire.turns import in_turns

log = structlog.get_logger()

COLLECTED_AT_ONCE: Final = 20_000
"""Per TCID and round."""
STUCK_AT_ONCE: Final = 100
TRIED_AT_ONCE: Final = 2000
"""Put back in line without a pause."""
FIRST_RETRY_S: Final = 1.0
LAST_RETRY_S: Final = 60.0
LOOK_AFTER_TRIES: Final = 3
"""Tries before the ops of a transaction are read: a participant may just be late."""
NAMED_AT_ONCE: Final = 30
"""Each may be a run of its own: two compares, plus one of its name record, within `store.MAX_COMMIT_OPS`."""
NAMED_WRITERS_AT_ONCE: Final = 20_000
"""Over a whole batch, or of one transaction: 19 bytes each, within `store.MAX_COMMIT_BYTES`."""


class Stuck(NamedTuple):
    """Set aside until `retry_at` (monotonic): it had op records `tries` times."""

    seen: Seen
    retry_at: float
    tries: int


class Ahead(NamedTuple):
    """An outcome block stamped by a clock that ran ahead: its mod revision, first seen at `seen_s` (monotonic)."""

    revision: int
    seen_s: float


class Collector:
    def __init__(self, state: CoordinatorState) -> None:
        self._state = state
        self._horizon = Horizon()
        self._outcomes: dict[int, OutcomeBitmap] = {}
        """The last written block, by TCID."""
        self._stuck: dict[TxnId, Stuck] = {}
        self._tries: dict[TxnId, int] = {}
        self._blocks: dict[int, deque[int]] = {}
        """Outcome blocks that may expire, by TCID, oldest first."""
        self._ahead: dict[int, dict[int, Ahead]] = {}
        """Blocks set aside because their stamp lies in the future, by TCID and block."""

    async def run(self) -> None:
        while True:
            await asyncio.sleep(self._state.settings.collect_every_s)
            try:
                await self.collect()
            except TxnError as error:
                log.warning("collection interrupted", error=str(error))

    def forget(self, tcid: int) -> None:
        """Drop the state of a TCID that was lost or just taken."""
        self._outcomes.pop(tcid, None)
        self._blocks.pop(tcid, None)
        self._ahead.pop(tcid, None)
        for known in (self._stuck, self._tries):
            for txn_id in [txn_id for txn_id in known if txn_id.tcid == tcid]:
                del known[txn_id]
        self._count_stuck()

    async def collect(self) -> int:
        """One round over all TCIDs; returns the number of deleted headers. Raises `StoreUnavailable`; the rest then
        stays in line."""
        await self._retry_stuck()
        collected, at_once = 0, self._state.store.page_size(COLLECTED_AT_ONCE)
        for tc in list(self._state.tcids.values()):
            now = self._state.clock.monotonic()
            due = tc.collectable(now, self._state.settings.header_retention_s, at_once)
            left = {seen.final.counter: seen for seen in due}
            plain = [[left[one.counter] for one in batch] for batch in _batches_of_plain(due)]
            named = list(_batches_of_named([seen for seen in due if seen.name is not None]))
            try:
                for batch in plain + named:
                    done = await self._collect_readable(tc, batch, due)
                    collected += done
                    self._state.counters.collected += done
                    for seen in batch:
                        del left[seen.final.counter]
            except NotOwner:
                log.info("another coordinator owns the coordinator id now", tcid=tc.tcid)
            finally:
                for seen in left.values():
                    tc.collect_again(seen)
        return collected

    # ---- one batch ----

    async def _collect_readable(self, tc: OwnedTcid, batch: list[Seen], due: list[Seen]) -> int:
        """▲ An unreadable record stops only itself: its transaction is set aside like one that still has ops, and its
        batch is collected one by one."""
        try:
            return await self._collect(tc, {seen.final.counter: seen for seen in batch}, due)
        except UNREADABLE as error:
            if len(batch) == 1 or batch[0].name is None:
                self._unreadable(tc, batch, error)
                return 0
        return sum([await self._collect_readable(tc, [seen], due) for seen in batch])

    def _unreadable(self, tc: OwnedTcid, batch: list[Seen], error: TxnError) -> None:
        log.error("transactions not collected", first=str(TxnId(tc.tcid, batch[0].final.counter)), error=str(error))
        for seen in batch:
            self._set_aside(TxnId(tc.tcid, seen.final.counter), seen)

    async def _collect(self, tc: OwnedTcid, batch: dict[int, Seen], due: list[Seen]) -> int:
        """Collect a batch; set aside what cannot be collected yet. Reads the headers only after a refusal."""
        for _ in range(3):
            if not batch:
                return 0
            if await self._commit(tc, batch, due):
                if self._tries:
                    for counter in batch:
                        self._tries.pop(TxnId(tc.tcid, counter), None)
                return len(batch)
            batch, apart = await self._look(tc, batch)
            # ▲ Divide again: without the members set aside, the batch may have more runs than one commit takes.
            parts = [[one] for one in batch] if apart else _cut(batch)
            if len(parts) > 1:
                return sum([await self._collect(tc, {one: batch[one] for one in part}, due) for part in parts])
        for seen in batch.values():
            tc.collect_again(seen)
        return 0

    async def _commit(self, tc: OwnedTcid, batch: dict[int, Seen], due: list[Seen]) -> bool:
        finals = [batch[counter].final for counter in sorted(batch)]
        block = block_of(finals[0].counter)
        outcomes = self._outcomes.get(tc.tcid)
        if outcomes is None or outcomes.block != block:
            outcomes = await self._read_outcomes(tc.tcid, block)
        commit = plan_collect(
            tc.epoch,
            outcomes,
            finals,
            self._horizon,
            # Raised once for the round: later batches need no put of their own.
            raise_to=max(seen.final.revision for seen in due),
            touched_ms=self._state.clock.wall_ms(),
            names=await self._names(tc, batch),
        )
        result = await self._state.store.commit(commit)
        verdict = read_collect_verdict(commit, result, outcomes, self._horizon)
        self._outcomes[tc.tcid], self._horizon = verdict.outcomes, verdict.horizon
        if verdict.applied and outcomes.mod_revision == 0 and tc.tcid in self._blocks:
            self._blocks[tc.tcid].append(block)
        return verdict.applied

    async def _read_outcomes(self, tcid: int, block: int) -> OutcomeBitmap:
        wanted = [OutcomeBitmap(tcid, block).key, keys.GC_HORIZON]
        _, (record, horizon) = await self._state.store.get_many(wanted)
        self._horizon = max(self._horizon, read_horizon(horizon))
        return read_outcomes(tcid, block, record)

    async def _names(self, tc: OwnedTcid, batch: dict[int, Seen]) -> list[Rewrite]:
        """Rewrites that move outcome, writers and note of named transactions into their name records."""
        named = {TxnId(tc.tcid, counter): seen.name for counter, seen in batch.items() if seen.name is not None}
        if not named:
            return []
        store = self._state.store
        _, headers = await store.get_many([keys.txn(txn_id) for txn_id in named])
        found = (await store.get_many([keys.txn_name(name) for name in named.values()]))[1]
        rewrites = []
        for txn_id, header, record in zip(named, headers, found, strict=True):
            decision = None if header is None else decision_of(header)
            if decision is not None:
                rewrite = name_rewrite(record, txn_id, decision, self._state.cluster.wall_ms())
                rewrites += [] if rewrite is None else [rewrite]
        return rewrites

    async def _look(self, tc: OwnedTcid, batch: dict[int, Seen]) -> tuple[dict[int, Seen], bool]:
        """After a refusal: drop the transactions collected already, set aside those with ops, return the rest, and
        whether foreign keys lie between them: then no run of several can be collected."""
        first, last = TxnId(tc.tcid, min(batch)), TxnId(tc.tcid, max(batch))
        store, at_once = self._state.store, self._state.settings.keys_at_once
        found = await store.range(keys.txn(first), keys.txn(last) + b"\0", keys_only=True)
        present = {_counter_of(keys.txn_of, record.key) for record in found.records if record.version != 1}
        strange = any(_counter_of(keys.txn_of, record.key) is None for record in found.records)
        start, end, busy = keys.txn_ops(first), keys.prefix_end(keys.txn_ops(last)), set[int | None]()
        async for ops in in_pages(store, start, end, at_once=at_once, keys_only=True):
            busy.update(_counter_of(keys.op_txn, record.key) for record in ops)
        for counter in sorted(counter for counter in batch if counter in busy):
            self._set_aside(TxnId(tc.tcid, counter), batch[counter])
        left = {counter: seen for counter, seen in batch.items() if counter in present and counter not in busy}
        return left, strange or None in busy

    # ---- transactions that still have ops ----

    def _set_aside(self, txn_id: TxnId, seen: Seen) -> None:
        if txn_id.tcid not in self._state.tcids:
            return  # ▲ lost meanwhile, and `forget` was called: it would count as stuck here for ever
        tries = self._tries.get(txn_id, 0) + 1
        self._tries[txn_id] = tries
        delay_s = min(LAST_RETRY_S, FIRST_RETRY_S * 2 ** min(tries - 1, 10))
        self._stuck[txn_id] = Stuck(seen, self._state.clock.monotonic() + delay_s, tries)
        self._count_stuck()

    async def _retry_stuck(self) -> None:
        now = self._state.clock.monotonic()
        due = [txn_id for txn_id, stuck in self._stuck.items() if stuck.retry_at <= now]
        looked = 0
        async for part in in_turns(due, TRIED_AT_ONCE):
            for txn_id in part:
                stuck, tc = self._stuck.get(txn_id), self._state.tcids.get(txn_id.tcid)
                if stuck is None or tc is None:
                    continue
                if stuck.tries >= LOOK_AFTER_TRIES and looked < STUCK_AT_ONCE:
                    looked += 1
                    try:
                        await self._clear_leftovers(txn_id)
                    except UNREADABLE as error:
                        log.error("leftovers not cleared", txn=str(txn_id), error=str(error))
                self._stuck.pop(txn_id, None)
                tc.collect_again(stuck.seen)
        self._count_stuck()

    async def _clear_leftovers(self, txn_id: TxnId) -> None:
        """▲ Leftovers are touched only if `/owner/<segment>` is absent, compared in the same etcd transaction."""
        store = self._state.store
        header = await store.get(keys.txn(txn_id))
        decision: RecordedDecision | None = None if header is None else decision_of(header)
        if decision is None:
            return
        prefix, leftovers = keys.txn_ops(txn_id), Leftovers(decision)
        async for ops in in_pages(store, prefix, keys.prefix_end(prefix), at_once=self._state.settings.ops_at_once):
            for leftover in leftovers.add(ops):
                await self._clear(txn_id, leftover)
        for leftover in leftovers.rest():
            await self._clear(txn_id, leftover)

    async def _clear(self, txn_id: TxnId, leftover: Leftover) -> None:
        store = self._state.store
        if await store.get(keys.owner(leftover.segment)) is not None:
            return
        cleared = False
        for part in parts_of(leftover):
            wanted = leftover_records(txn_id, part)
            _, found = await store.get_many(wanted) if wanted else (0, [])
            commit = plan_leftovers(txn_id, part, found)
            if commit.puts or commit.deletes:
                if not (await store.commit(commit)).succeeded:
                    return
                cleared = True
        if cleared:
            log.info("leftovers of an ownerless segment cleared", txn=str(txn_id), segment=leftover.segment)

    def _count_stuck(self) -> None:
        self._state.counters.stuck = len(self._stuck)

    # ---- outcome blocks expire ----

    async def expire_outcomes(self) -> int:
        """Delete outcome blocks untouched for 7 days (wall clock: they outlive every process). Reads the keys of a
        TCID's blocks once, then only the oldest block.

        A block stamped in the future gives no hint about the others: it is set aside, ▲ and its retention counts from
        when this process first saw it as it is."""
        expired = 0
        for tc in list(self._state.tcids.values()):
            blocks = self._blocks.get(tc.tcid)
            if blocks is None:
                blocks = await self._list_blocks(tc.tcid)
            now_ms = self._state.clock.wall_ms()  # after the list: a block made meanwhile must not look future
            before_ms = now_ms - int(self._state.settings.outcome_retention_s * 1000)
            ahead = self._ahead.setdefault(tc.tcid, {})
            expired += await self._expire_ahead(tc.tcid, blocks, ahead)
            while blocks:
                key = OutcomeBitmap(tc.tcid, blocks[0]).key
                try:
                    outcomes = read_outcomes(tc.tcid, blocks[0], await self._state.store.get(key))
                except DataCorrupt as error:
                    log.error("outcomes not expired", error=str(error))
                    blocks.popleft()
                    continue
                if outcomes.mod_revision and outcomes.touched_ms > now_ms:
                    ahead[blocks.popleft()] = Ahead(outcomes.mod_revision, self._state.clock.monotonic())
                    continue
                if outcomes.mod_revision and outcomes.touched_ms >= before_ms:
                    break
                if outcomes.mod_revision:
                    if not await self._expire(outcomes):
                        break
                    expired += 1
                blocks.popleft()
        return expired

    async def _expire(self, outcomes: OutcomeBitmap) -> bool:
        """▲ False: it was written meanwhile. It stays in line: nothing else would ever look at it here."""
        return (await self._state.store.commit(plan_expire_outcomes(outcomes))).succeeded

    async def _expire_ahead(self, tcid: int, blocks: deque[int], ahead: dict[int, Ahead]) -> int:
        """Delete blocks set aside here for the whole retention, ▲ unless they were written since: outcomes were added,
        which may still be asked for, and their stamp is the old one if that lies further ahead. They are judged anew.
        """
        seen_before_s = self._state.clock.monotonic() - self._state.settings.outcome_retention_s
        expired = 0
        for block, (revision, seen_s) in list(ahead.items()):
            if seen_s > seen_before_s:
                continue
            try:
                key = OutcomeBitmap(tcid, block).key
                outcomes = read_outcomes(tcid, block, await self._state.store.get(key))
            except DataCorrupt as error:
                log.error("outcomes not expired", error=str(error))
                del ahead[block]
                continue
            if outcomes.mod_revision not in (0, revision):
                blocks.appendleft(block)
            elif outcomes.mod_revision:
                if not await self._expire(outcomes):
                    continue
                expired += 1
            del ahead[block]
        return expired

    async def _list_blocks(self, tcid: int) -> deque[int]:
        """▲ A block that is made while they are listed may not be among them, so it is noted from before that on."""
        made = self._blocks[tcid] = deque()
        try:
            listed = await self._outcome_blocks(tcid)
        except BaseException:
            self._blocks.pop(tcid, None)
            raise
        made.extendleft(block for block in reversed(listed) if block not in made)
        return made

    async def _outcome_blocks(self, tcid: int) -> list[int]:
        prefix, at_once = keys.TXN_OUTCOME + f"{tcid:04x}/".encode(), self._state.settings.keys_at_once
        pages = in_pages(self._state.store, prefix, keys.prefix_end(prefix), at_once=at_once, keys_only=True)
        found = [_block_of_key(record.key) async for page in pages for record in page]
        return [block for block in found if block is not None]


def _cut(batch: Mapping[int, Seen]) -> list[list[int]]:
    """The counters of a batch, as many as one commit takes in each part."""
    return [[one.counter for one in part] for part in batches_of([seen.final for seen in batch.values()])]


def _counter_of(parse: Callable[[bytes], TxnId], key: bytes) -> int | None:
    """None for a key that we did not write."""
    try:
        return parse(key).counter
    except UNREADABLE as error:
        log.error("unreadable key left alone", key=repr(key), error=str(error))
        return None


def _block_of_key(key: bytes) -> int | None:
    """None for a key that we did not write."""
    try:
        return int(key.rpartition(b"/")[2], 16)
    except ValueError:
        log.error("unreadable key left alone", key=repr(key))
        return None


def _batches_of_plain(due: Sequence[Seen]) -> list[list[Collectable]]:
    return batches_of([seen.final for seen in due if seen.name is None])


def _batches_of_named(named: Sequence[Seen]) -> Iterator[list[Seen]]:
    """Named transactions in id order, as many as one commit takes, all of one outcome block."""
    batch: list[Seen] = []
    writers = 0
    for seen in named:
        full = len(batch) == NAMED_AT_ONCE or writers + seen.writers > NAMED_WRITERS_AT_ONCE
        if batch and (full or block_of(seen.final.counter) != block_of(batch[0].final.counter)):
            yield batch
            batch, writers = [], 0
        batch.append(seen)
        writers += seen.writers
    if batch:
        yield batch
