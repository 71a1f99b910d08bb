"""Parts of the server that packs import by the names of the reference."""
