"""All mutants there are, in the order they are run."""

from __future__ import annotations

from simulation.mutants import clients, coordinator, metadata, participants, segments, transaction_keys
from simulation.mutants.mutant import Mutant

MUTANTS: tuple[Mutant, ...] = (
    *metadata.MUTANTS,
    *coordinator.MUTANTS,
    *transaction_keys.MUTANTS,
    *participants.MUTANTS,
    *segments.MUTANTS,
    *clients.MUTANTS,
)
