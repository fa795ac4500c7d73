"""Supervised cold start: SFT examples, recorded conversations, imitation of episodes."""
