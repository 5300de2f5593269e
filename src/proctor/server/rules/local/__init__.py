"""Prepared local activities (prepared-local.md): one module for each operation."""
