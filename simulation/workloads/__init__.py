"""What simulated clients do, each with the judge of what it was promised. Begin with `workload`."""
