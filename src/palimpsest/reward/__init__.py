"""Graders and rewards with one extraction of answers, for training and evaluation."""
