"""Compares the shown messages of some topics with the stored ones and the outcomes of their transactions.

    stored   one row an entry: all that is kept, of open and aborted transactions too       (STORED)
    shown    one row a message: what a READ_COMMITTED reader showed, or a client received    (SHOWN)
    known    one row a transaction: how it ended, and whether it was pending in the snapshot (KNOWN)
    told     one row a writer of a named transaction: whether it counts, as its segments have it (TOLD)

An entry must be shown if it has no transaction, or a committed one and a writer that counts. It must not be shown if
its transaction is aborted, open or pending, or if its writer does not count. A transaction whose outcome is forgotten
must be shown whole or not at all. Everything here is a Spark aggregation; nothing is collected.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from pyspark.sql import Column, Window
from pyspark.sql import functions as F
from pyspark.sql.types import ArrayType, BooleanType, IntegerType, LongType, StringType, StructField, StructType

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


def _schema(**fields: StringType | LongType | IntegerType | BooleanType | ArrayType) -> StructType:
    return StructType([StructField(name, kind) for name, kind in fields.items()])


STORED: Final = _schema(
    topic=StringType(), segment=StringType(), ledger_id=LongType(), entry_id=LongType(),
    txn_id=StringType(), writer=StringType(), producer=StringType(), incarnation=StringType(),
    sequence_id=LongType(), messages=IntegerType(),
)  # fmt: skip
"""`segment`: its path. `writer`, `incarnation`: 16 hex digits. `sequence_id`: of the first message."""

SHOWN: Final = _schema(
    topic=StringType(), segment=StringType(), ledger_id=LongType(), entry_id=LongType(),
    txn_id=StringType(), producer=StringType(), sequence_id=LongType(),
)  # fmt: skip

KNOWN: Final = _schema(
    txn_id=StringType(), state=StringType(), writers=ArrayType(StringType()), writers_known=BooleanType(),
    pending=BooleanType(),
)  # fmt: skip
"""`state`: as in `client.outcomes`. `writers`: those that count as far as known, null if all do."""

KINDS: Final = {
    "torn": "committed transactions that were shown only in part",
    "hidden": "committed transactions that were not shown",
    "aborted": "shown though aborted, or though their writer did not count",
    "undecided": "shown before they were committed",
    "duplicated": "messages shown twice: the same producer, the same sequence id",
    "lost": "messages outside transactions that were not shown",
    "invented": "messages shown that are not stored like that",
}
"""Kinds of findings with their wording, the most costly for users first."""

FINDING: Final = (
    "kind", "topic", "segment", "position", "txn_id", "producer", "sequence_id", "stored", "shown", "detail",
)  # fmt: skip
"""Columns of a finding. `stored`, `shown`: messages. A transaction's finding has topic, segment and position of its
first wrong entry."""

TOLD: Final = _schema(txn_id=StringType(), writer=StringType(), counts=BooleanType())
"""Writers whose transaction has forgotten which of them count. `counts`: false if each segment of the writer has noted
that it does not."""

OPEN: Final = "it is open"
PENDING: Final = "it was pending in the snapshot"

_ENTRY: Final = ["segment", "ledger_id", "entry_id"]


def findings(judged: DataFrame) -> DataFrame:
    """Returns one row for each fault, with the columns `FINDING`. `judged`: from `with_outcomes`; persist its inputs,
    because it is read three times."""
    return _of_entries(judged).unionByName(_of_transactions(judged)).unionByName(_stored_twice(judged))


def entries_of(stored: DataFrame, shown: DataFrame) -> DataFrame:
    """Each entry, stored (`STORED`) or shown (`SHOWN`), with how many of its messages were shown, and how often."""
    rows = (
        # Messages move once: both aggregations and the join then find an entry's messages in one place. Spark's own
        # plan moves messages once and entries for each other step, and takes 1.5 to 2 times the CPU.
        shown.repartition(*(F.col(name) for name in _ENTRY))
        .groupBy("topic", *_ENTRY, "sequence_id", "txn_id", "producer")
        .agg(F.count("*").alias("times"))
        .groupBy("topic", *_ENTRY)
        .agg(
            F.count("*").alias("distinct"),
            F.sum("times").alias("rows"),
            F.min("sequence_id").alias("first"),
            F.max("sequence_id").alias("last"),
            F.min("txn_id").alias("shown_txn"),
            F.max("txn_id").alias("shown_txn_too"),
            F.count("txn_id").alias("in_txn"),
            F.min("producer").alias("shown_producer"),
            F.max("producer").alias("shown_producer_too"),
        )
    )
    both = stored.alias("kept").join(rows.alias("seen"), _ENTRY, "full_outer")
    last = F.col("kept.sequence_id") + F.col("messages") - 1
    same_txn = F.when(F.col("kept.txn_id").isNull(), F.col("in_txn") == 0).otherwise(
        (F.col("shown_txn") == F.col("kept.txn_id"))
        & (F.col("shown_txn_too") == F.col("kept.txn_id"))
        & (F.col("in_txn") == F.col("distinct"))
    )
    same_producer = (F.col("shown_producer") == F.col("kept.producer")) & (
        F.col("shown_producer_too") == F.col("kept.producer")
    )
    inside = (F.col("first") >= F.col("kept.sequence_id")) & (F.col("last") <= last)
    return both.select(
        F.coalesce("kept.topic", "seen.topic").alias("topic"),
        *_ENTRY,
        F.coalesce("kept.txn_id", "shown_txn").alias("txn_id"),
        F.coalesce("writer", F.lit("")).alias("writer"),
        F.coalesce("kept.producer", "shown_producer").alias("producer"),
        "incarnation",
        F.coalesce("kept.sequence_id", "first").alias("sequence_id"),
        F.coalesce("messages", F.lit(0)).cast("long").alias("stored"),
        # Messages shown beyond what is stored are invented, and must not make up for missing ones elsewhere.
        F.least(F.coalesce("distinct", F.lit(0)), F.coalesce("messages", F.lit(0))).cast("long").alias("shown"),
        F.coalesce("distinct", F.lit(0)).cast("long").alias("distinct"),
        F.coalesce("rows", F.lit(0)).cast("long").alias("rows"),
        F.col("seen.rows").isNotNull().alias("is_shown"),
        F.col("messages").isNotNull().alias("is_stored"),
        F.coalesce(same_txn & same_producer & inside, F.lit(False)).alias("is_same"),
    )


def with_outcomes(entries: DataFrame, known: DataFrame, told: DataFrame) -> DataFrame:
    """Each entry with `due`: whether it was to be shown, by its transaction (`KNOWN`) or else its writer (`TOLD`), null
    if unknown; and `why` it was not."""
    joined = (
        entries.join(known, "txn_id", "left")
        .join(told, ["txn_id", "writer"], "left")
        .withColumns(
            {
                "state": F.coalesce("state", F.lit("UNKNOWN")),
                "writers_known": F.coalesce("writers_known", F.lit(False)),
                "pending": F.coalesce("pending", F.lit(False)),
            }
        )
    )
    # ▲ Checked before a missing list counts as "all writers": the list is null for a forgotten transaction, too.
    counts = F.when(
        F.col("writers_known"), F.col("writers").isNull() | F.array_contains("writers", F.col("writer"))
    ).otherwise(F.col("counts"))
    why = (
        F.when(F.col("txn_id").isNull(), F.lit(None))
        .when(F.col("state") == "ABORTED", F.lit("it was aborted"))
        .when(F.col("state") == "OPEN", F.lit(OPEN))
        .when(F.col("pending"), F.lit(PENDING))
        .when((F.col("state") == "COMMITTED") & ~counts, F.lit("its writer does not count"))
    )
    unknown = F.col("txn_id").isNotNull() & ((F.col("state") != "COMMITTED") | counts.isNull())
    return joined.withColumn("why", why).withColumn(
        "due", F.when(F.col("why").isNotNull(), F.lit(False)).when(unknown, F.lit(None)).otherwise(F.lit(True))
    )


def _position() -> Column:
    return F.concat_ws(":", "ledger_id", "entry_id")


def _of_entries(judged: DataFrame) -> DataFrame:
    """Faults of single entries: invented, lost, or a message shown twice."""
    invented = F.when(~F.col("is_stored"), F.lit("no entry is stored there")).otherwise(
        F.lit("the entry stored there belongs to another transaction or producer, or has other sequence ids")
    )
    lost = F.col("is_stored") & F.col("txn_id").isNull() & (F.col("shown") < F.col("stored"))
    wrong = [
        _wrong("invented", F.col("is_shown") & ~F.col("is_same"), invented),
        _wrong(
            "duplicated",
            F.col("rows") > F.col("distinct"),
            F.format_string("%d messages of one entry were shown %d times in all", "distinct", "rows"),
        ),
        _wrong("lost", lost, F.format_string("%d of %d messages were shown", "shown", "stored")),
    ]
    return (
        judged.withColumn("wrong", F.explode(F.array_compact(F.array(*wrong))))
        .withColumn("position", _position())
        .select("*", "wrong.*")
        .select(*FINDING)
    )


def _wrong(kind: str, condition: Column, detail: Column) -> Column:
    return F.when(condition, F.struct(F.lit(kind).alias("kind"), detail.alias("detail")))


def _of_transactions(judged: DataFrame) -> DataFrame:
    """Finds what was shown and should not be, one finding per transaction and reason; and what is not whole.

    ▲ Over all topics at once: a transaction that is not shown whole is torn, wherever its parts lie. If its outcome or
    its counting writers are unknown, each writer's part must be whole."""
    place = F.struct("topic", *_ENTRY, "producer", "sequence_id")
    missing = F.col("shown") < F.col("stored")
    early = F.col("why").isNotNull()
    kind = (
        F.when(F.col("why").isin(OPEN, PENDING), F.lit("undecided"))
        .when(early, F.lit("aborted"))
        .when(missing & (F.col("shown") > 0), F.lit("torn"))
        .when(missing & F.col("part").isNull(), F.lit("hidden"))
    )
    detail = F.when(early, F.concat(F.lit("shown though "), F.col("why"))).otherwise(
        F.format_string("%d of %d messages were shown, of %d entries", "shown", "stored", "entries")
    )
    return (
        judged.where(F.col("txn_id").isNotNull() & F.when(early, F.col("is_shown")).otherwise(F.col("is_stored")))
        .withColumn("part", F.when(F.col("due").isNull(), F.col("writer")))
        .groupBy("txn_id", "why", "part")
        .agg(
            F.min(F.when(early | missing, place)).alias("place"),
            F.count("*").alias("entries"),
            F.sum("stored").alias("stored"),
            F.sum("shown").alias("shown"),
        )
        .withColumns({"kind": kind, "detail": detail})
        .where(F.col("kind").isNotNull())
        .select("*", "place.*")
        .withColumn("position", _position())
        .select(*FINDING)
    )


def _stored_twice(judged: DataFrame) -> DataFrame:
    """Finds messages stored in two entries that were both shown. ▲ Sequence ids count within one incarnation of a
    producer: a name that is used again begins anew."""
    in_order = Window.partitionBy("producer", "incarnation").orderBy("sequence_id", *_ENTRY)
    before = in_order.rowsBetween(Window.unboundedPreceding, -1)
    return (
        judged.where(F.col("is_shown") & F.col("is_stored"))
        .withColumn("position", _position())
        .withColumn("after", F.col("sequence_id") + F.col("stored"))
        .withColumn("reached", F.max("after").over(before))
        .withColumn("other", F.max_by(F.concat_ws(" at ", "segment", "position"), F.col("after")).over(before))
        .where(F.col("reached") > F.col("sequence_id"))
        .withColumns({"kind": F.lit("duplicated"), "detail": F.concat(F.lit("also shown from "), F.col("other"))})
        .select(*FINDING)
    )
