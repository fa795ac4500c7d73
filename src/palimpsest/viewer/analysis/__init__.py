"""Analyses of memories and evidence in an episode or a group, independent of files and pages."""
