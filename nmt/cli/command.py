"""What all commands share: option flags, exit codes, and how an error reaches the user.

Exit codes: 0 done; 2 the user's input; 1 the machine, or a fault of our own; 130 interrupted; 141 the reader of our
output went away. No traceback without --debug.
"""

import argparse
import errno
import io
import itertools
import os
import sys
import traceback
from collections.abc import Callable, Iterable, Sequence
from importlib import metadata
from pathlib import Path
from typing import Any, NoReturn

from nmt.cli.begin import begun
from nmt.cli.stdout import write_stdout
from nmt.errors import NmtError, is_out_of_memory
from nmt.recipe.complaints import nearest
from nmt.recipe.fields import all_fields, option_named, sections

Body = Callable[[argparse.Namespace], int | None]

_MACHINE_ERRNOS = {errno.ENOSPC, errno.EDQUOT, errno.EIO, errno.EFBIG, errno.ENOMEM, errno.EMFILE, errno.ENFILE}
_OVERRIDE = "override:"


def run(tool: str, body: Body, parser: "Parser", argv: Sequence[str] | None = None) -> int:
    """Parse `argv`, call `body(arguments)` and turn whatever happens into an exit code and a readable message."""
    _stand_in_for_closed()
    _speak_utf8()
    parser.prog = tool
    parser.formatter_class = _Help
    parser.allow_abbrev = False  # an abbreviation that works today is ambiguous when an option is added
    parser.add_argument("--debug", action="store_true", help="Show the traceback of an error.")
    parser.add_argument("--version", action=_Version, help="Show the version and stop.")
    given = sys.argv[1:] if argv is None else argv
    try:
        try:
            parser.refuse_unknown(given)
            arguments = parser.parse_args(given)
            begun()
            code = body(arguments) or 0
        except SystemExit as stop:  # after --help and --version, too
            code = stop.code if isinstance(stop.code, int) else int(stop.code is not None)
        if sys.stdout is not None:
            sys.stdout.flush()
        return code
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:
        _abandon_stdout()
        return 141
    except Exception as error:
        code, message = _explain(error)
        if "--debug" in given:
            traceback.print_exc()
        for line in message.split("\n"):
            print(f"{tool}: error: {printable(line)}", file=sys.stderr)
        if isinstance(error, OSError):
            _abandon_stdout()
        return code


def printable(text: str) -> str:
    """Text with every control character escaped: words of a file may be printed, its terminal commands may not."""
    return "".join(
        c if c.isprintable() else c.encode("unicode_escape", "backslashreplace").decode("ascii") for c in text
    )


def must_be_free(path: Path, *, overwrite: bool, advice: str = "Choose another name") -> None:
    """Raise NmtError if an output cannot be written there, or would replace something that may not be."""
    if path.exists() and not overwrite:
        raise NmtError(f"{path} exists already. {advice}, or replace it with --overwrite.")
    folder = path.absolute().parent
    if not folder.is_dir() or not os.access(folder, os.W_OK):
        raise NmtError(f"{path}: cannot be written: {folder} is no folder, or not yours to write to.")


def add_override_flags(parser: "Parser", only: Sequence[str] | None = None) -> None:
    """One flag `--section.option VALUE` for every option, in a group per section, and --help-all, which lists them.

    only: the sections wanted, "" standing for the options outside any section; all when None.
    """
    parser.add_argument("--help-all", action=_HelpAll, help="Show the options of the recipe too, and stop.")
    fields = all_fields()
    for section, about in sections():
        if only is not None and section not in only:
            continue
        group = parser.add_argument_group(f"{section} options" if section else "options of the recipe", about)
        for field in fields:
            if field.section == section:
                text = field.help if field.inner else f"{field.help} [{field.kind}; default: {field.default}]"
                group.add_argument(
                    f"--{field.name}", dest=_OVERRIDE + field.name, metavar="VALUE", help=text.replace("%", "%%")
                )


def add_shorthand(group: argparse._ArgumentGroup, flag: str, name: str, metavar: str) -> None:
    """A second, shorter flag for an option of the recipe. What is given last counts."""
    group.add_argument(flag, dest=_OVERRIDE + name, metavar=metavar, help=f"The same as --{name}.")


def overrides_of(arguments: argparse.Namespace) -> list[tuple[str, str]]:
    """The (dotted name, value as written) of each flag of `add_override_flags` that was given."""
    return [
        (name.removeprefix(_OVERRIDE), value)
        for name, value in vars(arguments).items()
        if name.startswith(_OVERRIDE) and value is not None
    ]


def _explain(error: Exception) -> tuple[int, str]:
    """The exit code and the message for an error that ended a command."""
    if isinstance(error, NmtError):
        return error.exit_code, str(error)
    if isinstance(error, OSError):
        reason = error.strerror or str(error)
        where = f"{error.filename}: " if error.filename is not None else ""
        return 1 if error.errno in _MACHINE_ERRNOS else 2, f"{where}{reason}"
    if is_out_of_memory(error):
        advice = "make batch.max_tokens, valid.max_tokens or decode.max_tokens smaller"
        return 1, f"out of memory: {_first_line(error)} ({advice})"
    return 1, f"a fault of the program itself: {type(error).__name__}: {_first_line(error)} (--debug shows where)"


def _first_line(error: Exception) -> str:
    return str(error).split("\n")[0]


def _stand_in_for_closed() -> None:
    """Where a shell has closed standard streams (`2>&-`), no other file may get their numbers, which libraries write
    to, and what is said on stderr must not get into the output, as Python has it.
    """
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # which gets the lowest number that is free
    if sys.stderr is None:
        sys.stderr = os.fdopen(os.open(os.devnull, os.O_WRONLY), "w", encoding="utf-8")


def _speak_utf8() -> None:
    """Write UTF-8 and bare newlines whatever the locale or system: our output is data for other programs."""
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(encoding="utf-8", newline="\n")
    if isinstance(sys.stderr, io.TextIOWrapper):
        sys.stderr.reconfigure(encoding="utf-8", errors="backslashreplace")


def _abandon_stdout() -> None:
    """Let go of an output that cannot be written, or Python tries again while it exits and complains by itself."""
    try:
        if sys.stdout is not None:
            sys.stdout.flush()
    except OSError:
        devnull = os.open(os.devnull, os.O_WRONLY)
        os.dup2(devnull, sys.stdout.fileno())
        os.close(devnull)


class Parser(argparse.ArgumentParser):
    """Says what is wrong with the arguments in a line, as all errors are told, and which flag was probably meant."""

    def refuse_unknown(self, given: Sequence[str]) -> None:
        """Leave with exit code 2 if a flag is none of ours; make those ours that name a corpus by its number.

        Before anything else is looked at, since the value of such a flag would be taken for a file that is wanted.
        """
        words = itertools.takewhile(lambda word: word != "--", given)
        flags = [word.partition("=")[0] for word in words if word.startswith("--") and " " not in word]
        known = self._option_string_actions
        for flag in [flag for flag in dict.fromkeys(flags) if flag not in known]:
            name = flag.removeprefix("--")
            option = option_named(name)  # of a corpus in a list, as in --data.train.0.src
            if option is not None and f"--{option.name}" in known:
                self.add_argument(flag, dest=_OVERRIDE + name, metavar="VALUE", help=argparse.SUPPRESS)
        if unknown := [flag for flag in dict.fromkeys(flags) if flag not in known]:
            names = [flag.removeprefix("--") for flag in known if flag.startswith("--")]
            lines = [f"{flag}: unknown option{_meant(flag, names)}" for flag in unknown]
            self._refuse(lines, "--help-all" if "--help-all" in known else "--help")

    def print_help(self, file: Any = None) -> None:
        """Print the help. argparse itself says nothing where that cannot be written."""
        if file is None:
            write_stdout(self.format_help())
        else:
            super().print_help(file)

    def error(self, message: str) -> NoReturn:
        """Print what is wrong, and no usage, which is longer than a screen; exit code 2."""
        flags, found, _ = message.removeprefix("argument ").partition(": expected ")
        action = self._option_string_actions.get(flags.split("/")[0])
        if found and action is not None and action.help and action.metavar:
            wanted = action.metavar if isinstance(action.metavar, str) else " ".join(action.metavar)
            message += f", {wanted}: {action.help.replace('%%', '%').removesuffix('.')}"
        self._refuse(message.split("\n"), "--help")

    def _refuse(self, lines: Sequence[str], flag: str) -> NoReturn:
        for line in lines:
            print(f"{self.prog}: error: {printable(line)}. All: {self.prog} {flag}", file=sys.stderr)
        self.exit(2)

    def format_help(self) -> str:
        """The flags of the command itself, and how to see those of the recipe, which are longer than many screens."""
        return self._format(
            [group for group in self._action_groups if not _overrides_in(group)], self._about_overrides()
        )

    def format_help_all(self) -> str:
        """All flags."""
        return self._format(self._action_groups)

    def _format(self, groups: Iterable[Any], about_others: str = "") -> str:
        formatter = self._get_formatter()
        formatter.add_usage(self.usage, self._actions, self._mutually_exclusive_groups)
        formatter.add_text(self.description)
        for group in groups:
            formatter.start_section(group.title)
            formatter.add_text(group.description)
            formatter.add_arguments(group._group_actions)
            formatter.end_section()
        if about_others:
            formatter.start_section("options of the recipe")
            formatter.add_text(about_others)
            formatter.end_section()
        formatter.add_text(self.epilog)
        return formatter.format_help()

    def _about_overrides(self) -> str:
        names = [name for group in self._action_groups for name in _overrides_in(group)]
        if not names:
            return ""
        found = dict.fromkeys(name.partition(".")[0] for name in names if "." in name)
        flags = ", ".join(f"--{section}.OPTION" for section in found)
        return (
            f"{len(names)} options of the recipe are flags too, by their dotted names: {flags} VALUE. All of them: "
            f"{self.prog} --help-all, or recipes/README.md. One of them: its flag without VALUE."
        )


def _overrides_in(group: Any) -> list[str]:
    """Names of the options of the recipe in a group of flags that has no others."""
    dests = [action.dest for action in group._group_actions]
    return [dest.removeprefix(_OVERRIDE) for dest in dests] if all(dest.startswith(_OVERRIDE) for dest in dests) else []


def _meant(flag: str, names: Sequence[str]) -> str:
    found = nearest(flag.removeprefix("--"), names)
    return f" (did you mean {' or '.join(f'--{name}' for name in found)}?)" if found else ""


class _Help(argparse.HelpFormatter):
    """Keeps the hundred overrides out of the usage line."""

    def add_usage(
        self, usage: str | None, actions: Iterable[argparse.Action], groups: Iterable[Any], prefix: str | None = None
    ) -> None:
        own = [action for action in actions if not action.dest.startswith(_OVERRIDE)]
        super().add_usage(usage, own, groups, prefix)


class _HelpAll(argparse.Action):
    """Show all flags, where --help shows those of the command itself."""

    def __init__(self, option_strings: Sequence[str], dest: str, help: str | None = None) -> None:
        super().__init__(option_strings, argparse.SUPPRESS, nargs=0, default=argparse.SUPPRESS, help=help)

    def __call__(self, parser: argparse.ArgumentParser, *rest: Any) -> None:
        assert isinstance(parser, Parser)
        write_stdout(parser.format_help_all())
        parser.exit()


class _Version(argparse.Action):
    """Look the version up only when it is asked for."""

    def __init__(self, option_strings: Sequence[str], dest: str, help: str | None = None) -> None:
        super().__init__(option_strings, dest, nargs=0, default=argparse.SUPPRESS, help=help)

    def __call__(self, parser: argparse.ArgumentParser, *rest: Any) -> None:
        try:
            version = metadata.version("nmt")
        except metadata.PackageNotFoundError:
            version = "not installed"
        write_stdout(f"{parser.prog} {version}\n")
        parser.exit()
