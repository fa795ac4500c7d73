"""A language model as a grader: verdicts, its client, and probes that measure how far it can be believed."""
