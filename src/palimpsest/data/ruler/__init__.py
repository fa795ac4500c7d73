"""RULER's thirteen tasks (arXiv 2404.06654), generated."""
