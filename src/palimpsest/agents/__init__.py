"""An agent: a policy fitted to a model's window, its roles, its engine."""
