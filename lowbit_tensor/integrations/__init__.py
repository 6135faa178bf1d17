"""Other libraries and their files. Each module imports its library inside functions, so importing it never fails."""
