"""vLLM servers as a sampler: separate processes, queried over HTTP. vLLM itself is never imported."""
