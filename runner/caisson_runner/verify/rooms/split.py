"""In the tests' room of a split run: pytest, the task's tests, and stand-ins for the agent's modules.

No code of the agent's is ever imported here; a test that loads some another way is stopped at the file. An attribute or
a call of one of its modules goes out as a question on the original stdout, each line with a word that came over stdin,
and the answer comes back on stdin. A process of the agent's that a test starts here cannot read this one's memory: it
is made undumpable. Stands behind `values`.
"""

import builtins
import ctypes
import importlib.abc
import importlib.machinery
import json
import os
import sys
import types

import pytest

TYPE_CHECKING = False
if TYPE_CHECKING:  # importing typing costs more than the rest of the start
    from typing import Any

    from caisson_runner.verify.rooms.values import decode, encode

PR_SET_DUMPABLE = 4
PLAIN = frozenset({"builtins", "collections", "datetime", "decimal", "fractions", "pathlib", "copyreg", "uuid"})
"""What a pickle that a test reads may name; anything else could be a call."""


class Unsplit(Exception):
    """The test wants of the agent's code what only one process can give."""


class Link:
    """The way to the other room."""

    def __init__(self) -> None:
        self.requests = os.fdopen(os.dup(0), "rb")
        self.answers = os.fdopen(os.dup(1), "wb")
        null = os.open(os.devnull, os.O_RDWR)
        os.dup2(null, 0)
        os.close(null)
        os.dup2(2, 1)
        self.task = json.loads(self.requests.readline())
        self.dumps, self.loads = json.dumps, json.loads
        self.unsplit = False
        self.exceptions: dict[str, type[BaseException]] = {}

    def send(self, **message: "Any") -> None:
        self.answers.write(self.dumps({"word": self.task["word"], **message}).encode("ascii") + b"\n")
        self.answers.flush()

    def ask(self, **request: "Any") -> "Any":
        self.send(ask=request)
        reply = self.loads(self.requests.readline())
        if "lost" in reply:
            raise RuntimeError(f"the code under test was lost: {reply['lost']}")
        if "raised" in reply:
            raise self.raised(reply["raised"], reply.get("text", ""))
        return reply

    def raised(self, names: "list[str]", text: str) -> BaseException:
        for name in names:
            kind = self.exceptions.get(name) or getattr(builtins, str(name), None)
            if isinstance(kind, type) and issubclass(kind, BaseException):
                return kind(text)
        return RuntimeError(text)

    def give_up(self, what: str) -> Unsplit:
        self.unsplit = True
        return Unsplit(what)

    def made(self, form: "dict[str, Any]") -> "Any":
        if form["t"] == "exception":
            name, bases = form["v"]
            if name not in self.exceptions:
                known = [getattr(builtins, base) for base in bases if hasattr(builtins, base)]
                self.exceptions[name] = types.new_class(str(name), tuple(known[:1] or [Exception]))
            return self.exceptions[name]
        return Kept(self, form["v"], form.get("kind", "object"))

    def value(self, reply: "dict[str, Any]") -> "Any":
        return decode(reply["value"], self.made)

    def call(self, target: "dict[str, Any]", args: "tuple[Any, ...]", kwargs: "dict[str, Any]") -> "Any":
        def keep(value: "Any") -> "Any":
            if isinstance(value, Kept):
                return {"t": "kept", "v": value._number}
            raise self.give_up(f"a {type(value).__name__} is passed in")

        sent = [encode(arg, keep) for arg in args]
        named = {name: encode(arg, keep) for name, arg in kwargs.items()}
        reply = self.ask(op="call", args=sent, kwargs=named, **target)
        for arg, after in zip(args, reply.get("args", ()), strict=False):  # what a call does to its arguments
            if type(arg) is list:
                arg[:] = decode(after, self.made)
            elif type(arg) is dict:
                changed = decode(after, self.made)
                arg.clear()
                arg.update(changed)
        return self.value(reply)


class Kept:
    """Stands for an object that stayed in the other room. It can be called and asked for attributes, nothing else."""

    def __init__(self, link: Link, number: int, kind: str, path: "tuple[str, ...]" = ()) -> None:
        self._link, self._number, self._kind, self._path = link, number, kind, path

    def __getattr__(self, name: str) -> "Any":
        if name.startswith("__"):
            raise AttributeError(name)
        return self._link.value(self._link.ask(op="get", kept=self._number, path=[name]))

    def __call__(self, *args: "Any", **kwargs: "Any") -> "Any":
        return self._link.call({"kept": self._number, "path": []}, args, kwargs)


def refuse(name: str) -> "Any":
    def method(self: Kept, *args: "Any") -> "Any":
        raise self._link.give_up(f"{name} of a {self._kind} of the agent's")

    return method


for _name in (
    "eq", "ne", "lt", "le", "gt", "ge", "bool", "len", "iter", "next", "contains", "getitem", "int", "float", "index",
    "str", "add", "radd", "sub", "mul", "enter", "exit", "instancecheck", "subclasscheck",
):  # fmt: skip
    setattr(Kept, f"__{_name}__", refuse(f"__{_name}__"))
Kept.__hash__ = refuse("__hash__")  # type: ignore[method-assign]


class Stand(types.ModuleType):
    """Stands for a module of the agent's."""

    def __getattr__(self, name: str) -> "Any":
        if name.startswith("__"):
            raise AttributeError(name)
        link: Link = self.__dict__["__link"]
        reply = link.ask(op="get", module=self.__name__, path=[name])
        form = reply["value"]
        if isinstance(form, dict) and form["t"] == "kept" and not form.get("call"):
            raise link.give_up(f"{self.__name__}.{name} is a {form.get('kind')}")
        return link.value(reply)


class Finder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Answers for the agent's modules before any folder is looked into."""

    def __init__(self, link: Link) -> None:
        self.link, self.names = link, frozenset(link.task["modules"])

    def find_spec(self, name: str, path: "Any" = None, target: "Any" = None) -> "Any":
        if name.partition(".")[0] not in self.names:
            return None
        return importlib.machinery.ModuleSpec(name, self, is_package=True)

    def create_module(self, spec: "Any") -> "Any":
        module = Stand(spec.name)
        module.__dict__["__link"] = self.link
        return module

    def exec_module(self, module: "Any") -> None:
        self.link.ask(op="import", module=module.__name__, path=[])


def guard(link: Link, written: "frozenset[str]") -> None:
    """Stop whatever would bring code the agent wrote into this process: a loader, a library, a pickle."""

    everything = "*" in written  # too many to name

    def hook(event: str, args: "tuple[Any, ...]") -> None:
        if event in ("open", "ctypes.dlopen"):
            path = args[0]
        elif event == "import":
            path = args[1]
        elif event == "pickle.find_class":
            if args[0].partition(".")[0] not in PLAIN or args[1] in ("eval", "exec", "getattr", "__import__", "open"):
                raise link.give_up(f"a pickle names {args[0]}.{args[1]}")
            return
        else:
            return
        if isinstance(path, (str, bytes, os.PathLike)):
            where = os.path.realpath(os.fsdecode(path))
            unknown = (
                everything and where.endswith((".py", ".pyc", ".so")) and not where.startswith(("/usr/", "/tests/"))
            )
            if where in written or unknown:
                raise link.give_up(f"{where} is to be loaded")

    sys.addaudithook(hook)


class Report:
    def __init__(self, link: Link) -> None:
        self.link = link

    def pytest_runtest_logstart(self) -> None:
        self.link.unsplit = False

    def pytest_runtest_logreport(self, report: "Any") -> None:
        if report.when == "call" or report.outcome != "passed":
            outcome = "xfailed" if hasattr(report, "wasxfail") else report.outcome
            self.link.send(test=report.nodeid, outcome="unsplit" if self.link.unsplit else outcome)

    def pytest_collectreport(self, report: "Any") -> None:
        if report.failed:
            self.link.send(test=report.nodeid, outcome="unsplit" if self.link.unsplit else "not collected")


def main() -> int:
    ctypes.CDLL(None).prctl(PR_SET_DUMPABLE, 0, 0, 0, 0)
    link = Link()
    os.environ["PYTEST_DISABLE_PLUGIN_AUTOLOAD"] = "1"
    sys.pycache_prefix = f"/nowhere-{link.task['word']}"  # a compiled file of the agent's could say something else
    sys.meta_path.insert(0, Finder(link))
    guard(link, frozenset(link.task["written"]))
    tests = link.task["tests"]
    code = pytest.main(
        ["-q", "-c", "/dev/null", "--rootdir", tests, "--confcutdir", tests, "-p", "no:cacheprovider", tests],
        plugins=[Report(link)],
    )
    link.send(end=int(code))
    return int(code)


sys.exit(main())
