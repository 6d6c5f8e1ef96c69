"""One module per published layout of draft heads; each converts files to a `HeadRecord` and, if supported, back."""
