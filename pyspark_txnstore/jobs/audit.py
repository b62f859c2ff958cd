"""Audits topics: checks that every committed transaction was shown whole and once, and no other message was.

    spark-submit audit.py --service txn://… --topics topic://public/nyc/flights,topic://public/nyc/outcomes
    spark-submit audit.py --service txn://… --export /data/flights
    spark-submit audit.py --service txn://… --seen /data/received --snapshot cut.json

The audit reads everything stored, uncommitted, and asks the coordinators how the transactions ended. It compares both
with what was shown up to one snapshot: by a READ_COMMITTED read made now, in the Parquet of the job export, or in any
Parquet of received messages with the columns topic, segment, position, txn_id, producer and sequence_id. It does not
judge what retention has taken.

Exit codes: 0 clean; 1 something is wrong; 2 undecided, also if an outcome is forgotten.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from pyspark_txnstore.jobs.command_line import (
    CLEAN,
    FINDINGS,
    UNDECIDED,
    JobFailed,
    Progress,
    add_cut,
    add_service,
    argument,
    caches_by_size,
    count,
    cut_of,
    job_parser,
    run_job,
    service_options,
    spark_session,
)
from pyspark_txnstore.jobs.export_folder import ExportFolder
from pyspark_txnstore.jobs.judgement import FINDING, KINDS
from txnclient.reading.snapshot import Snapshot

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from pyspark_txnstore.jobs.stored_entries import ServiceAddress

COLUMNS: Final = ("topic", "segment", "position", "txn_id", "producer", "sequence_id")
"""Columns that the audit needs of the shown messages."""


class AuditReport(NamedTuple):
    """`counts`: number of findings by kind, for all of `KINDS`. `examples`: some findings of each kind, as dicts of
    `FINDING`."""

    topics: Sequence[str]
    revision: int
    stored: Mapping[str, int]
    transactions: Mapping[str, int]
    counts: Mapping[str, int]
    examples: Mapping[str, Sequence[Mapping[str, Any]]]

    @property
    def forgotten(self) -> int:
        """Transactions whose outcome is forgotten, so that the audit does not know whether they had to be shown."""
        return self.transactions.get("UNKNOWN", 0) + self.stored["writers_forgotten"]

    @property
    def is_clean(self) -> bool:
        return not any(self.counts.values())

    def exit_code(self, *, allow_forgotten: bool) -> int:
        if not self.is_clean:
            return FINDINGS
        return UNDECIDED if self.forgotten and not allow_forgotten else CLEAN

    def as_json(self) -> str:
        return json.dumps(self._asdict())

    def as_text(self) -> str:
        return "\n".join(self._lines())

    def _lines(self) -> list[str]:
        stored = self.stored
        ended = ", ".join(f"{number:,} {state.lower()}" for state, number in sorted(self.transactions.items()))
        lines = [
            f"{', '.join(self.topics)} at revision {self.revision}",
            f"stored: {stored['messages']:,} messages in {stored['entries']:,} entries of {stored['segments']:,} "
            f"segments; shown: {stored['shown']:,} messages",
            f"transactions: {ended or 'none'}",
        ]
        for kind, number in self.counts.items():
            if number:
                lines.append(f"{kind.upper()}: {number:,} {KINDS[kind]}")
                lines += [f"    {_words(example)}" for example in self.examples[kind]]
                lines += [f"    … and {number - len(self.examples[kind]):,} more"] * (number > len(self.examples[kind]))
        if stored["unjudged"]:
            lines.append(
                f"not judged: {stored['unjudged']:,} entries that were shown, but are trimmed or outside the snapshot"
            )
        if self.forgotten:
            lines.append(
                f"not judged by outcome: {self.forgotten:,} transactions, forgotten; no writer's part of them is torn "
                "but for what stands above, and with --allow-forgotten that will do"
            )
        elif self.is_clean:
            lines.append("clean: every committed message was shown once, and no other message")
        return lines


def _words(finding: Mapping[str, Any]) -> str:
    of = f"transaction {finding['txn_id']}" if finding["txn_id"] else "no transaction"
    return (
        f"{of}: {finding['detail']}; segment {finding['segment']} at {finding['position']}, "
        f"producer {finding['producer']}, sequence id {finding['sequence_id']}"
    )


def audit(args: argparse.Namespace) -> int:
    if args.seen is not None and args.snapshot is None:
        raise JobFailed("--seen needs --snapshot: the moment up to which everything should have been received")
    progress = Progress()
    cut = _cut(args)
    progress.say(f"snapshot at revision {cut.revision}: {len(cut.topics)} topics, {len(cut.segments)} segments")
    with spark_session("audit", args.master) as session, caches_by_size(session):
        report = _report(session, args, cut, progress)
    print(report.as_json() if args.json else report.as_text(), flush=True)
    return report.exit_code(allow_forgotten=args.allow_forgotten)


def _cut(args: argparse.Namespace) -> Snapshot:
    return cut_of(args) if args.export is None else ExportFolder(args.export).last_cut()


def _report(session: SparkSession, args: argparse.Namespace, cut: Snapshot, progress: Progress) -> AuditReport:
    from pyspark.sql import functions as F

    from pyspark_txnstore.jobs.judgement import TOLD, entries_of, findings, with_outcomes
    from pyspark_txnstore.jobs.stored_entries import (
        NO_WRITER,
        ServiceAddress,
        known_transactions,
        stored_entries,
        told_writers,
    )

    service = ServiceAddress(args.service, args.timeout_s)
    everything = entries_of(stored_entries(session, service, cut), _shown(session, args, cut)).persist()
    total = everything.count()  # ▲ reads to the end before asking what is kept and how transactions ended
    progress.say(f"{total:,} entries are stored or were shown")
    entries = _within(session, everything, service, cut).persist()
    named = F.max(F.coalesce(F.col("writer"), F.lit(NO_WRITER)).isin("", NO_WRITER) == F.lit(False)).alias("named")
    transactions = entries.where("txn_id is not null").groupBy("txn_id").agg(named)
    known = known_transactions(transactions, service, cut).persist()
    states = {row.state: row["count"] for row in known.groupBy("state").count().collect()}
    progress.say(f"{sum(states.values()):,} transactions have a known outcome")
    forgetful = known.where("state = 'COMMITTED' and not writers_known").select("txn_id").persist()
    named_in = [row.segment for row in entries.join(forgetful, "txn_id").select("segment").distinct().collect()]
    told = told_writers(session, service, cut, named_in) if named_in else session.createDataFrame([], TOLD)
    judged = with_outcomes(entries, known, told.persist()).persist()
    found = findings(judged).persist()
    counted = {row.kind: row["count"] for row in found.groupBy("kind").count().collect()}
    counts = {kind: counted.get(kind, 0) for kind in KINDS}
    progress.say(f"judged: {sum(counts.values()):,} findings")
    if args.findings is not None:
        found.write.parquet(args.findings)
    totals = entries.agg(
        F.count_if("is_stored").alias("entries"),
        F.sum("stored").alias("messages"),
        F.sum("shown").alias("shown"),
        F.count_distinct(F.when(F.col("is_stored"), F.col("segment"))).alias("segments"),
        F.count("*").alias("judged"),
    ).first()
    assert totals is not None  # an aggregation over no rows still has one row
    stored = {name: totals[name] or 0 for name in ("entries", "messages", "shown", "segments")}
    stored["unjudged"] = total - totals["judged"]
    undecided = F.count_distinct(F.when(F.col("due").isNull() & (F.col("state") == "COMMITTED"), F.col("txn_id")))
    stored["writers_forgotten"] = judged.where("is_stored").agg(undecided).first()[0]  # type: ignore[index]
    examples = _examples(found, args.examples) if any(counts.values()) else {}
    for one in (found, judged, told, forgetful, known, entries, everything):
        one.unpersist()
    return AuditReport(sorted(cut.topics), cut.revision, stored, states, counts, examples)


def _examples(found: DataFrame, number: int) -> dict[str, list[dict[str, Any]]]:
    """Returns at most so many findings of each kind."""
    from pyspark.sql import Window
    from pyspark.sql import functions as F

    of_kind = Window.partitionBy("kind").orderBy("txn_id", "topic", "segment", "position")
    some: dict[str, list[dict[str, Any]]] = {}
    for row in found.withColumn("number", F.row_number().over(of_kind)).where(F.col("number") <= number).collect():
        some.setdefault(row.kind, []).append({name: row[name] for name in FINDING})
    return some


def _shown(session: SparkSession, args: argparse.Namespace, cut: Snapshot) -> DataFrame:
    """Returns `judgement.SHOWN`. Raises `JobFailed` if columns are missing."""
    from pyspark.sql import functions as F

    if (folder := args.seen or args.export) is not None:
        rows = session.read.parquet(folder)
        if missing := [name for name in COLUMNS if name not in rows.columns]:
            raise JobFailed(
                f"{folder} has no column {', '.join(missing)}: received rows are identified by {', '.join(COLUMNS)}"
            )
    else:
        rows = (
            session.read.format("txnstore")
            .options(**service_options(args))
            .option("topics", ",".join(cut.topics))
            .option("snapshot", cut.to_json())
            .option("columns", ",".join(COLUMNS))
            .load()
        )
    place = F.split("position", ":")
    return rows.select(
        "topic",
        F.regexp_replace("segment", "^segment://", "").alias("segment"),
        place[0].cast("long").alias("ledger_id"),
        place[1].cast("long").alias("entry_id"),
        "txn_id",
        "producer",
        F.col("sequence_id").cast("long"),
    )


def _within(session: SparkSession, entries: DataFrame, service: ServiceAddress, cut: Snapshot) -> DataFrame:
    """Keeps messages behind what retention has taken by now and up to the snapshot's ends. Others cannot be judged:
    they may not have been stored, or are not to be shown yet."""
    from pyspark.sql import functions as F

    from pyspark_txnstore.jobs.stored_entries import first_kept

    kept = first_kept(service, cut)
    bounds = session.createDataFrame(
        [(path, *kept[path], *one.end) for path, one in cut.segments.items()],
        "segment string, low_ledger long, low_entry long, end_ledger long, end_entry long",
    )
    place, low, end = (
        F.struct(F.col(names[0]).alias("ledger_id"), F.col(names[1]).alias("entry_id"))
        for names in (("ledger_id", "entry_id"), ("low_ledger", "low_entry"), ("end_ledger", "end_entry"))
    )
    return entries.join(F.broadcast(bounds), "segment").where((low < place) & (place <= end)).drop(*bounds.columns[1:])


def main(argv: Sequence[str] | None = None) -> int:
    parser = job_parser("audit", __doc__)
    add_service(parser)
    add_cut(parser).add_argument("--export", metavar="FOLDER", help="a folder that the job export has written")
    parser.add_argument("--seen", metavar="PATH", help="Parquet of the rows received up to --snapshot")
    parser.add_argument(
        "--allow-forgotten", action="store_true", help="an outcome that is forgotten is no reason for 2"
    )
    parser.add_argument("--findings", metavar="FOLDER", help="write all findings there, as Parquet")
    parser.add_argument(
        "--examples", metavar="N", type=argument(count), default=5, help="shown of each kind (default: 5)"
    )
    parser.add_argument("--json", action="store_true", help="the report as one line of JSON")
    return run_job(parser, audit, argv)


if __name__ == "__main__":
    sys.exit(main())
