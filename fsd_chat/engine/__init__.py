"""The process that owns the models, and the protocol spoken with it."""
