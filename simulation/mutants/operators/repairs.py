"""Break the rules of repairing a data folder that is short in several ledgers or segments, and of its mark (E8,
C12)."""

from __future__ import annotations

from simulation.mutants.mutant import Mutant

NO_REPAIR = "the simulation has no `check --repair`"
NO_MARK = "the simulated disk has no mark of its etcd"

MISSING = "tests/txnctl/checking/test_missing.py::test_c12_"
SHORT = "tests/txnctl/checking/test_short_ledgers.py::test_c12_"
MARKS = "tests/txnctl/process/test_kept_marks.py::test_e8_"

INTERRUPTED = f"{SHORT}an_interrupted_repair_ends_like_one_that_was_not_whatever_the_step"
SHORTENED = f"{SHORT}several_ledgers_of_several_segments_are_shortened_each_to_what_is_left"
DROPPED = f"{SHORT}transactions_over_several_damaged_segments_are_dropped_in_all_and_others_in_none"
SIDECARS = f"{SHORT}what_sidecars_of_short_ledgers_listed_stands_in_etcd_again_at_what_is_left"
COMPARED = f"{MISSING}each_of_several_ledgers_is_compared_with_its_own_length"
OPEN = f"{MISSING}what_an_open_ledger_had_is_told_by_the_highest_position_of_its_own_segment"
TRIMMED = f"{MISSING}only_ledgers_before_the_first_file_may_have_been_trimmed_since"
WITHIN = f"{MISSING}a_position_behind_the_end_becomes_the_last_one_that_is_left"
BLOCKS = f"{MISSING}of_a_block_of_acks_what_is_left_of_its_ledger_stays"
OPERATIONS = f"{MISSING}what_has_fewer_entries_than_operations_in_a_damaged_segment_is_dropped"
UNSURE = f"{MISSING}of_what_was_collected_what_may_have_committed_behind_the_mark_is_named"
REPAIRED = f"{MARKS}a_repair_replaces_the_mark_and_nobody_of_before_replaces_the_repairs"


def dropping(name: str, rule: str, old: str, new: str, *tests: str) -> Mutant:
    return _mutant(name, rule, "txnctl/checking/dropping.py", old, new, *tests)


def missing(name: str, rule: str, old: str, new: str, *tests: str) -> Mutant:
    return _mutant(name, rule, "txnctl/checking/missing.py", old, new, *tests)


def mark(name: str, rule: str, old: str, new: str, *tests: str) -> Mutant:
    return _mutant(name, rule, "txnctl/process/store_mark.py", old, new, *tests, why=NO_MARK)


def _mutant(name: str, rule: str, file: str, old: str, new: str, *tests: str, why: str = NO_REPAIR) -> Mutant:
    return Mutant(name=name, rule=rule, section="§7", file=file, old=old, new=new, tests=tests, why_tests=why)


MUTANTS: tuple[Mutant, ...] = (
    dropping(
        "short-in-the-last-segment-alone",
        "transactions are dropped for what they lost in any segment",
        "        short = [one for some in self.short.values() for one in some]\n",
        "        short = [one for some in list(self.short.values())[-1:] for one in some]\n",
        DROPPED,
    ),
    dropping(
        "first-short-ledger-told",
        "each ledger that lacks entries is told",
        '        for one in short:\n            self._repair.find("missing", str(one))\n',
        '        for one in short[:1]:\n            self._repair.find("missing", str(one))\n',
        SHORTENED,
    ),
    dropping(
        "dropped-with-its-writers",
        "a dropped transaction counts no writer",
        "state=ABORTED, reason=REASON_LOST, writers=None",
        "state=ABORTED, reason=REASON_LOST",
        DROPPED,
    ),
    dropping(
        "nothing-counted-behind-damage",
        "what is left is counted in every ledger, behind a damaged one, too",
        'is damaged: {error}")\n                    continue\n',
        'is damaged: {error}")\n                    break\n',
        f"{SHORT}a_damaged_ledger_hides_nothing_of_what_is_left_behind_it",
    ),
    dropping(
        "left-counted-once",
        "every entry that is left of a transaction counts",
        "left[txn_id, segment] = left.get((txn_id, segment), 0) + 1",
        "left[txn_id, segment] = 1",
        DROPPED,
    ),
    dropping(
        "left-counted-over-segments",
        "entries count in their own segment",
        "left[txn_id, segment] = left.get((txn_id, segment), 0) + 1",
        "left[txn_id, segment] = sum(some for (one, _), some in left.items() if one == txn_id) + 1",
        DROPPED,
    ),
    dropping(
        "first-short-ledger-cut",
        "no footer covers lost entries, of whichever ledger",
        "        for one in short:\n            await self._repair.cut",
        "        for one in short[:1]:\n            await self._repair.cut",
        f"{SHORT}a_repaired_folder_is_served_and_shows_whole_transactions_alone",
    ),
    dropping(
        "cursors-of-short-segments-alone",
        "an interrupted repair leaves no cursor behind its ledgers' ends",
        "        await self._shorten_cursors(segment, ledgers)\n        if not short:\n            return record\n",
        "        if not short:\n            return record\n        await self._shorten_cursors(segment, ledgers)\n",
        INTERRUPTED,
    ),
    dropping(
        "evidence-shortened-first",
        "what tells of an open ledger's entries is shortened behind all else",
        "        await self._shorten_cursors(segment, ledgers)\n        if not short:\n            return record\n",
        "        if not short:\n            return record\n        await self._shorten_state(segment, ledgers)\n"
        "        await self._shorten_cursors(segment, ledgers)\n",
        INTERRUPTED,
    ),
    dropping(
        "seal-behind-the-end",
        "a seal names the last entry that is left",
        "            changed = msgspec.structs.replace(changed, sealed=_pair(sealed))\n",
        "",
        SHORTENED,
    ),
    dropping(
        "drained-through-what-is-lost",
        "a drained record names the end of its seal",
        "            await self._shorten_drained(segment, sealed)\n",
        "",
        SHORTENED,
    ),
    dropping(
        "drained-of-another-topic",
        "drained records of other topics stay",
        "if topic == name.topic.path and segment_id == name.segment_id:",
        "if segment_id == name.segment_id:",
        SHORTENED,
    ),
    dropping(
        "sidecar-of-the-first-short-ledger",
        "what the sidecars of all short ledgers list stands in etcd again",
        "[one.ledger_id for one in short])",
        "[one.ledger_id for one in short[:1]])",
        SIDECARS,
    ),
    dropping(
        "sidecars-of-whole-ledgers-too",
        "the sidecar of a whole ledger stays as it is",
        "if info.ledger_id in short else None",
        "if True else None",
        SIDECARS,
    ),
    dropping(
        "lost-sidecar-off-the-list",
        "a lost sidecar stays listed until it is known what it had listed",
        "infos.append(info if there is None else",
        "infos.append(info if False else",
        f"{SHORT}where_the_sidecar_of_a_short_ledger_is_lost_itself_nobody_serves",
    ),
    dropping(
        "listed-in-a-sidecar-and-forgotten",
        "what the sidecar of a short ledger listed stands in etcd again",
        "self._picture.aborted[segment, txn_id, writer] = AbortedRecord(max_position=_pair(position))",
        "pass",
        SIDECARS,
    ),
    dropping(
        "aborted-records-of-all-segments",
        "aborted records of whole segments stay as they are",
        "            if where == segment and aborted.max_position is not None:\n",
        "            if aborted.max_position is not None:\n",
        SIDECARS,
    ),
    dropping(
        "marks-of-all-segments",
        "a cursor is shortened by its own segment's ledgers",
        "        for (where, name), mark in self._picture.marks.items():\n            if where == segment:\n",
        "        for (where, name), mark in self._picture.marks.items():\n            if True:\n",
        SHORTENED,
    ),
    dropping(
        "blocks-of-all-segments",
        "acks are shortened by their own segment's ledgers",
        "                if where == segment and block.ledger_id in lengths:\n",
        "                if block.ledger_id in lengths:\n",
        SHORTENED,
    ),
    dropping(
        "blocks-of-the-first-ledger",
        "acks are shortened in every ledger",
        "for info in ledgers if info.closed_length is not None}",
        "for info in ledgers[:1] if info.closed_length is not None}",
        SHORTENED,
    ),
    dropping(
        "acks-of-a-damaged-ledger-dropped",
        "acks in a damaged ledger stay, for when it is mended",
        "lengths = {info.ledger_id: info.closed_length for info in ledgers if info.closed_length is not None}\n",
        "lengths = {info.ledger_id: info.closed_length or 0 for info in ledgers}\n",
        f"{SHORT}acks_in_an_open_ledger_that_is_damaged_stay",
    ),
    _mutant(
        "old-sidecar-beside-its-ledger",
        "an interrupted repair leaves no sidecar that it has taken off the list",
        "txnctl/checking/repair.py",
        "if info.aborted), *evidence}",
        "if info.aborted)}",
        INTERRUPTED,
    ),
    _mutant(
        "damage-ends-the-repair",
        "a repair goes on past a damaged closed ledger, if etcd has not gone back",
        "txnctl/checking/repair.py",
        "            if lost or not self._folder_is_older:\n                raise\n",
        "            raise\n",
        f"{SHORT}a_damaged_ledger_hides_nothing_of_what_is_left_behind_it",
    ),
    _mutant(
        "damaged-sidecar-ends-the-repair",
        "a damaged sidecar is one that is lost",
        "txnctl/checking/repair.py",
        '            self.find("missing", f"{segment}: the sidecar of ledger {info.ledger_id} is damaged: {error}")\n'
        "            return None\n",
        "            raise InternalError(str(error)) from error\n",
        f"{SHORT}what_the_sidecar_of_a_short_ledger_listed_is_known_where_another_is_lost",
        f"{SHORT}where_the_sidecar_of_a_short_ledger_is_lost_itself_nobody_serves",
    ),
    _mutant(
        "dropped-where-it-cannot-be-read",
        "dropped transactions are aborted also in a damaged ledger, which may be put back",
        "txnctl/checking/repair.py",
        "            return [WrittenEntry(end, txn_id, records.NO_WRITER, 0) for txn_id in self._dropping.dropped]\n",
        "            return []\n",
        f"{SHORT}a_damaged_ledger_hides_nothing_of_what_is_left_behind_it",
    ),
    _mutant(
        "dropped-below-the-watermark-left-to-its-owner",
        "what lies below the watermark is aborted by the repair, though its op records stand",
        "txnctl/checking/rewound.py",
        "if position > self._decided and key not in self._last and",
        "if",
        f"{SHORT}a_repaired_folder_is_served_and_shows_whole_transactions_alone",
    ),
    missing(
        "told-by-the-last-record",
        "the highest position tells what an open ledger had",
        "told[position.ledger_id] = max(told.get(position.ledger_id, 0), position.entry_id + 1)",
        "told[position.ledger_id] = position.entry_id + 1",
        OPEN,
    ),
    missing(
        "told-by-another-segment",
        "aborted records of other segments tell nothing of this one's ledgers",
        "        if where == segment and record.max_position is not None:\n",
        "        if record.max_position is not None:\n",
        OPEN,
    ),
    missing(
        "last-entry-not-told",
        "a position is that of an entry which was there",
        "max(told.get(position.ledger_id, 0), position.entry_id + 1)",
        "max(told.get(position.ledger_id, 0), position.entry_id)",
        OPEN,
    ),
    missing(
        "trimmed-behind-the-first-file",
        "only ledgers before the first file may have been trimmed",
        "(first_there is None or info.ledger_id < first_there)",
        "(first_there is None or info.ledger_id > first_there)",
        TRIMMED,
    ),
    missing(
        "one-trimmed-all-whole",
        "a trimmed ledger hides none behind it",
        "info.ledger_id < first_there):\n            continue\n",
        "info.ledger_id < first_there):\n            break\n",
        TRIMMED,
    ),
    missing(
        "one-damaged-all-whole",
        "a damaged ledger hides none behind it",
        "        if there is not None and there.damaged:\n            continue\n",
        "        if there is not None and there.damaged:\n            break\n",
        f"{MISSING}what_is_damaged_is_no_shortfall_and_hides_none_behind_it",
    ),
    missing(
        "whole-ledgers-are-short",
        "a ledger that has all its entries lacks none",
        "        if expected > entries or lost:\n",
        "        if expected >= entries or lost:\n",
        COMPARED,
    ),
    missing(
        "unmade-file-is-lost",
        "an open ledger without a file lacks something only if it was made",
        "lost = there is None and not exact and record.made == info.ledger_id\n",
        "lost = there is None and not exact\n",
        f"{MISSING}an_open_ledger_without_a_file_lacks_something_only_if_it_surely_was_made",
    ),
    missing(
        "shortened-and-as-large",
        "a shortened ledger counts as many bytes less, for retention",
        "size = info.bytes * length // info.closed_length if info.closed_length else 0\n",
        "size = info.bytes\n",
        f"{MISSING}a_shortened_list_changes_the_short_ledgers_alone",
    ),
    missing(
        "closed-by-the-repair",
        "a ledger that was closed keeps the time of that, for retention",
        "closed_ms=info.closed_ms or now_ms",
        "closed_ms=now_ms",
        f"{MISSING}a_shortened_list_changes_the_short_ledgers_alone",
    ),
    missing(
        "position-in-an-empty-ledger",
        "a position becomes that of an entry that is left",
        "for info in ledgers if info.closed_length]\n",
        "for info in ledgers if info.closed_length is not None]\n",
        WITHIN,
    ),
    missing(
        "position-behind-its-own",
        "a shortened position never moves forward",
        "(end for end in ends if end <= position)",
        "(end for end in ends)",
        WITHIN,
    ),
    missing(
        "part-of-the-first-lost-entry",
        "acks of parts of lost entries go",
        "if one[0] < length]\n",
        "if one[0] <= length]\n",
        BLOCKS,
    ),
    missing(
        "block-counts-from-the-start",
        "bits of a block count from its first entry",
        "kept = max(length - block.first_entry, 0)\n",
        "kept = max(length, 0)\n",
        BLOCKS,
    ),
    missing(
        "torn-by-the-mark-s-own-revision",
        "what was decided when the mark was written is whole",
        "picture.header_revisions.get(txn_id, 0) > folder_revision",
        "picture.header_revisions.get(txn_id, 0) >= folder_revision",
        f"{MISSING}of_what_has_headers_what_was_committed_behind_the_mark_is_dropped",
    ),
    missing(
        "torn-by-its-acks",
        "acks have no entries that could be missing",
        "written = subscription is None and segment in damaged",
        "written = segment in damaged",
        OPERATIONS,
    ),
    missing(
        "torn-where-nothing-is-missing",
        "an operation without its entry tears nothing in a whole segment",
        "written = subscription is None and segment in damaged and header",
        "written = subscription is None and header",
        OPERATIONS,
    ),
    missing(
        "whole-and-dropped",
        "a transaction of which every entry is left stays",
        "left.get((txn_id, segment), 0) < ops:\n",
        "left.get((txn_id, segment), 0) <= ops:\n",
        OPERATIONS,
    ),
    missing(
        "damaged-first-segment-alone",
        "a transaction is dropped for what it lost in any segment",
        "damaged = {one.segment: None for one in short}\n",
        "damaged = {one.segment: None for one in list(short)[:1]}\n",
        f"{MISSING}a_transaction_over_two_damaged_segments_is_dropped_for_either",
    ),
    missing(
        "unsure-of-what-was-decided-before",
        "a collected transaction is named only if its block was written behind the mark",
        "outcomes.mod_revision > revision\n",
        "outcomes.mod_revision >= revision\n",
        UNSURE,
    ),
    missing(
        "unsure-of-what-was-aborted",
        "a collected transaction that was aborted is not named",
        "return outcomes.state_of(txn_id.counter) == COMMITTED and outcomes",
        "return outcomes",
        UNSURE,
    ),
    mark(
        "mark-of-a-later-version",
        "a mark of another version is not read as this one",
        "        if mark.v != 1:\n",
        "        if mark.v > 2:\n",
        f"{MARKS}a_mark_of_a_later_version_is_not_read_as_this_one",
    ),
    mark(
        "mark-of-another-cluster-replaced",
        "the mark of another cluster is not replaced",
        "        if before is not None and not before.knows(store):\n",
        "        if False:\n",
        f"{MARKS}the_mark_of_another_cluster_is_not_replaced",
        f"{MARKS}a_kept_mark_follows_etcd_and_outlives_what_fails",
    ),
    mark(
        "mark-of-a-restored-etcd-as-high",
        "the mark of a repaired etcd has its own revision",
        "        if before is not None and before.incarnation == store.id:\n",
        "        if before is not None:\n",
        REPAIRED,
    ),
    mark(
        "mark-forgets-the-floor",
        "a mark keeps the highest segment id that was set aside",
        "            segment_floor=max(segment_floor, 0 if before is None else before.segment_floor),\n",
        "            segment_floor=segment_floor,\n",
        REPAIRED,
    ),
    mark(
        "mark-written-each-time",
        "a mark that has not changed is not written again",
        "        if mark != before:\n",
        "        if True:\n",
        f"{MARKS}what_has_not_changed_is_not_written_again",
    ),
    mark(
        "mark-kept-until-the-first-failure",
        "a mark is kept on behind what failed once",
        '                log.warning("store mark not written", path=str(self._path), error=str(error))\n',
        '                log.warning("store mark not written", path=str(self._path), error=str(error))\n'
        "                return\n",
        f"{MARKS}a_kept_mark_follows_etcd_and_outlives_what_fails",
    ),
    mark(
        "mark-as-at-the-start",
        "a kept mark follows etcd's revision",
        "identity, store.statistics().revision, again=True",
        "identity, 0, again=True",
        f"{MARKS}a_kept_mark_follows_etcd_and_outlives_what_fails",
    ),
    mark(
        "repaired-etcd-marked-unfit",
        "an etcd that was repaired meanwhile is not marked as gone back",
        "Commit((same,), (Put(",
        "Commit((), (Put(",
        f"{MARKS}who_finds_etcd_gone_back_does_not_mark_one_that_was_repaired_meanwhile",
    ),
    mark(
        "etcd-without-identity-followed",
        "a process ends when its etcd has no identity any more",
        "        if now is None or now.id != known.id or now.repair:\n",
        "        if now is not None and (now.id != known.id or now.repair):\n",
        f"{MARKS}a_process_ends_when_its_etcd_is_another_or_none",
    ),
    _mutant(
        "folder-at-etcd-s-revision-is-newer",
        "what is missing in a folder whose mark etcd has just reached is lost, and was not trimmed",
        "txnctl/checking/repair.py",
        "else revision >= mark.revision\n",
        "else revision > mark.revision\n",
        "tests/txnctl/checking/test_older_folder.py::"
        "test_c12_where_etcd_stands_at_the_folder_s_mark_a_file_that_is_gone_is_lost_and_not_trimmed",
    ),
    _mutant(
        "floor-of-an-earlier-repair-forgotten",
        "no segment gets an id whose files an earlier repair has set aside",
        "txnctl/checking/repair.py",
        "        self._floor = mark.segment_floor\n",
        "",
        "tests/txnctl/checking/test_repairing.py::"
        "test_e8_segment_ids_stay_above_those_that_an_earlier_repair_has_set_aside",
    ),
)
