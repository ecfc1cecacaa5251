"""Which block size and which load pay on this machine: costs measured, speed-ups computed."""
