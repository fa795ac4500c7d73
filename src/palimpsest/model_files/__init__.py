"""Folders of models: found, verified and looked through before anything in them is loaded."""
