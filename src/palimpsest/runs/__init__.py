"""Run folders, checkpoints, locks, resume rules, and the driver that carries a job through them."""
