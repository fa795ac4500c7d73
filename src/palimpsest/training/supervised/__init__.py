"""Supervised cold start: lessons, recorded conversations, imitation of episodes."""
