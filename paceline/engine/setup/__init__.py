"""From a configuration to an engine that is ready: load, build, measure passes and warm up."""
