"""Commands that take options alone, and say how to name a model to whoever gives one without."""

from __future__ import annotations

from typing import Any

from typer.core import TyperCommand, TyperGroup


class OptionsCommand(TyperCommand):
    """A command without positional arguments."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Parse the options; what is left over is refused with a hint, status 2."""
        ctx.allow_extra_args = True
        rest = super().parse_args(ctx, args)
        if rest:
            takes_settings = any("--set" in option.opts for option in self.params)
            hint = _model_hint(rest[0]) if takes_settings else ""
            ctx.fail(f"Got unexpected argument {rest[0]!r}, expected options alone{hint}")
        return rest


class CommandGroup(TyperGroup):
    """Commands by name, where something that looks like a model may stand in the place of one."""

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """The command that `args` name; a path gets a hint, status 2."""
        name = args[0]
        if name not in self.commands and ("/" in name or name.endswith(".gguf")):
            ctx.fail(f"No such command {name!r}{_model_hint(name)}")
        return super().resolve_command(ctx, args)


def _model_hint(argument: str) -> str:
    return f"; did you mean --set engine.model={argument}?"
