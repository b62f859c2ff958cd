"""All mutants there are, in the order they are run."""

from __future__ import annotations

from simulation.mutants import (
    callers,
    careless_callers,
    clients,
    controllers,
    coordinator,
    ledger_files,
    metadata,
    participants,
    reads,
    record_sizes,
    rows,
    segments,
    sends,
    space,
    spark,
    times,
    transaction_keys,
)
from simulation.mutants.mutant import Mutant

MUTANTS: tuple[Mutant, ...] = (
    *metadata.MUTANTS,
    *coordinator.MUTANTS,
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
    *spark.MUTANTS,
    *times.MUTANTS,
    *rows.MUTANTS,
)
