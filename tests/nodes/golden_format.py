# ruff: noqa
# The loader and comparer that came with the recordings, unchanged but for the names of the files.
"""Loader and comparer for the node goldens (see README.md). Needs torch and safetensors only.

    g = Goldens(folder)
    for case in g.cases:
        prompt, observed = g.prompt(case)        # nodes in the wire format; sources are links to "in:<name>"
        values = g.source_values(case)           # {"in:<name>": [value, ...]}: what those source nodes give out
        ... run it, collect for every link in `observed` the list of values the engine holds in that slot ...
        problems = compare(case, g, slots, ui=..., error=..., validation=...)

`objects` maps tags ("$vae", "$mesh", ...) to factories that build your own classes from the plain dict;
`plain` turns your objects back into the tagged form (return the value itself for everything else).
"""

import json
import math
import os
import re

import torch

from tests.recorded_files import load_json, load_tensors

TAGS = ("$voxel", "$mesh", "$splat", "$clip_vision_output", "$vae", "$clip_vision", "$svg")
LOOSE_ERRORS = ("RuntimeError", "kornia.", "av.", "simpleeval.", "Exception")


class Goldens:
    def __init__(self, folder, objects=None, inputs_folder=None):
        src = inputs_folder or folder
        self.objects = objects or {}
        self.cases = load_json(os.path.join(folder, "cases.json"))
        with open(os.path.join(src, "inputs.json"), encoding="utf-8") as f:
            self.inputs = json.load(f)
        self.input_tensors = load_tensors(os.path.join(src, "inputs.safetensors"))
        self.tensors = {}
        for name in sorted(os.listdir(folder)):
            if name.startswith("outputs-"):
                self.tensors.update(load_tensors(os.path.join(folder, name.removesuffix(".gz"))))

    def decode(self, v, tensors=None):
        """Tagged JSON -> Python values (fresh tensors on every call)."""
        t = self.tensors if tensors is None else tensors
        if isinstance(v, list):
            return [self.decode(x, t) for x in v]
        if not isinstance(v, dict):
            return v
        if "$t" in v:
            x = t[v["$t"]].clone()
            if v.get("pack") == "u8/255":
                return x.float() / 255
            return x.float() if "pack" in v else x
        if "$fill" in v:
            return torch.full(v["shape"], v["$fill"], dtype=getattr(torch, v["dtype"]))
        if "$tuple" in v:
            return tuple(self.decode(x, t) for x in v["$tuple"])
        if "$f" in v:
            return float(v["$f"])
        for tag in TAGS:
            if tag in v and tag in self.objects:
                return self.objects[tag](self.decode(v[tag], t))
        return {k: self.decode(x, t) for k, x in v.items()}

    def input(self, name):
        return self.decode(self.inputs[name], self.input_tensors)

    def _walk(self, case):
        yield "t", {"class_type": case["node"], "inputs": case["inputs"]}
        yield from (case.get("graph") or {}).items()

    def prompt(self, case):
        """(nodes, observed links). A source value {"$in": name or [names]} becomes the link ["in:<name,...>", 0]."""
        prompt = {}
        for node_id, node in self._walk(case):
            ins = {
                k: ([source_id(v["$in"]), 0] if isinstance(v, dict) and "$in" in v else v)
                for k, v in node["inputs"].items()
            }
            prompt[node_id] = {"class_type": node["class_type"], "inputs": ins}
        return prompt, case.get("observe") or [["t", i] for i in range(case["slots"])]

    def source_values(self, case):
        """Values of every source node: a list that the engine must treat as an output list."""
        out = {}
        for _, node in self._walk(case):
            for v in node["inputs"].values():
                if isinstance(v, dict) and "$in" in v:
                    names = v["$in"] if isinstance(v["$in"], list) else [v["$in"]]
                    out[source_id(v["$in"])] = [self.input(n) for n in names]
        return out


def source_id(names):
    return "in:" + (",".join(names) if isinstance(names, list) else names)


def same(want, got, tol, g, where="", out=None):
    """Compare one tagged value with a plain value; returns the list of differences."""
    out = [] if out is None else out
    if isinstance(want, dict) and ("$t" in want or "$fill" in want):
        if not isinstance(got, torch.Tensor):
            return out + [f"{where}: tensor expected, got {type(got).__name__}"]
        w = g.decode(want)
        shape = list(want.get("shape") or w.shape)
        if list(got.shape) != shape:
            return out + [f"{where}: shape {list(got.shape)}, expected {shape}"]
        if got.dtype != getattr(torch, want["dtype"]):
            out.append(f"{where}: dtype {got.dtype}, expected {want['dtype']}")
        x = got.detach().cpu()
        if "stride" in want:
            x = x.flatten()[:: want["stride"]]
        if w.numel() and w.is_floating_point():
            bad = torch.isnan(w) != torch.isnan(x.float())
            diff = (w.double() - x.double()).nan_to_num(0, 0, 0).abs()
            if bool(bad.any()) or diff.max().item() > tol:
                out.append(f"{where}: max difference {diff.max().item():.3g} (tolerance {tol:g})")
        elif w.numel() and not torch.equal(w, x.to(w.dtype)):
            d = (w.double() - x.double()).abs().max().item()
            if not (w.dtype == torch.uint8 and d <= max(1, tol * 255)) and d > tol:
                out.append(f"{where}: integer values differ by up to {d:g}")
        return out
    if isinstance(want, dict) and "$f" in want:
        ok = isinstance(got, float) and (got == float(want["$f"]) or (math.isnan(got) and want["$f"] == "nan"))
        return out if ok else out + [f"{where}: {got!r}, expected {want['$f']}"]
    if isinstance(want, dict) and "$tuple" in want:
        return same(want["$tuple"], list(got) if isinstance(got, (list, tuple)) else got, tol, g, where, out)
    if isinstance(want, dict) and "$object" in want:
        return out
    if isinstance(want, dict):
        if not isinstance(got, dict):
            return out + [f"{where}: dict expected, got {type(got).__name__}"]
        if set(want) != set(got):
            out.append(f"{where}: keys {sorted(map(str, got))}, expected {sorted(want)}")
        for k in want:
            if k in got:
                out.extend(same(want[k], got[k], tol, g, f"{where}.{k}"))
        return out
    if isinstance(want, list):
        if not isinstance(got, (list, tuple)) or len(got) != len(want):
            return out + [
                f"{where}: list of {len(want)} expected, got {type(got).__name__} {len(got) if hasattr(got, '__len__') else ''}"
            ]
        for i, (a, b) in enumerate(zip(want, got)):
            out.extend(same(a, b, tol, g, f"{where}[{i}]"))
        return out
    if isinstance(want, bool) or want is None or isinstance(want, str):
        if isinstance(want, str) and "?????" in want and isinstance(got, str):
            return (
                out
                if got == want or re.fullmatch(re.escape(want).replace(r"\?\?\?\?\?", "[a-z]{5}"), got)
                else out + [f"{where}: {got!r}"]
            )
        return out if type(got) is type(want) and got == want else out + [f"{where}: {got!r}, expected {want!r}"]
    if isinstance(want, int):
        return (
            out
            if isinstance(got, int) and not isinstance(got, bool) and got == want
            else out + [f"{where}: {got!r}, expected {want!r}"]
        )
    if (
        not isinstance(got, (int, float))
        or isinstance(got, bool)
        or abs(got - want) > max(tol, 1e-6) * max(1, abs(want))
    ):
        return out + [f"{where}: {got!r}, expected {want!r}"]
    return out


def compare(case, g, slots=None, ui=None, error=None, validation=None, plain=lambda v: v):
    """slots: for every observed link the list of values; error: type name of the exception that the executor reports;
    validation: list of {"type", "input"} of the failing tested node. Returns a list of problems (empty = passed)."""
    if "validation_errors" in case:
        want = {(e["type"], e["input"]) for e in case["validation_errors"] if e["node"] == "t"}
        have = {(e["type"], e["input"]) for e in validation or []}
        return [] if want <= have else [f"validation {sorted(have, key=str)}, expected {sorted(want, key=str)}"]
    if validation:
        return [f"unexpected validation errors {validation}"]
    if "error" in case:
        if error is None:
            return [f"expected {case['error']['type']}, got a result"]
        kind = case["error"]["type"]
        return [] if error == kind or kind.startswith(LOOSE_ERRORS) else [f"error {error}, expected {kind}"]
    if error is not None:
        return [f"unexpected error {error}"]
    out = []
    for i, want in enumerate(case["outputs"]):
        got = [plain(v) for v in slots[i]] if slots[i] is not None else None
        if isinstance(want, dict) and "$list" in want:
            if want["$list"] is None:
                if got is not None:
                    out.append(f"out{i}: nothing expected")
            else:
                out.extend(same(want["$list"], got, case["tol"], g, f"out{i}"))
        elif got is None or len(got) != 1:
            out.append(f"out{i}: one value expected")
        else:
            out.extend(same(want, got[0], case["tol"], g, f"out{i}"))
    if "ui" in case and ui is not None:
        out.extend(same(case["ui"], json_ready(ui), case["tol"], g, "ui"))
    return out


def json_ready(v):
    """What the wire would carry: tuples become lists; tensors stay."""
    if isinstance(v, dict):
        return {k: json_ready(x) for k, x in v.items()}
    if isinstance(v, (list, tuple)):
        return [json_ready(x) for x in v]
    return v
