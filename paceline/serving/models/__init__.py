"""The models that a process serves, and the jobs that they are given. Knows no HTTP."""
