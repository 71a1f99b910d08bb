"""Whether `comfy.cli_args` reads the process's command line.

Off by default, so that importing the package from a script or a test never eats that program's arguments;
`main.py` switches it on.
"""

args_parsing = False


def enable_args_parsing(enable: bool = True) -> None:
    """Let the first import of `comfy.cli_args` parse `sys.argv`."""
    global args_parsing
    args_parsing = enable
