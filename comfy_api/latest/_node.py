"""The base class of schema based nodes, and what they return (spec node-api.md 3.1)."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any

from comfy_api.internal import ResolvedInputs, _ComfyNodeInternal, _NodeOutputInternal, classproperty
from comfy_api.latest._dynamic import resolve, sections
from comfy_api.latest._schema import HiddenHolder, Schema


class NodeOutput(_NodeOutputInternal):
    """What a node returns: one value per output, and what else there is.

    Args:
        ui: UI data: a dict, or one of the helpers in `ui`.
        expand: a graph; the values may then be links into it.
        block_execution: block every output with this message.
    """

    def __init__(
        self,
        *args: Any,
        ui: Any = None,
        expand: dict | None = None,
        block_execution: str | None = None,
    ) -> None:
        self.args = args
        self.ui = ui
        self.expand = expand
        self.block_execution = block_execution

    @property
    def result(self) -> tuple | None:
        """The values; None when there are none."""
        return self.args if self.args else None

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> NodeOutput:
        """From a V1 dict with any of `result`, `ui`, `expand`."""
        result = data.get("result", ())
        values = result if isinstance(result, tuple | list) else (result,)
        return cls(*values, ui=data.get("ui"), expand=data.get("expand"))

    def __getitem__(self, index: int) -> Any:
        return self.args[index]


class _LockedType(type):
    """The type of the class clones that methods get: nothing can be assigned to them."""

    def __setattr__(cls, name: str, value: Any) -> None:
        raise AttributeError(f"Cannot set {name!r} on the class of a running node; a node keeps no state")

    def __delattr__(cls, name: str) -> None:
        raise AttributeError(f"Cannot delete {name!r} from the class of a running node; a node keeps no state")


class _ComfyNodeBaseInternal(_ComfyNodeInternal):
    """What the engine and the ecosystem read from a node class, all of it derived from the schema."""

    RELATIVE_PYTHON_MODULE = None
    hidden: HiddenHolder = HiddenHolder()

    # --- to be written by nodes --------------------------------------------------------------------------

    @classmethod
    def define_schema(cls) -> Schema:
        """The node's schema; asked for anew at each use, so that choices may change."""
        raise NotImplementedError(f"{cls.__name__} does not define a schema")

    @classmethod
    def execute(cls, **kwargs: Any) -> NodeOutput:
        """Do the work; may be a coroutine."""
        raise NotImplementedError(f"{cls.__name__} does not define execute")

    @classmethod
    def validate_inputs(cls, **kwargs: Any) -> bool | str:
        """The node's own check of its inputs; counts only if overridden."""
        raise NotImplementedError

    @classmethod
    def fingerprint_inputs(cls, **kwargs: Any) -> Any:
        """A value that changes when what the inputs stand for has changed; counts only if overridden."""
        raise NotImplementedError

    @classmethod
    def check_lazy_status(cls, **kwargs: Any) -> list[str]:
        """The names of the lazy inputs that are needed; counts only if overridden."""
        raise NotImplementedError

    # --- for the engine ----------------------------------------------------------------------------------

    @classmethod
    def GET_SCHEMA(cls) -> Schema:
        """The schema, completed and checked."""
        schema = cls.define_schema()
        schema.finalize()
        schema.validate()
        return schema

    @classmethod
    def RESOLVE_INPUTS(cls, sent: Mapping[str, Any], schema: Schema | None = None) -> ResolvedInputs:
        """The declared inputs, given what was sent."""
        schema = cls.GET_SCHEMA() if schema is None else schema
        return resolve(schema.inputs, schema.hidden_names(), sent)

    @classmethod
    def OVERRIDDEN(cls, name: str) -> Callable | None:
        """A method, if a class below this one defines it."""
        for owner in cls.__mro__:
            if name in owner.__dict__:
                return None if owner is _ComfyNodeBaseInternal else getattr(cls, name)
        return None

    @classmethod
    def PREPARE_CLASS_CLONE(cls, hidden: Mapping[str, Any] | None = None) -> type:
        """The class that a method gets as `cls`: a locked one, which knows the hidden inputs."""
        members = {"hidden": HiddenHolder(dict(hidden or {})), "__module__": cls.__module__, "ORIGINAL": cls}
        kind = _LockedType if type(cls) is type else type("_Locked", (_LockedType, type(cls)), {})
        return kind.__new__(kind, cls.__name__, (cls,), members)

    @classmethod
    def EXECUTE_NORMALIZED(cls, *args: Any, **kwargs: Any) -> NodeOutput:
        """`execute`, with its answer in one form."""
        return cls.NORMALIZED(cls.execute(*args, **kwargs))

    @classmethod
    async def EXECUTE_NORMALIZED_ASYNC(cls, *args: Any, **kwargs: Any) -> NodeOutput:
        """`execute` of a coroutine node, with its answer in one form."""
        return cls.NORMALIZED(await cls.execute(*args, **kwargs))

    @classmethod
    def NORMALIZED(cls, answer: Any) -> NodeOutput:
        """An answer of `execute` as a NodeOutput.

        Raises:
            TypeError: it is nothing that a node may return.
            ValueError: it holds a graph, and the schema does not allow that.
        """
        from comfy_execution.graph import ExecutionBlocker

        if answer is None:
            output = NodeOutput()
        elif isinstance(answer, _NodeOutputInternal):
            output = answer
        elif isinstance(answer, ExecutionBlocker):
            output = NodeOutput()
            output.blocker = answer
        elif isinstance(answer, dict):
            output = NodeOutput.from_dict(answer)
        elif isinstance(answer, tuple):
            output = NodeOutput(*answer)
        else:
            raise TypeError(f"Invalid return type from node: {type(answer)}")
        if output.expand is not None and not cls.GET_SCHEMA().enable_expand:
            raise ValueError(f"Node {cls.__name__} returned a graph, but its schema does not say enable_expand=True")
        return output

    @staticmethod
    def NORMALIZED_RESULT(output: Any) -> Any:
        """A NodeOutput in the form of a V1 answer."""
        from comfy_execution.graph import ExecutionBlocker

        if not isinstance(output, _NodeOutputInternal):
            return output
        ui = output.ui
        if ui is not None and not isinstance(ui, dict):
            ui = ui.as_dict()
        result: Any = output.args
        if output.block_execution is not None:
            result = ExecutionBlocker(output.block_execution)
        elif getattr(output, "blocker", None) is not None:
            result = output.blocker
        return {"result": result, "ui": ui, "expand": output.expand}

    @classmethod
    def GET_NODE_INFO_V1(cls) -> dict[str, Any]:
        """The /object_info entry."""
        return cls.GET_SCHEMA().get_v1_info(cls)

    # --- read like the attributes of a V1 class -----------------------------------------------------------

    @classmethod
    def INPUT_TYPES(cls) -> dict[str, dict[str, Any]]:
        """Inputs as a V1 class would declare them."""
        schema = cls.GET_SCHEMA()
        shown: dict[str, dict[str, Any]] = sections(schema.inputs)
        if schema.hidden:
            shown["hidden"] = schema.hidden_names()
        return shown

    @classproperty
    def SCHEMA(cls) -> Schema:
        return cls.GET_SCHEMA()

    @classproperty
    def FUNCTION(cls) -> str:
        return "EXECUTE_NORMALIZED_ASYNC" if inspect.iscoroutinefunction(cls.execute) else "EXECUTE_NORMALIZED"

    @classproperty
    def RETURN_TYPES(cls) -> list[str]:
        return [output.get_io_type() for output in cls.GET_SCHEMA().outputs]

    @classproperty
    def RETURN_NAMES(cls) -> list[str]:
        return cls.GET_SCHEMA().output_names()

    @classproperty
    def OUTPUT_IS_LIST(cls) -> list[bool]:
        return [bool(output.is_output_list) for output in cls.GET_SCHEMA().outputs]

    @classproperty
    def OUTPUT_TOOLTIPS(cls) -> list[str | None]:
        return [output.tooltip for output in cls.GET_SCHEMA().outputs]

    @classproperty
    def CATEGORY(cls) -> str:
        return cls.GET_SCHEMA().category

    @classproperty
    def DESCRIPTION(cls) -> str:
        return cls.GET_SCHEMA().description

    @classproperty
    def OUTPUT_NODE(cls) -> bool:
        return cls.GET_SCHEMA().is_output_node

    @classproperty
    def INPUT_IS_LIST(cls) -> bool:
        return cls.GET_SCHEMA().is_input_list

    @classproperty
    def DEPRECATED(cls) -> bool:
        return cls.GET_SCHEMA().is_deprecated

    @classproperty
    def EXPERIMENTAL(cls) -> bool:
        return cls.GET_SCHEMA().is_experimental

    @classproperty
    def DEV_ONLY(cls) -> bool:
        return cls.GET_SCHEMA().is_dev_only

    @classproperty
    def API_NODE(cls) -> bool:
        return cls.GET_SCHEMA().is_api_node

    @classproperty
    def NOT_IDEMPOTENT(cls) -> bool:
        return cls.GET_SCHEMA().not_idempotent

    @classproperty
    def HAS_INTERMEDIATE_OUTPUT(cls) -> bool:
        return cls.GET_SCHEMA().has_intermediate_output

    @classproperty
    def ACCEPT_ALL_INPUTS(cls) -> bool:
        return cls.GET_SCHEMA().accept_all_inputs


class ComfyNode(_ComfyNodeBaseInternal):
    """A node. Subclasses define `define_schema` and `execute`; all methods are classmethods."""
