"""Text to token ids and back: safe encoding, prompt templates, answer extraction and normalization."""
