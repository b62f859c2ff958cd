"""What benchmarks share: clusters of real processes, load, results, and what they were measured on."""
