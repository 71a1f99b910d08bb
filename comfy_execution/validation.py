"""Checking a prompt before it is queued (spec execution.md section 2).

The walk from each output node to its sources uses a stack of its own, so chains of any length will do.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Any

import folder_paths
from comfy_execution import faults, node_check
from comfy_execution.facts import FactsBook, InputSpec, NodeFacts
from comfy_execution.problems import InputRef, cycle_problem, exception_problem, linked, problem, summary
from comfy_execution.types import types_fit

_NODES_PER_TURN = 500  # nodes checked before other requests get a turn on the event loop
_OUTPUTS_AT_ONCE = 1024  # the output nodes, one bit each, whose sources are looked for together
# Node ids that the errors of a prompt list at most, each of the two kinds: the other nodes of a cycle, and the outputs
# that cannot run. Beyond them an error lists only a few, or its size would grow with the square of the prompt's.
MOST_LISTED = 100_000
_FEW = 4


@dataclass(slots=True)
class _Node:
    """What is known about a node that has been looked at."""

    facts: NodeFacts
    errors: list[dict[str, Any]] = field(default_factory=list)
    good: bool = True
    sources: list[str] = field(default_factory=list)


@dataclass(slots=True)
class _Visit:
    """A node on the way from an output: entered, with sources still to be checked."""

    node_id: str
    via: InputRef | None
    spec: InputSpec | None = None
    todo: list[tuple[str, InputRef]] = field(default_factory=list)
    input_types: dict[str, Any] = field(default_factory=dict)


async def validate_prompt(
    prompt_id: str, prompt: Mapping[str, Any], partial_execution_list: Collection[str] | None
) -> tuple[bool, dict[str, Any] | None, list[str], dict[str, Any]]:
    """Check a prompt; constants are converted in place.

    Args:
        partial_execution_list: run only these output nodes; None for all.

    Returns:
        Whether it may be queued, the error if not, the good output nodes in prompt order, and the errors by node.
    """
    book = FactsBook()
    missing = [(node_id, node) for node_id, node in prompt.items() if not book.knows(_class_of(node))]
    if missing:
        return False, _missing_classes(missing), [], {}
    broken = _unusable_class(prompt, book)
    if broken is not None:
        return False, broken, [], {}
    if folder_paths.listing_would_take_long():
        await asyncio.to_thread(book.look_up, {node["class_type"] for node in prompt.values()})
    outputs = [
        node_id
        for node_id, node in prompt.items()
        if book[node["class_type"]].is_output and (partial_execution_list is None or node_id in partial_execution_list)
    ]
    if not outputs:
        return False, problem("prompt_no_outputs", _no_such_outputs(prompt, partial_execution_list)), [], {}
    walk = _Walk(prompt, book)
    for output in outputs:
        await walk.check(output)
    good = [output for output in outputs if walk.nodes[output].good]
    node_errors = await walk.report([output for output in outputs if not walk.nodes[output].good])
    if good:
        return True, None, good, node_errors
    own = [e for output in outputs for e in walk.nodes[output].errors]
    details = "\n".join(f"{error['message']}: {error['details']}" for error in own)
    # `details` speaks of the output nodes only, which is what clients know; the summary, of whatever is wrong.
    info = {"summary": summary(node_errors)}
    return False, problem("prompt_outputs_failed_validation", details, info), [], node_errors


def _class_of(node: Any) -> Any:
    return node.get("class_type") if isinstance(node, dict) else None


def _missing_classes(missing: list[tuple[str, Any]]) -> dict[str, Any]:
    """The error names the first of them; if there are more, `extra_info.missing` has all."""
    found = []
    for node_id, node in missing:
        class_type = _class_of(node)
        meta = node.get("_meta") if isinstance(node, dict) else None
        title = meta.get("title") if isinstance(meta, dict) else None
        found.append(
            {"node_id": node_id, "class_type": class_type, "node_title": class_type if title is None else title}
        )
    first = found[0]
    if first["class_type"] is None:
        message = "A node has no class_type"
    else:
        message = f"There is no node class named {first['class_type']!r}; is the pack that brings it installed?"
    info = first if len(found) == 1 else {**first, "missing": found}
    return problem("missing_node_type", f"Node ID '#{first['node_id']}'", info, message)


def _unusable_class(prompt: Mapping[str, Any], book: FactsBook) -> dict[str, Any] | None:
    """The error of the first node whose class cannot be asked what it is, if there is one."""
    for node_id, node in prompt.items():
        try:
            book[node["class_type"]]
        except BaseException as error:
            found = exception_problem(error, None)
            found["details"] = f"Node ID '#{node_id}', class {node['class_type']}: {found['details']}"
            found["extra_info"] |= {"node_id": node_id, "class_type": node["class_type"]}
            return found
    return None


def _no_such_outputs(prompt: Mapping[str, Any], targets: Collection[str] | None) -> str:
    """Why nothing is left to run if only some output nodes were asked for."""
    if targets is None:
        return ""
    if not targets:
        return "partial_execution_targets is empty"
    unknown = [repr(target) for target in targets if target not in prompt]
    others = [repr(target) for target in targets if target in prompt]
    told = [f"not in the prompt: {', '.join(unknown)}"] if unknown else []
    told += [f"no output node: {', '.join(others)}"] if others else []
    return f"partial_execution_targets: {'; '.join(told)}"


def _inputs_of(node: Mapping[str, Any]) -> dict[str, Any]:
    inputs = node.get("inputs")
    return inputs if isinstance(inputs, dict) else {}


class _Walk:
    """Depth-first through a prompt; each node is checked once, however many outputs need it."""

    def __init__(self, prompt: Mapping[str, Any], book: FactsBook) -> None:
        self.prompt = prompt
        self.book = book
        self.nodes: dict[str, _Node] = {}
        self._done: dict[str, None] = {}  # in the order in which they were: each after its sources
        self._checked = 0
        self._room = MOST_LISTED  # for nodes of cycles

    async def check(self, output: str) -> None:
        """Check an output node and everything above it."""
        if output in self._done:
            return
        path = [_Visit(output, None)]
        on_path = {output: 0}
        in_no_cycle = [0]  # places on the path of nodes that are in no cycle that is known
        self._enter(path[0])
        while path:
            visit = path[-1]
            if visit.todo:
                source, via = visit.todo.pop()
                if source in on_path:
                    self._cycle(path, on_path[source], in_no_cycle)
                elif source not in self._done:
                    step = _Visit(source, via)
                    on_path[source] = len(path)
                    in_no_cycle.append(len(path))
                    path.append(step)
                    self._enter(step)
                continue
            await self._leave(visit)
            path.pop()
            del on_path[visit.node_id]
            if in_no_cycle and in_no_cycle[-1] == len(path):
                in_no_cycle.pop()
            self._checked += 1
            if self._checked % _NODES_PER_TURN == 0:
                await asyncio.sleep(0)

    def _enter(self, visit: _Visit) -> None:
        """Check links and constants of a node; note which sources to check before its own check."""
        sent = self.prompt[visit.node_id]
        node = self.nodes[visit.node_id] = _Node(self.book[sent["class_type"]])
        try:
            inputs = _inputs_of(sent)
            visit.spec = node.facts.inputs(inputs)
            spec = visit.spec
            constants = []
            for name in spec.declared():
                if name not in inputs:
                    if name in spec.required:
                        ref = InputRef(name, spec.find(name))
                        node.errors.append(problem("required_input_missing", name.rsplit(".", 1)[-1], ref.info()))
                elif not linked(inputs[name]):
                    constants.append(name)
                elif not self._link(visit, node, InputRef(name, spec.find(name)), inputs[name]):
                    return
            if constants:
                node_check.constants(node.facts, spec, constants, inputs, node.errors)
            visit.todo.reverse()  # taken from the end: sources are checked in the order of the inputs
        except BaseException as error:  # of the class, which may as well try to end the process
            self._fail(visit, error)

    def _link(self, visit: _Visit, node: _Node, ref: InputRef, link: list) -> bool:
        """Check a link's shape and type. Returns whether the node's other inputs are worth checking."""
        if len(link) != 2:
            node.errors.append(problem("bad_linked_input", ref.name, ref.info(received_value=link)))
            return True
        source, slot = link
        if not isinstance(source, str) or source not in self.prompt:
            self._fail(visit, KeyError(f"Input {ref.name!r} is linked to node {source!r}, which is not in the prompt"))
            return False
        return_types = self.book[self.prompt[source]["class_type"]].return_types
        try:
            if type(slot) is not int or slot < 0:
                raise IndexError
            received = return_types[slot]  # not by its length: packs have tuples that answer for every slot
        except IndexError:
            text = f"Input {ref.name!r} is linked to output {slot!r} of node {source}, which has {len(return_types)}"
            self._fail(visit, IndexError(text))
            return False
        visit.input_types[ref.name] = received
        if not types_fit(received, ref.type) and not node.facts.checks_types_itself:
            shown = received if isinstance(received, str) else list(received)
            details = f"{ref.name}, received_type({shown}) mismatch input_type({ref.type})"
            info = ref.info(received_type=received, linked_node=link)
            node.errors.append(problem("return_type_mismatch", details, info))
            return True
        node.sources.append(source)
        visit.todo.append((source, ref.followed(link)))
        return True

    async def _leave(self, visit: _Visit) -> None:
        node = self.nodes[visit.node_id]
        if visit.spec is not None:
            try:
                if node.facts.own_check_parameters is not None:
                    inputs = _inputs_of(self.prompt[visit.node_id])
                    await node_check.own_check(
                        visit.node_id, node.facts, visit.spec, inputs, visit.input_types, node.errors
                    )
            except BaseException as error:
                if faults.ends_the_caller(error):
                    raise
                self._fail(visit, error)
        node.good = not node.errors and all(self.nodes[source].good for source in node.sources)
        self._done[visit.node_id] = None

    def _fail(self, visit: _Visit, error: BaseException) -> None:
        """An exception takes the place of all that was found out about the node."""
        node = self.nodes[visit.node_id]
        node.errors = [exception_problem(error, visit.via)]
        node.sources = []
        visit.todo = []
        visit.spec = None

    def _cycle(self, path: list[_Visit], start: int, in_no_cycle: list[int]) -> None:
        """The last node on the path is linked to the one at `start`; those in between learn it if it is their first."""
        length = len(path) - start
        while in_no_cycle and in_no_cycle[-1] >= start:
            place = in_no_cycle.pop() - start
            shown = min(length, max(self._room, _FEW))
            self._room -= shown
            ids = [path[start + (place + step) % length].node_id for step in range(shown)]
            turn = [(node_id, self.prompt[node_id]["class_type"]) for node_id in ids]
            self.nodes[ids[0]].errors.append(cycle_problem(turn, length))

    async def report(self, bad_outputs: list[str]) -> dict[str, Any]:
        """Errors by node, with the outputs that cannot run because of them."""
        dependents: dict[str, list[str]] = {}
        room = MOST_LISTED
        bad = [node_id for node_id in reversed(self._done) if not self.nodes[node_id].good]
        for first in range(0, len(bad_outputs), _OUTPUTS_AT_ONCE):
            some = bad_outputs[first : first + _OUTPUTS_AT_ONCE]
            for node_id, needed_by in (await self._needed_by(some, bad)).items():
                if not self.nodes[node_id].errors:
                    continue
                listed = dependents.setdefault(node_id, [])
                while needed_by and (room > 0 or len(listed) < _FEW):
                    lowest = needed_by & -needed_by
                    listed.append(some[lowest.bit_length() - 1])
                    needed_by ^= lowest
                    room -= 1
        return {
            node_id: {
                "errors": self.nodes[node_id].errors,
                "dependent_outputs": dependents[node_id],
                "class_type": self.prompt[node_id]["class_type"],
            }
            for node_id in self.nodes
            if node_id in dependents
        }

    async def _needed_by(self, outputs: list[str], bad: list[str]) -> dict[str, int]:
        """Which of these outputs need a bad node: a number whose bit `i` stands for `outputs[i]`.

        bad: all bad nodes, each before its sources. Only links that close a cycle lead back: those take another round.
        """
        needed_by = {output: 1 << bit for bit, output in enumerate(outputs)}
        grown = True
        while grown:
            grown, passed = False, set()
            for count, node_id in enumerate(bad):
                if count % _NODES_PER_TURN == 0:
                    await asyncio.sleep(0)
                passed.add(node_id)
                mine = needed_by.get(node_id, 0)
                if not mine:
                    continue
                for source in self.nodes[node_id].sources:
                    known = needed_by.get(source, 0)
                    if mine | known != known and not self.nodes[source].good:
                        needed_by[source] = mine | known
                        grown |= source in passed
        return needed_by
