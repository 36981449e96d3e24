"""Shared part of all commands: flags, recipe options as flags, usage errors and help; exit codes and messages."""

import argparse
import io
import itertools
import os
import shutil
import sys
import tempfile
import traceback
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NoReturn

from nmt.cli.begin import talk, write_stdout
from nmt.data.lines import without_ending
from nmt.errors import DataError, NmtError, as_nmt_error, is_machine_error
from nmt.extras import incomplete, version
from nmt.files import with_shipped
from nmt.recipe.complaints import GONE, SHORT, nearest, without_numbers
from nmt.recipe.contradictions import ENDINGS, NOT_READ
from nmt.recipe.fields import all_fields, option_named, sections
from nmt.recipe.yaml_marks import with_trg

_OVERRIDE = "override:"


class Parser(argparse.ArgumentParser):
    """Argument parser that reports an error in one line, with the flag that was probably meant."""

    def __init__(self, prog: str, *, description: str = "", epilog: str = "", examples: Sequence[str] = ()) -> None:
        """examples: commands for the end of the help."""
        # No abbreviations: a new option would make some of them ambiguous.
        super().__init__(prog, description=description, epilog=epilog, add_help=False, allow_abbrev=False)
        self.examples = examples
        self.section_groups: dict[str, Any] = {}  # argument groups, by section of the recipe
        self.overview: Any = None  # group without arguments that stands for them in the short help
        self.short: dict[str, str] = {}  # short flags, by option
        self._given = set[str]()  # words on the command line
        add, text = self.add_argument, "Show this help, or the options of a section."
        add("-h", "--help", action=_Show, show=Parser.help_of, nargs="?", metavar="SECTION", help=text)
        add("--debug", action="store_true", help="Show the traceback of an error.")
        text = "Show the version and stop."
        add("--version", action=_Show, show=lambda parser, _: f"{parser.prog} {version()}\n", nargs=0, help=text)

    def read(self, given: Sequence[str]) -> argparse.Namespace:
        """Parse flags and positional arguments in any order. Exits with code 2 at a usage error.

        Unknown flags are refused first, because argparse would take the value of one for a positional argument. In
        flags tgt stands for trg, and a flag may contain the number of a corpus. An empty argument is refused: it is
        usually an unset variable of a script.
        """
        known, words, unknown = self._option_string_actions, list(given), dict[str, None]()
        self._given = set(given)
        for i, word in enumerate(itertools.takewhile(lambda word: word != "--", given)):
            flag, equals, value = word.partition("=")
            if not flag.startswith("--") or " " in flag or flag in known:
                continue
            canonical = with_trg(flag)
            option = option_named(canonical[2:])
            if canonical not in known and option is not None and f"--{option.name}" in known:  # as --data.train.0.src
                self.add_argument(canonical, dest=_OVERRIDE + canonical[2:], metavar="VALUE", help=argparse.SUPPRESS)
            if canonical in known:
                words[i] = canonical + equals + value
            else:
                unknown[flag] = None
        if unknown:
            hint = f". All: {self.prog} {'--help-all' if '--help-all' in known else '--help'}"
            self.print_errors(self._unknown_flag_message(flag, hint) for flag in unknown)
            self.exit(2)
        arguments = self.parse_intermixed_args(words)
        for action in self._actions:
            argument = getattr(arguments, action.dest, None)
            values = argument if isinstance(argument, list) else [argument]
            is_empty = any("" in value if isinstance(value, list) else value == "" for value in values)
            if is_empty and not action.dest.startswith(_OVERRIDE):
                self.error(f'argument {"/".join(action.option_strings) or action.metavar}: is empty, ""')
        return arguments

    def _unknown_flag_message(self, flag: str, hint: str) -> str:
        names = [known.removeprefix("--") for known in self._option_string_actions if known.startswith("--")]
        name, option = flag.removeprefix("--"), without_numbers(flag.removeprefix("--"))
        if option in GONE:
            return f"{flag} is gone: {GONE[option]}"
        similar = dict.fromkeys(self.short.get(other, f"--{other}") for other in nearest(name, names))
        return f"{flag}: unknown option" + (f" (did you mean {' or '.join(similar)}?)" if similar else "") + hint

    def error(self, message: str) -> NoReturn:
        """Print the error, but not the usage, which is longer than a screen. Exits with code 2."""
        actions = self._option_string_actions
        multi_value = [flag for flag, action in actions.items() if action.nargs == "+" and flag in self._given]
        if message.startswith("the following arguments are required") and multi_value:
            message += f" (before {multi_value[0]}, which takes several values)"
        flags, has_expected, _ = message.removeprefix("argument ").partition(": expected ")
        action = actions.get(flags.split("/")[0])
        if has_expected and action is not None and action.help not in (None, argparse.SUPPRESS) and action.metavar:
            metavar = action.metavar if isinstance(action.metavar, str) else " ".join(action.metavar)
            message += f", {metavar}: {action.help.replace('%%', '%').removesuffix('.')}"
        self.print_errors(f"{line}. All: {self.prog} --help" for line in message.split("\n"))
        self.exit(2)

    def print_errors(self, lines: Iterable[str]) -> None:
        """Print the lines of an error message."""
        for line in lines:
            talk(f"{self.prog}: error: {with_shipped(line)}")

    def format_usage(self) -> str:
        """Return the usage line without the options of the recipe, about a hundred."""
        formatter = self._get_formatter()
        command_actions = [action for action in self._actions if not action.dest.startswith(_OVERRIDE)]
        formatter.add_usage(self.usage, command_actions, self._mutually_exclusive_groups)
        return formatter.format_help()

    def help_of(self, topic: str | None) -> str:
        """Describe the options of a section of the recipe, or all flags ("all"), or the flags of the command (None)."""
        section = self.section_groups.get(topic) if topic else None
        hidden = [self.overview] if topic == "all" else [*self.section_groups.values()]
        visible = [group for group in self._action_groups if group not in hidden]
        formatter = self._get_formatter()
        formatter.add_text("" if section else self.description)
        for group in [section] if section else visible:
            formatter.start_section(group.title)
            formatter.add_text(group.description)
            formatter.add_arguments(group._group_actions)
            formatter.end_section()
        if section:
            return formatter.format_help()
        formatter.add_text(self.epilog)
        examples = "".join(f"  {line}\n" for line in self.examples)
        return f"{self.format_usage()}\n{formatter.format_help()}" + (f"\nexamples:\n{examples}" if examples else "")


def add_override_flags(parser: Parser, only: Sequence[str] | None = None) -> None:
    """Add a flag `--section.option VALUE` for every option, in a group per section, and --help-all.

    only: sections, one of them with a name; None: all.
    """
    text = "Show this help with all options of the recipe."
    parser.add_argument("--help-all", action=_Show, show=lambda parser, _: parser.help_of("all"), nargs=0, help=text)
    for section, about in sections():
        if only is not None and section not in only:
            continue
        group = parser.add_argument_group(f"{section} options" if section else "options of the recipe", about)
        parser.section_groups[section] = group
        for field in all_fields():
            if field.section == section:
                text = field.help if field.inner else f"{field.help} [{field.kind}; default: {field.default}]"
                _add_override(group, f"--{field.name}", field.name, "VALUE", text)
    n_option = sum(len(group._group_actions) for group in parser.section_groups.values())
    names = [section for section in parser.section_groups if section]
    flags = ", ".join(f"--{section}.OPTION" for section in names)
    about = (
        f"{n_option} options of the recipe are flags too, by their dotted names: {flags} VALUE. Those of one section: "
        f"{parser.prog} --help {names[0]}. All: {parser.prog} --help-all, or recipes/README.md. Help on one option: "
        "its flag without VALUE."
    )
    parser.overview = parser.add_argument_group("options of the recipe", about)


def add_short_flags(parser: Parser) -> None:
    """Add the short flags of a command. If both names of an option are given, the last one counts."""
    about = "Short names for options of the recipe; without the flag the recipe's value holds."
    group = parser.add_argument_group("common options", about)
    for flag, name, metavar in SHORT[parser.prog]:
        add_shorthand(parser, group, flag, name, metavar)


def add_shorthand(parser: Parser, group: argparse._ArgumentGroup, flag: str, name: str, metavar: str) -> None:
    """Add a short flag for an option of the recipe."""
    field = option_named(name)
    assert field is not None, name
    values = f"{field.kind}; " if "|" in field.kind else ""
    text = f"{field.help.split('. ')[0].removesuffix('.')}. [{values}default: {field.default}]"
    _add_override(group, flag, name, metavar, text)
    parser.short[name] = flag


def _add_override(group: argparse._ArgumentGroup, flag: str, name: str, metavar: str, text: str) -> None:
    group.add_argument(flag, dest=_OVERRIDE + name, metavar=metavar, help=text.replace("%", "%%"))


def overrides_of(arguments: argparse.Namespace) -> list[tuple[str, str]]:
    """Return (dotted name, value as written) of each recipe option on the command line."""
    return [
        (name.removeprefix(_OVERRIDE), value)
        for name, value in vars(arguments).items()
        if name.startswith(_OVERRIDE) and value is not None
    ]


def whole_number(expected: str, *, least: int = 0, most: int = sys.maxsize) -> Callable[[str], int]:
    """Return a type of `add_argument`: a whole number in this range. expected: the range in words."""

    def number(text: str) -> int:
        if not text.isdecimal() or not least <= int(text) <= most:
            raise argparse.ArgumentTypeError(f"{text!r} is not {expected}")
        return int(text)

    return number


class _Show(argparse.Action):
    """Write a text to stdout, and exit. show: returns the text for the parser and the value of the flag."""

    def __init__(self, option_strings: Sequence[str], dest: str, show: Callable[[Any, Any], str], **kwargs: Any):
        super().__init__(option_strings, argparse.SUPPRESS, default=argparse.SUPPRESS, **kwargs)
        self._show = show

    def __call__(self, parser: argparse.ArgumentParser, _: Any, value: Any, *rest: Any) -> None:
        write_stdout(with_shipped(self._show(parser, value)))
        parser.exit()


# Other exit codes belong to the errors in nmt/errors.py. docs/reference.md lists all.
INTERNAL, INTERRUPTED, READER_GONE = 1, 130, 141


def run(body: Callable[[argparse.Namespace], int | None], parser: Parser, argv: Sequence[str] | None = None) -> int:
    """Parse `argv` and call `body(arguments)`. Returns an exit code; prints a readable message for an error."""
    _prepare_streams()
    given = sys.argv[1:] if argv is None else argv
    try:
        try:
            code = body(parser.read(given)) or 0
        except SystemExit as stop:  # also after --help and --version
            code = stop.code if isinstance(stop.code, int) else int(stop.code is not None)
        if sys.stdout is not None:
            sys.stdout.flush()
        return code
    except KeyboardInterrupt:
        return INTERRUPTED
    except BrokenPipeError:
        _abandon_stdout()
        return READER_GONE
    except Exception as error:
        if nmt_error := as_nmt_error(error):
            code, message = nmt_error.exit_code, str(nmt_error)
        elif isinstance(error, ModuleNotFoundError) and not str(error.name).startswith("nmt"):
            code, message = NmtError.exit_code, incomplete(error)
        else:
            summary = f"{type(error).__name__}: {str(error).partition(chr(10))[0]}"
            code, message = INTERNAL, f"internal error (please report it; --debug shows the traceback): {summary}"
        if "--debug" in given:
            traceback.print_exc()
        parser.print_errors(message.split("\n"))
        if isinstance(error, OSError):
            _abandon_stdout()
        return code


@contextmanager
def files_of_pipes(args: argparse.Namespace, *flags: str) -> Iterator[None]:
    """Replace named pipes among the arguments by files, which can be read twice. The file names keep their endings."""
    pipe_names: dict[str, str] = {}  # by the path of the copy
    with tempfile.TemporaryDirectory(prefix="nmt-pipes-") as folder:

        def copied(name: str) -> str:
            if not Path(name).is_fifo():  # other streams, such as devices, may be endless
                return name
            path = f"{tempfile.mkdtemp(dir=folder)}/{Path(name).name}"
            with open(name, "rb") as pipe, open(path, "xb") as file:
                shutil.copyfileobj(pipe, file)
            pipe_names[path] = name
            return path

        for flag in flags:
            if value := getattr(args, flag):
                setattr(args, flag, list(map(copied, value)) if isinstance(value, list) else copied(value))
        try:
            yield
        except NmtError as error:
            for path, name in pipe_names.items():
                error.args = (str(error).replace(path, name),)
            raise


def must_be_free(
    path: Path, *, overwrite: bool, advice: str = "Choose another name", inputs: Sequence[str | Path] = ()
) -> None:
    """Raise NmtError if an output cannot be written or would replace something that must stay.

    An output must not replace an input. If there are inputs, the output is a file and replaces nothing but a file.
    """
    for name in inputs:
        if path.exists() and os.path.exists(name) and path.samefile(name):
            raise NmtError(f"{path} is also an input: choose another name for the output.")
    if inputs and path.exists() and not path.is_file():
        raise NmtError(f"{path} is not a regular file, so it is not replaced. {advice}.")
    if path.exists() and not overwrite:
        raise NmtError(f"{path} exists already. {advice}, or replace it with --overwrite.")
    folder = path.absolute().parent
    try:
        with tempfile.TemporaryFile(dir=folder):  # permissions are not enough: /proc is never writable
            pass
    except OSError as error:
        if is_machine_error(error):
            raise
        raise NmtError(f"{path}: cannot be written: {folder} is not a folder, or you may not write to it.") from None


def is_corpus(name: str) -> bool:
    """Return whether a name belongs to a file with pairs of sentences."""
    return without_ending(name).lower().endswith((*ENDINGS, *NOT_READ)) and not Path(name).is_dir()


def refuse_corpus(name: str) -> None:
    """Raise DataError for a file of pairs in place of plain text: its lines are no sentences."""
    if is_corpus(name):
        raise DataError(
            f"{name}: the name says that it holds pairs or records, but plain text, one sentence a line, is expected "
            "here. Write the wanted side into a text file."
        )


def check_count(n_line: int, n_given: int, given: str, other: str | None) -> None:
    """Raise DataError unless the file `given` and `other` (None: stdin) have the same number of lines, at least one."""
    if n_line != n_given:
        raise DataError(
            f"{other or 'the input'} has {n_line:,} lines but {given} has {n_given:,}: line n of one must belong to "
            "line n of the other. Look for a truncated file, or a file of another test set."
        )
    if not n_line:
        raise DataError(f"{given}: is empty, so there is nothing to compare.")


def _prepare_streams() -> None:
    """Write UTF-8 and bare newlines on every system and locale: the output is data for other programs.

    Standard streams that a shell has closed (`2>&-`) are opened on the null device. Otherwise another file could get
    their descriptors, which libraries write to.
    """
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # gets the lowest free descriptor, this one
    if sys.stderr is None:
        sys.stderr = os.fdopen(os.open(os.devnull, os.O_WRONLY), "w", encoding="utf-8")
    if isinstance(sys.stdout, io.TextIOWrapper):
        if isinstance(sys.stdout.buffer, io.RawIOBase):  # PYTHONUNBUFFERED: may write only a part, without an error
            sys.stdout = os.fdopen(sys.stdout.fileno(), "w", encoding="utf-8", closefd=False)
        sys.stdout.reconfigure(encoding="utf-8", newline="\n")
    if isinstance(sys.stderr, io.TextIOWrapper):
        sys.stderr.reconfigure(encoding="utf-8", errors="backslashreplace")


def _abandon_stdout() -> None:
    """Redirect a broken stdout to the null device: Python would flush it at exit and print an error of its own."""
    try:
        if sys.stdout is not None:
            sys.stdout.flush()
    except OSError:
        devnull = os.open(os.devnull, os.O_WRONLY)
        os.dup2(devnull, sys.stdout.fileno())
        os.close(devnull)
