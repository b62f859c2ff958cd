"""Running many seeds: one scenario, jobs in worker processes, reduction of failures, totals. Begin with `scenario`."""
