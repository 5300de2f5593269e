"""One function per operation and transaction: read the request, load rows, ask the rules, save, answer."""
