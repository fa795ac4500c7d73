"""A language model as a grader: verdicts, its client, and probes that measure its reliability."""
