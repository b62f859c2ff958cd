"""The work of simulated clients, each kind with a judge of its promises. Begin with `workload`."""
