"""Module names under which old packs look for nodes. Everything here is re-exported from `nodes`."""
