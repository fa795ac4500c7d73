"""`palimpsest quickstart`: train, evaluate in worker processes, report."""
