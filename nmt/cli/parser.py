"""The frame of a command: flags, options of the recipe as flags, their mistakes and help; exit codes and messages."""

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

from nmt.cli.begin import printable, write_stdout
from nmt.data.lines import without_ending
from nmt.errors import DataError, NmtError, as_nmt_error, is_machine_error
from nmt.extras import incomplete, version
from nmt.files import with_shipped
from nmt.recipe.complaints import GONE, SHORT, nearest, with_trg, without_numbers
from nmt.recipe.contradictions import ENDINGS, NOT_READ
from nmt.recipe.fields import all_fields, option_named, sections

_OVERRIDE = "override:"


class Parser(argparse.ArgumentParser):
    """Tells a mistake in the arguments in a line, with the flag that was probably meant."""

    def __init__(self, prog: str, *, description: str = "", epilog: str = "", examples: Sequence[str] = ()) -> None:
        """examples: commands for the end of the help."""
        # No abbreviations: one that works today is ambiguous when an option is added.
        super().__init__(prog, description=description, epilog=epilog, add_help=False, allow_abbrev=False)
        self.examples = examples
        self.section_groups: dict[str, Any] = {}  # of the options of the recipe
        self.short: dict[str, str] = {}  # the short flag of an option
        self._given = set[str]()  # words on the command line
        text = "Show this help, or the options of a section."
        self.add_argument("-h", "--help", action=_Show, show=Parser.help_of, nargs="?", metavar="SECTION", help=text)
        self.add_argument("--debug", action="store_true", help="Show the traceback of an error.")
        text = "Show the version and stop."
        self.add_argument("--version", action=_Show, show=lambda it, _: f"{it.prog} {version()}\n", nargs=0, help=text)

    def read(self, given: Sequence[str]) -> argparse.Namespace:
        """Parse the arguments, flags and others in any order. Leaves with exit code 2 where one is wrong.

        Unknown flags are refused first, since the value of one would be taken for a file that is wanted. Flags that
        are written with tgt have trg, and those that name a corpus by its number are known. An empty argument is a
        variable of a script that was never set.
        """
        known, words, unknown = self._option_string_actions, list(given), dict[str, None]()
        self._given = set(given)
        for n, word in enumerate(itertools.takewhile(lambda word: word != "--", given)):
            flag, equals, value = word.partition("=")
            if not flag.startswith("--") or " " in flag or flag in known:
                continue
            ours = with_trg(flag)
            option = option_named(ours[2:])
            if ours not in known and option is not None and f"--{option.name}" in known:  # as --data.train.0.src
                self.add_argument(ours, dest=_OVERRIDE + ours[2:], metavar="VALUE", help=argparse.SUPPRESS)
            if ours in known:
                words[n] = ours + equals + value
            else:
                unknown[flag] = None
        if unknown:
            hint = f". All: {self.prog} {'--help-all' if '--help-all' in known else '--help'}"
            self._refuse([self._about_unknown(flag, hint) for flag in unknown])
        found = self.parse_intermixed_args(words)
        for action in self._actions:
            of_action = getattr(found, action.dest, None)
            values = of_action if isinstance(of_action, list) else [of_action]
            is_empty = any("" in one if isinstance(one, list) else one == "" for one in values)
            if is_empty and not action.dest.startswith(_OVERRIDE):
                self.error(f'argument {"/".join(action.option_strings) or action.metavar}: is empty, ""')
        return found

    def _about_unknown(self, flag: str, hint: str) -> str:
        names = [known.removeprefix("--") for known in self._option_string_actions if known.startswith("--")]
        name, plain = flag.removeprefix("--"), without_numbers(flag.removeprefix("--"))
        if plain in GONE:
            return f"{flag} is gone: {GONE[plain]}"
        meant = dict.fromkeys(self.short.get(found, f"--{found}") for found in nearest(name, names))
        return f"{flag}: unknown option" + (f" (did you mean {' or '.join(meant)}?)" if meant else "") + hint

    def error(self, message: str) -> NoReturn:
        """Print what is wrong, and no usage, which is longer than a screen; exit code 2."""
        many = [flag for flag, one in self._option_string_actions.items() if one.nargs == "+" and flag in self._given]
        if message.startswith("the following arguments are required") and many:
            message += f" (before {many[0]}, which takes several values)"
        flags, found, _ = message.removeprefix("argument ").partition(": expected ")
        action = self._option_string_actions.get(flags.split("/")[0])
        if found and action is not None and action.help not in (None, argparse.SUPPRESS) and action.metavar:
            wanted = action.metavar if isinstance(action.metavar, str) else " ".join(action.metavar)
            message += f", {wanted}: {action.help.replace('%%', '%').removesuffix('.')}"
        self._refuse([f"{line}. All: {self.prog} --help" for line in message.split("\n")])

    def _refuse(self, lines: Sequence[str]) -> NoReturn:
        for line in lines:
            print(f"{self.prog}: error: {printable(with_shipped(line))}", file=sys.stderr)
        self.exit(2)

    def format_usage(self) -> str:
        """Return the usage line, without the hundred options of the recipe."""
        formatter = self._get_formatter()
        own = [action for action in self._actions if not action.dest.startswith(_OVERRIDE)]
        formatter.add_usage(self.usage, own, self._mutually_exclusive_groups)
        return formatter.format_help()

    def help_of(self, wanted: str | None) -> str:
        """Describe the options of a section of the recipe, or all flags ("all"), or those of the command itself."""
        formatter, of_recipe, everything = self._get_formatter(), self.section_groups, wanted == "all"
        section = of_recipe.get(wanted) if wanted else None
        formatter.add_text("" if section else self.description)
        usual = [one for one in self._action_groups if everything or one not in of_recipe.values()]
        for group in [section] if section else usual:
            formatter.start_section(group.title)
            formatter.add_text(group.description)
            formatter.add_arguments(group._group_actions)
            formatter.end_section()
        if section:
            return formatter.format_help()
        if sections := [section for section in of_recipe if section and not everything]:
            n_option = sum(len(group._group_actions) for group in of_recipe.values())
            flags = ", ".join(f"--{section}.OPTION" for section in sections)
            formatter.start_section("options of the recipe")
            formatter.add_text(
                f"{n_option} options of the recipe are flags too, by their dotted names: {flags} VALUE. Those of a "
                f"section: {self.prog} --help {sections[0]}. All: {self.prog} --help-all, or recipes/README.md. One "
                "of them: its flag without VALUE."
            )
            formatter.end_section()
        formatter.add_text(self.epilog)
        examples = "".join(f"  {line}\n" for line in self.examples)
        return f"{self.format_usage()}\n{formatter.format_help()}" + (f"\nexamples:\n{examples}" if examples else "")


def add_override_flags(parser: Parser, only: Sequence[str] | None = None) -> None:
    """Add a flag `--section.option VALUE` for every option, in a group per section, and --help-all.

    only: the sections wanted, "" standing for the options outside any section; all when None.
    """
    text = "Show the options of the recipe too, and stop."
    parser.add_argument("--help-all", action=_Show, show=lambda it, _: it.help_of("all"), nargs=0, help=text)
    for section, about in sections():
        if only is not None and section not in only:
            continue
        group = parser.add_argument_group(f"{section} options" if section else "options of the recipe", about)
        parser.section_groups[section] = group
        for field in all_fields():
            if field.section == section:
                text = field.help if field.inner else f"{field.help} [{field.kind}; default: {field.default}]"
                _add_override(group, f"--{field.name}", field.name, "VALUE", text)


def add_short_flags(parser: Parser) -> None:
    """Add the short flags of a command. Of a short and a dotted name of one option the last counts."""
    about = "For options of the recipe; what it says counts where the flag is not given."
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
    """Return (dotted name, value as written) of each option of the recipe that was given as a flag."""
    return [
        (name.removeprefix(_OVERRIDE), value)
        for name, value in vars(arguments).items()
        if name.startswith(_OVERRIDE) and value is not None
    ]


class _Show(argparse.Action):
    """Write a text to stdout, and stop. show: gives it, of the parser and the flag's value."""

    def __init__(self, option_strings: Sequence[str], dest: str, show: Callable[[Any, Any], str], **kwargs: Any):
        super().__init__(option_strings, argparse.SUPPRESS, default=argparse.SUPPRESS, **kwargs)
        self._show = show

    def __call__(self, parser: argparse.ArgumentParser, _: Any, value: Any, *rest: Any) -> None:
        write_stdout(with_shipped(self._show(parser, value)))
        parser.exit()


# What all commands share.


# The others are in nmt/errors.py, at the errors; all in docs/reference.md.
INTERNAL, INTERRUPTED, READER_GONE = 1, 130, 141


def run(body: Callable[[argparse.Namespace], int | None], parser: Parser, argv: Sequence[str] | None = None) -> int:
    """Parse `argv`, call `body(arguments)` and turn whatever happens into an exit code and a readable message."""
    _prepare_streams()
    given = sys.argv[1:] if argv is None else argv
    try:
        try:
            code = body(parser.read(given)) or 0
        except SystemExit as stop:  # after --help and --version, too
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
        code, message = _explain(error)
        if "--debug" in given:
            traceback.print_exc()
        for line in message.split("\n"):
            print(f"{parser.prog}: error: {printable(with_shipped(line))}", file=sys.stderr)
        if isinstance(error, OSError):
            _abandon_stdout()
        return code


@contextmanager
def files_of_pipes(args: argparse.Namespace, *flags: str) -> Iterator[None]:
    """Copy pipes that flags name to files, as they are read more than once. Their names end like those of the pipes."""
    names: dict[str, str] = {}
    with tempfile.TemporaryDirectory(prefix="nmt-pipes-") as folder:

        def copied(name: str) -> str:
            if not Path(name).is_fifo():  # other streams, such as devices, may never end
                return name
            path = f"{tempfile.mkdtemp(dir=folder)}/{Path(name).name}"
            with open(name, "rb") as pipe, open(path, "xb") as file:
                shutil.copyfileobj(pipe, file)
            names[path] = name
            return path

        for flag in flags:
            if given := getattr(args, flag):
                setattr(args, flag, list(map(copied, given)) if isinstance(given, list) else copied(given))
        try:
            yield
        except NmtError as error:
            for path, name in names.items():
                error.args = (str(error).replace(path, name),)
            raise


def must_be_free(
    path: Path, *, overwrite: bool, advice: str = "Choose another name", inputs: Sequence[str | Path] = ()
) -> None:
    """Raise NmtError if an output cannot be written there, or would replace something that may not be: one of the
    inputs, or of outputs that are files what is none."""
    if path.exists() and not overwrite:
        raise NmtError(f"{path} exists already. {advice}, or replace it with --overwrite.")
    for one in inputs:
        if path.exists() and os.path.exists(one) and path.samefile(one):
            raise NmtError(f"{path} is also read: choose another name for what is written.")
    if inputs and path.exists() and not path.is_file():
        raise NmtError(f"{path} is no file that could be replaced. {advice}.")
    folder = path.absolute().parent
    try:
        with tempfile.TemporaryFile(dir=folder):  # permissions do not tell all: nobody writes to /proc
            pass
    except OSError as error:
        if is_machine_error(error):
            raise
        raise NmtError(f"{path}: cannot be written: {folder} is no folder, or not yours to write to.") from None


def is_corpus(name: str) -> bool:
    """Return whether a name is that of a file with pairs."""
    return without_ending(name).lower().endswith((*ENDINGS, *NOT_READ)) and not Path(name).is_dir()


def refuse_corpus(name: str) -> None:
    """Raise DataError for the name of a file with pairs where text is read, which would be nonsense, line by line."""
    if is_corpus(name):
        raise DataError(
            f"{name}: is named as a file of pairs or records, and is read as text here, a sentence a line. Write the "
            "side that is wanted into a text file."
        )


def check_count(n_line: int, n_given: int, given: str, other: str | None) -> None:
    """Raise DataError if `other` (None: stdin) and the file `given` have different numbers of lines, or none."""
    if n_line != n_given:
        raise DataError(
            f"{other or 'the input'} has {n_line:,} lines but {given} has {n_given:,}: line n of one must belong to "
            "line n of the other. Look for a cut file, or one of another test set."
        )
    if not n_line:
        raise DataError(f"{given}: is empty, so there is nothing to compare.")


def _explain(error: Exception) -> tuple[int, str]:
    """The exit code and the message for an error that ended a command."""
    if ours := as_nmt_error(error):
        return ours.exit_code, str(ours)
    if isinstance(error, ModuleNotFoundError) and not str(error.name).startswith("nmt"):
        return NmtError.exit_code, incomplete(error)
    what = f"{type(error).__name__}: {str(error).partition(chr(10))[0]}"
    return INTERNAL, f"internal error (please report it; --debug shows the traceback): {what}"


def _prepare_streams() -> None:
    """Write UTF-8 and bare newlines whatever the locale or system: our output is data for other programs.

    Standard streams that a shell has closed (`2>&-`) are opened: no other file may get their numbers, which libraries
    write to, and stderr must not get into the output.
    """
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # which gets the lowest number that is free
    if sys.stderr is None:
        sys.stderr = os.fdopen(os.open(os.devnull, os.O_WRONLY), "w", encoding="utf-8")
    if isinstance(sys.stdout, io.TextIOWrapper):
        if isinstance(sys.stdout.buffer, io.RawIOBase):  # PYTHONUNBUFFERED: it may write a part and say nothing
            sys.stdout = open(sys.stdout.fileno(), "w", encoding="utf-8", closefd=False)  # noqa: SIM115
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
