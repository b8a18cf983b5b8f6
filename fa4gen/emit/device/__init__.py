"""Device functions: ordinary Python, copied as text into the head of generated kernels."""
