"""Folders of models: found, verified and inspected before anything in them is loaded."""
