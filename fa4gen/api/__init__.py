"""What users call, one file for each: `attention`, flash-attn's entry points, sdpa, `session`."""
