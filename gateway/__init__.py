"""The server's outer wall: sockets, origin checks, headers, the log, and routes that packs register late."""
