"""Grades: string matchers over one extraction code, for training and evaluation alike."""
