"""The command line: `python -m booktools COMMAND`. The Makefile's targets call it."""

import argparse
import errno
import os
import signal
import sys


def parser():
    top = argparse.ArgumentParser(
        prog="python -m booktools", description="Run, test and export the book."
    )
    commands = top.add_subparsers(dest="command", required=True, metavar="COMMAND")

    def command(name, text):
        return commands.add_parser(name, help=text, description=text)

    run = command("run", "run a notebook headless; the executed copy goes to results/")
    run.add_argument(
        "chapter", nargs="?", default="headline", help="09, grpo, 09_grpo, ... (default: headline)"
    )
    run.add_argument(
        "-p",
        dest="pairs",
        nargs=2,
        action="append",
        default=[],
        metavar=("NAME", "VALUE"),
        help="set a parameter of the notebook's `parameters` cell; may be repeated",
    )
    run.add_argument("--kernel", default="python3", help="Jupyter kernel (default: python3)")
    save = command("save", "run a chapter from a clean kernel, store its outputs in place, export")
    save.add_argument("chapter", nargs="?")
    save.add_argument("--kernel", default="python3", help="Jupyter kernel (default: python3)")
    test = command("test", "static checks, unit tests and every chapter")
    test.add_argument("chapter", nargs="?", help="only this chapter")
    test.add_argument(
        "--jobs", type=int, help="processes at a time (default: the cores, at most 4)"
    )
    check = command("check", "the seven rules that bind prose to code, chapters run included")
    check.add_argument("chapter", nargs="?", help="only this chapter")
    check.add_argument("--static", action="store_true", help="leave out the run: a few seconds")
    check.add_argument("--jobs", type=int, help="processes at a time (default: the cores, at most 4)")
    alone = command("alone", "run chapters alone, in an empty environment, from the built package")
    alone.add_argument("chapters", nargs="*", metavar="chapter", help="default: 00 01 04")
    alone.add_argument("--keep", metavar="FOLDER", help="keep the environment there, and use it again")
    site = command("site", "the book as HTML, EPUB and PDF, from the stored outputs")
    site.add_argument("--check", action="store_true", help="check the site that is built")
    site.add_argument("--only", choices=("html", "epub", "pdf"), help="build only this format")
    command("export", "notebooks to library, and the API index")
    command("api", "write the API index, nbs/api.qmd")
    command("lab", "open the notebooks in JupyterLab; further arguments go to it")
    return top


def main(arguments=None):
    """Run one command; returns the exit status. Every foreseen failure is one line on stderr."""
    options, rest = parser().parse_known_args(arguments)
    if rest and options.command != "lab":
        return _fail(
            f"{options.command} does not know {' '.join(rest)!r}; "
            f"`python -m booktools {options.command} --help` lists what it takes"
        )
    os.environ.setdefault("OMP_NUM_THREADS", "1")  # models this small run fastest on one thread
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.default_int_handler)  # either way, clean up and say so
    from .project import ROOT, BookError

    try:
        if options.command == "run":
            from .run import run

            run(options.chapter, options.pairs, options.kernel)
        elif options.command == "save":
            from .run import save

            save(options.chapter, options.kernel)
        elif options.command == "test":
            from .suite import test

            test(options.chapter, options.jobs)
        elif options.command == "check":
            from .suite import test

            test(options.chapter, options.jobs, units=False, chapters=not options.static)
        elif options.command == "alone":
            from .alone import trial

            trial(options.chapters, options.keep)
        elif options.command == "site":
            from .site.build import FORMATS, build
            from .site.check import site_check

            if options.check:
                site_check()
            else:
                build(formats=(options.only,) if options.only else FORMATS)
        elif options.command == "export":
            from .export import export

            export()
        elif options.command == "api":
            from . import api
            from .project import write_atomic

            write_atomic(ROOT / api.INDEX, api.index())
        elif options.command == "lab":
            root = ["--allow-root"] if hasattr(os, "geteuid") and os.geteuid() == 0 else []
            os.chdir(ROOT / "nbs")
            os.execv(sys.executable, [sys.executable, "-m", "jupyterlab", *root, *rest])
    except BookError as error:
        return _fail(error)
    except ModuleNotFoundError as error:
        return _fail(
            f"the package {error.name!r} is missing; `make install` installs what the book needs"
        )
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT, errno.EACCES, errno.EROFS):
            raise
        where = f" at {error.filename}" if error.filename else ""
        return _fail(
            f"cannot write{where}: {error.strerror}; "
            "free some space or rights there, then run the same command again"
        )
    except KeyboardInterrupt:
        return _fail("interrupted; files are whole, the same command starts again")
    return 0


def _fail(message):
    print(f"booktools: {message}", file=sys.stderr)
    return 1


if __name__ == "__main__":
    sys.exit(main())
