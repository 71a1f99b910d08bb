"""Names under which packs import solvers."""
