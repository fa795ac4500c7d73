"""Leagues: memory methods under equal conditions."""
