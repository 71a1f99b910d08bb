"""Where the tokens of reference images go among the positions of the image being made.

Sources: Labs et al. 2025, "FLUX.1 Kontext" (an index axis set apart from rows and columns); Wu et al. 2025, "Less-to-
More Generalization" (UNO: references along the diagonal).

Methods:

* `offset`: all at index 1, each beside or below the ones before it, on the side that keeps the whole smaller;
* `index`: each starts at row 0, column 0, with an index of its own (1, 2, ..., times `index_scale`);
* `uxo`: at the image's own index, behind the lower right corner of everything before it;
* `index_timestep_zero`: placed as `index`; the model also conditions these tokens on timestep 0, since they are
  free of noise.
"""

from __future__ import annotations

from collections.abc import Sequence

TIMESTEP_ZERO = "index_timestep_zero"
METHODS = ("offset", "index", "uxo", "uno", TIMESTEP_ZERO)


class UnknownReferenceMethod(ValueError):
    """A placement that is none of METHODS."""


def place_references(
    image: Sequence[int],
    references: Sequence[Sequence[int]],
    method: str = "offset",
    patch: int = 2,
    index_scale: float = 1.0,
) -> list[tuple[float, int, int]]:
    """Index, row and column (the latter two in patches) of the first token of each reference.

    image, references: (height, width) in latent cells. Raises UnknownReferenceMethod.
    """
    if method not in METHODS:
        raise UnknownReferenceMethod(f"reference method {method!r} is none of {', '.join(METHODS)}")
    height, width = (0, 0) if method == "offset" else image
    places: list[tuple[float, int, int]] = []
    for number, (ref_height, ref_width) in enumerate(references, start=1):
        if method in ("index", TIMESTEP_ZERO):
            places.append((number * index_scale, 0, 0))
        elif method == "offset":
            below = height + ref_height <= width + ref_width
            row, column = (height, 0) if below else (0, width)
            height, width = max(height, row + ref_height), max(width, column + ref_width)
            places.append((1, _patches(row, patch), _patches(column, patch)))
        else:
            places.append((0, _patches(height, patch), _patches(width, patch)))
            height, width = height + ref_height, width + ref_width
    return places


def _patches(cells: int, patch: int) -> int:
    """Patches that `cells` cells fill, the half-full one included."""
    return (cells + patch // 2) // patch
