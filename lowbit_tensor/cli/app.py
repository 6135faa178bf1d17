"""The commands and their options; what each does stands in a file of its own."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated, Any

import typer

from ..quantize import DEFAULT_METHOD, METHODS
from ..version import __version__
from .console import BadUse, err, one_line, out, quiet_libraries

INTERRUPTED = 130
UsageError: Any = typer.BadParameter.__mro__[1]  # of click, which some releases of typer carry within

app = typer.Typer(name="lowbit", no_args_is_help=True, add_completion=False, rich_markup_mode=None, pretty_exceptions_enable=False)

Bits = Annotated[int | None, typer.Option("--bits", help="Bits a weight, 1 to 8.", show_default=False)]
GroupSize = Annotated[
    int | None,
    typer.Option("--group-size", help="Weights that share a scale and a zero; -1 for a whole row.", show_default="64"),
]
METHOD_HELP = f"Quantizer: {', '.join(METHODS)}."
Method = Annotated[str, typer.Option("--method", help=METHOD_HELP)]
Config = Annotated[Path | None, typer.Option("--config", help="JSON file of a LowBitConfig, instead of --bits.", show_default=False)]
Torchchat = Annotated[
    str | None,
    typer.Option("--quantize", help='torchchat\'s options, e.g. \'{"linear:afpwx": {"bitwidth": 4, "groupsize": 64}}\', or a file.'),
]
Model = Annotated[Path, typer.Argument(metavar="MODEL", help="A model folder, or a GGUF file.")]


def run(argv: list[str]) -> int:
    """Runs a command line; every mistake is one line on standard error."""
    try:
        result = app(argv or ["--help"], prog_name="lowbit", standalone_mode=False)
    except UsageError as error:
        return _fail(error.format_message(), 2)
    except BadUse as error:
        return _fail(str(error), 2)
    except (KeyboardInterrupt, typer.Abort):
        result = INTERRUPTED
    except Exception as error:
        if os.environ.get("LOWBIT_TRACEBACK"):
            raise
        return _fail(one_line(error), 1)
    if result == INTERRUPTED:  # what typer makes of Ctrl-C
        return _fail("interrupted; nothing was left half-written", INTERRUPTED)
    return (result if isinstance(result, int) else 0) if argv else 2


def _fail(message: str, status: int) -> int:
    err.print(f"lowbit: {message}", markup=False)
    return status


def _version(show: bool) -> None:
    if show:
        out.print(f"lowbit {__version__}")
        raise typer.Exit


@app.callback()
def lowbit(
    version: Annotated[bool, typer.Option("--version", help="Print the version.", callback=_version, is_eager=True)] = False,
) -> None:
    """Weights of 1 to 8 bits for PyTorch."""


@app.command()
def quantize(
    src: Annotated[Path, typer.Argument(metavar="SRC", help="A Hugging Face folder or a GGUF file.")],
    dst: Annotated[Path, typer.Argument(metavar="DST", help="The folder to write.")],
    bits: Bits = None,
    group_size: GroupSize = None,
    method: Annotated[str | None, typer.Option("--method", help=METHOD_HELP, show_default=DEFAULT_METHOD)] = None,
    config: Config = None,
    torchchat: Torchchat = None,
    embeddings: Annotated[bool, typer.Option("--embeddings", help="Quantize embeddings too.")] = False,
    max_shard_size: Annotated[str, typer.Option(help="Weights a file, at most.")] = "5GB",
    force: Annotated[bool, typer.Option("--force", help="Replace DST.")] = False,
) -> None:
    """Quantize a model and write it as a folder."""
    quiet_libraries()
    from . import quantize as command

    command.run(src, dst, command.Settings(bits, group_size, method, config, torchchat, embeddings), max_shard_size, force)


@app.command()
def generate(
    model: Model,
    prompt: Annotated[str, typer.Option("--prompt", help="The text to continue.")] = "The capital of France is",
    max_new_tokens: Annotated[int, typer.Option(help="Tokens to generate, at most.", min=1)] = 64,
    chat: Annotated[bool, typer.Option("--chat", help="Put the prompt into the model's chat template.")] = False,
    temperature: Annotated[float, typer.Option(help="0 takes the likeliest token each time.", min=0.0)] = 0.0,
    seed: Annotated[int, typer.Option(help="For a temperature above 0.")] = 0,
    torchchat: Torchchat = None,
) -> None:
    """Continue a prompt; the text goes to standard output, the measures to standard error."""
    quiet_libraries()
    from . import generate as command

    command.run(model, prompt, max_new_tokens, chat, temperature, seed, torchchat)


@app.command("eval")
def evaluate(
    model: Model,
    text: Annotated[
        Path | None, typer.Option("--text", help="A text file; Python's own reference prose without it.", show_default=False)
    ] = None,
    tokens: Annotated[int, typer.Option(help="Tokens from the text's start.", min=2)] = 2048,
    window: Annotated[int, typer.Option(help="Tokens a window.", min=2)] = 512,
    torchchat: Torchchat = None,
) -> None:
    """Perplexity of a text."""
    quiet_libraries()
    from . import evaluate as command

    command.run(model, text, tokens, window, torchchat)


@app.command()
def inspect(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="A safetensors file, an index or a model folder.")],
    source: Annotated[
        Path | None, typer.Option("--source", help="The float model, to show each tensor's error.", show_default=False)
    ] = None,
) -> None:
    """List the tensors of a file: shape, bits, group size, bytes."""
    quiet_libraries()
    from . import inspect as command

    command.run(file, source)


@app.command()
def demo(
    folder: Annotated[Path, typer.Option("--out", help="Where models, table and plot go.")] = Path("demo-output"),
    bits: Annotated[list[int] | None, typer.Option("--bits", help="Widths; may be repeated.", show_default="8 6 5 4 3")] = None,
    method: Method = DEFAULT_METHOD,
) -> None:
    """Quantize SmolLM2-135M-Instruct at several widths: text, perplexity, size; a table and a plot."""
    quiet_libraries()
    from . import demo as command

    command.run(folder, bits or [8, 6, 5, 4, 3], method)


@app.command()
def selftest(
    report: Annotated[
        Path | None, typer.Option("--report", metavar="FILE", help="JSON to write: machine and outcomes.", show_default=False)
    ] = None,
) -> None:
    """Compare every kernel for Apple GPUs with the plain reference, on this machine."""
    from . import selftest as command

    command.run(report)
