"""The application: routes, guards, streams and error responses over any `Backend`. Knows no engine."""
