"""Files that the viewer reads: which there are, their episodes, rows and metrics, while they may still grow."""
