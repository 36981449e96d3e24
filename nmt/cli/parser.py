"""Shared part of all commands: flags, recipe options as flags, usage errors and help; exit codes and messages."""

import argparse
import io
import itertools
import os
import shutil
import sys
import tempfile
import traceback
from collections.abc import Callable, Iterator, Sequence
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
from nmt.recipe.fields import Field, all_fields, option_named, sections
from nmt.recipe.yaml_marks import with_trg

OVERRIDE = "override:"  # before the dotted name of an option of the recipe, in `dest` of its flags


class Parser(argparse.ArgumentParser):
    """Argument parser that raises an NmtError of one line a mistake, with the flag that was probably meant."""

    def __init__(self, prog: str, *, description: str = "", epilog: str = "", examples: Sequence[str] = ()) -> None:
        """examples: commands for the end of the help."""
        # No abbreviations: a new option would make some of them ambiguous.
        super().__init__(prog, description=description, epilog=epilog, add_help=False, allow_abbrev=False)
        self.examples = examples
        self.sections: dict[str, str] = {}  # of the recipe, whose options are flags: name and description
        self._given: Sequence[str] = ()  # words on the command line
        add, text = self.add_argument, "Show this help, or the options of a section."
        add("-h", "--help", action=_Show, show=Parser.help_of, nargs="?", metavar="SECTION", help=text)
        add("--debug", action="store_true", help="Show the traceback of an error.")
        text = "Show the version and stop."
        add("--version", action=_Show, show=lambda parser, _: f"{parser.prog} {version()}\n", nargs=0, help=text)

    def read(self, given: Sequence[str]) -> argparse.Namespace:
        """Parse flags and positional arguments in any order. Raises NmtError for a usage error.

        Unknown flags are refused first, because argparse would take the value of one for a positional argument. In
        flags tgt stands for trg, and a flag may contain the number of a corpus.
        """
        known, words, unknown = self._option_string_actions, list(given), dict[str, None]()
        self._given = given
        for i, word in enumerate(itertools.takewhile(lambda word: word != "--", given)):
            flag, equals, value = word.partition("=")
            if not flag.startswith("--") or " " in flag or flag in known:
                continue
            canonical = with_trg(flag)
            option = option_named(canonical[2:])
            if canonical not in known and option is not None and f"--{option.name}" in known:  # as --data.train.0.src
                _add_override(self, canonical, canonical[2:])
            if canonical in known:
                words[i] = canonical + equals + value
            else:
                unknown[self._unknown_flag_message(flag)] = None
        if unknown:
            raise NmtError("\n".join(unknown))
        return self.parse_intermixed_args(words)

    def _unknown_flag_message(self, flag: str) -> str:
        known = self._option_string_actions
        name, option = flag.removeprefix("--"), without_numbers(flag.removeprefix("--"))
        if option in GONE:
            return f"{flag} is gone: {GONE[option]}"
        names = nearest(name, [other.removeprefix("--") for other in known if other.startswith("--")])
        short = {option: flag for flag, option, _ in SHORT.get(self.prog, ())}
        similar = " or ".join(dict.fromkeys(short.get(other, f"--{other}") for other in names))
        hint = f" (did you mean {similar}?)" if similar else ""
        return f"{flag}: unknown option{hint}. All: {self.prog} {'--help-all' if '--help-all' in known else '--help'}"

    def _get_value(self, action: argparse.Action, arg_string: str) -> Any:
        """Convert an argument. Refuse an empty one, usually of an unset variable, except for --section.option."""
        if not arg_string and not any("." in flag for flag in action.option_strings):
            raise argparse.ArgumentError(action, 'is empty, ""')
        return super()._get_value(action, arg_string)

    def error(self, message: str) -> NoReturn:
        """Raise NmtError for an error of argparse, without the usage, which is longer than a screen."""
        actions = self._option_string_actions
        multi_value = [flag for flag, action in actions.items() if action.nargs == "+" and flag in self._given]
        if message.startswith("the following arguments are required") and multi_value:
            message += f" (before {multi_value[0]}, which takes several values)"
        flags, has_expected, _ = message.removeprefix("argument ").partition(": expected ")
        action = actions.get(flags.split("/")[0])
        if has_expected and action is not None and action.help and action.metavar:
            metavar = action.metavar if isinstance(action.metavar, str) else " ".join(action.metavar)
            option = option_named(action.dest.removeprefix(OVERRIDE)) if action.help == argparse.SUPPRESS else None
            text = _help_on(option) if option else action.help.replace("%%", "%")
            message += f", {metavar}: {text.removesuffix('.')}"
        raise NmtError(f"{message}. All: {self.prog} --help")

    def help_of(self, topic: str | None) -> str:
        """Describe the options of a section of the recipe, or the flags of the command; "all": flags and options."""
        listing = argparse.ArgumentParser(self.prog, usage=argparse.SUPPRESS, add_help=False)
        listed = [section for section in self.sections if topic in (section, "all")]
        for section in listed:
            title = f"{section} options" if section else "options of the recipe"
            group = listing.add_argument_group(title, self.sections[section])
            for field in all_fields():
                if field.section == section:
                    _add_override(group, f"--{field.name}", field.name, _help_on(field))
        if listed and topic != "all":
            return listing.format_help()
        examples = "".join(f"  {line}\n" for line in self.examples)
        options = f"\n{listing.format_help()}" if listed else ""
        return f"{self.format_help()}\nexamples:\n{examples}{options}"


def add_override_flags(parser: Parser, only: Sequence[str] | None = None) -> None:
    """Add the short flags of a command, --help-all, and for every option a flag `--section.option VALUE`, which --help
    SECTION describes. If both names of an option are given, the last one counts.

    only: sections, one of them with a name; None: all.
    """
    about = "Short names for options of the recipe; without the flag the recipe's value holds."
    group = parser.add_argument_group("common options", about)
    for flag, name, metavar in SHORT.get(parser.prog, ()):
        field = option_named(name)
        assert field is not None, name
        values = f"{field.kind}; " if "|" in field.kind else ""
        help_on = f"{field.help.split('. ')[0].removesuffix('.')}. [{values}default: {field.default}]"
        _add_override(group, flag, name, help_on, metavar)
    text = "Show this help with all options of the recipe."
    parser.add_argument("--help-all", action=_Show, show=lambda parser, _: parser.help_of("all"), nargs=0, help=text)
    parser.sections = {section: about for section, about in sections() if only is None or section in only}
    flags = ", ".join(f"--{section}.OPTION" for section in parser.sections if section)
    about = (
        f"Options of the recipe are flags too, by their dotted names: {flags} VALUE. Those of one section: "
        f"{parser.prog} --help SECTION. All: {parser.prog} --help-all, or recipes/README.md. Help on one option: its "
        "flag without VALUE."
    )
    group = parser.add_argument_group("options of the recipe", about)
    for field in all_fields():
        if field.section in parser.sections:
            _add_override(group, f"--{field.name}", field.name)


def _help_on(field: Field) -> str:
    """Describe an option of the recipe."""
    return field.help if field.inner else f"{field.help} [{field.kind}; default: {field.default}]"


def _add_override(
    group: argparse._ActionsContainer, flag: str, name: str, text: str | None = None, metavar: str = "VALUE"
) -> None:
    """Add a flag for an option of the recipe. text: its help; None: the help does not show the flag."""
    text = argparse.SUPPRESS if text is None else text.replace("%", "%%")
    group.add_argument(flag, dest=OVERRIDE + name, metavar=metavar, help=text)


def overrides_of(arguments: argparse.Namespace) -> list[tuple[str, str]]:
    """Return (dotted name, value as written) of each recipe option on the command line."""
    return [
        (name.removeprefix(OVERRIDE), value)
        for name, value in vars(arguments).items()
        if name.startswith(OVERRIDE) and value is not None
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
        for line in message.split("\n"):
            talk(f"{parser.prog}: error: {with_shipped(line)}")
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


def must_be_free(path: Path, *, overwrite: bool, is_folder: bool = False) -> None:
    """Raise NmtError if an output cannot be written or would replace something that must stay. A file replaces no
    folder, device or pipe. is_folder: the output is a folder."""
    if not is_folder and path.exists() and not path.is_file():
        raise NmtError(f"{path} is not a regular file, so it is not replaced. Choose another name.")
    if path.exists() and not overwrite:
        raise NmtError(f"{path} exists already. Choose another name, or replace it with --overwrite.")
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
