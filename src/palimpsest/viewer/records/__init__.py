"""Files that the viewer reads, possibly while they grow: discovery, episodes, rows and metrics."""
