"""The processes that hold boxes: standard library only, run by the runner's own interpreter without site-packages.

``main`` is one process per runner. For each box it forks a *holder*, which makes the private mount namespace, the
size-limited tmpfs and the overlay, starts bubblewrap there, and then waits on a socket to the runner. End of file on
that socket, also when the runner was killed with SIGKILL, ends the holder and with it every process and mount of the
box. Nothing is ever mounted in the host's namespace.
"""
