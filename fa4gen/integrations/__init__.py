"""Where other libraries take our attention as theirs; each file needs its own optional library."""
