"""The viewer's data, computed from files of runs, evaluations and records; `page/` draws it."""
