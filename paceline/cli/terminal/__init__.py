"""What is read from and written to the terminal: streams, tables, coloured text, edited lines."""
