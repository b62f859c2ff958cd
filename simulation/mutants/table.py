"""All mutants there are, in the order they are run."""

from __future__ import annotations

from simulation.mutants import (
    acks_in_turns,
    callers,
    careless_callers,
    clients,
    controllers,
    coordinator,
    durability,
    ledger_files,
    metadata,
    pages,
    participants,
    reads,
    record_sizes,
    rows,
    second_tries,
    segments,
    sends,
    space,
    spark,
    times,
    transaction_keys,
    turns,
)
from simulation.mutants.mutant import Mutant

MUTANTS: tuple[Mutant, ...] = (
    *metadata.MUTANTS,
    *coordinator.MUTANTS,
    *second_tries.MUTANTS,
    *transaction_keys.MUTANTS,
    *participants.MUTANTS,
    *segments.MUTANTS,
    *space.MUTANTS,
    *record_sizes.MUTANTS,
    *clients.MUTANTS,
    *reads.MUTANTS,
    *callers.MUTANTS,
    *sends.MUTANTS,
    *careless_callers.MUTANTS,
    *controllers.MUTANTS,
    *ledger_files.MUTANTS,
    *durability.MUTANTS,
    *spark.MUTANTS,
    *times.MUTANTS,
    *pages.MUTANTS,
    *turns.MUTANTS,
    *acks_in_turns.MUTANTS,
    *rows.MUTANTS,
)
