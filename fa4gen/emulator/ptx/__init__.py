"""PTX text as data: a module of entries, parameters, symbols and statements."""
