"""Python functions on scores and indices: traced, simplified, interpreted, differentiated."""
