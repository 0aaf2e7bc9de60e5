"""Making a draft for a target, from the target alone."""
