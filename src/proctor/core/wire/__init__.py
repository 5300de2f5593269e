"""What the server's answers must look like, one module per endpoint family; nothing is built on a breach."""
