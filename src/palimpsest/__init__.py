"""palimpsest: train and evaluate language-model agents that manage their own memory."""

__version__ = "0.1.0"
