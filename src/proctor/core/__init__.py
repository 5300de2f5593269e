"""The pure core: rules as plain functions and frozen data. No I/O, no Trio, no clock, no randomness."""
