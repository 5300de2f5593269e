"""The tables of the database, by subject: each module reads and writes the rows of one. `Transaction` joins them."""
