"""The bodies of `caisson-run`'s commands: they join the parts and print. Each returns the exit code."""
