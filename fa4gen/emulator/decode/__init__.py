"""From statements to the machine's numbers: registers get slots, opcodes their numeric form."""
