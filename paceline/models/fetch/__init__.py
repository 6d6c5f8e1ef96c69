"""Models from elsewhere: built-in ones, and those of a hub."""
