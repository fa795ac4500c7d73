"""Evidence retained, lost and hallucinated by a memory, per turn and per episode."""
