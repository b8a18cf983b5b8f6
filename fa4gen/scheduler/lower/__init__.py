"""From a schedule to each role's statements: the only place that chooses instructions."""
