"""Code of the benchmarks that run for minutes to hours; it imports torch."""
