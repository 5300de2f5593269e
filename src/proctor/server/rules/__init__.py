"""Pure decisions of the server: rows in, changed rows, events and answers out. No I/O, no clock, no Trio."""
