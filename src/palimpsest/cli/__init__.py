"""The command line: one light file per command group. Commands import their work from `app/` when they run."""
