"""Servers of vLLM as a sampler: processes of their own that are asked over HTTP. vLLM itself is never imported."""
