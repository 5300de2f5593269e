"""HTTP towards the server; the only package that imports the HTTP client."""
