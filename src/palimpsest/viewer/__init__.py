"""What the viewer shows, computed from the files of runs, evaluations and records; `page/` draws it."""
