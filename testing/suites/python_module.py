"""Runs the tests of one module of CPython's suite, and writes down what becomes of each.

    python_module.py RESULTS MODULE [--tests FILE] [--done FILE] [--classes PATTERN ...]

RESULTS gets a line when a test begins, one with its result when it is over, and "end" at the end. FILEs have names of tests, one a
line: those to run (or patterns), and those not to run. A test that takes longer than LIMIT seconds ends the process, after its threads' places.
"""
import argparse
import faulthandler
import fnmatch
import importlib
import sys
import traceback
import unittest

from test import support

LIMIT = 90
# Everything but what needs the Internet, a display, or very much memory or room.
support.use_resources = ["cpu", "walltime", "subprocess", "curses"]


class Result(unittest.TestResult):
    """Writes results down at once, so that those before a crash are not lost."""

    def __init__(self, path):
        super().__init__()
        self.file = open(path, "a")
        self.running, self.result = None, None

    def note(self, word, name):
        print(word, name, file=self.file, flush=True)

    def startTest(self, test):
        super().startTest(test)
        self.running, self.result = test.id(), "pass"
        self.note("begin", test.id())
        print("---", test.id(), flush=True)
        faulthandler.dump_traceback_later(LIMIT, exit=True)

    def stopTest(self, test):
        faulthandler.cancel_dump_traceback_later()
        self.note(self.result, test.id())
        self.running = None
        super().stopTest(test)

    def is_now(self, result, test):
        """Remembers the result of the test that runs. Classes and modules that fail or are skipped have one of their own."""
        if self.running is None:
            self.note(result, test.id())
        elif self.result != "fail":
            self.result = result

    def failed(self, test, error):
        print(test.id(), *traceback.format_exception(*error), sep="\n", flush=True)
        self.is_now("fail", test)

    def addFailure(self, test, err):
        self.failed(test, err)

    def addError(self, test, err):
        self.failed(test, err)

    def addSubTest(self, test, subtest, err):
        if err is not None:
            self.failed(test, err)

    def addSkip(self, test, reason):
        print(test.id(), "skipped:", reason, flush=True)
        self.is_now("skip", test)

    def addUnexpectedSuccess(self, test):
        self.is_now("fail", test)


def flat(suite):
    for test in suite:
        if isinstance(test, unittest.TestSuite):
            yield from flat(test)
        else:
            yield test


def lines(path):
    return set(open(path).read().splitlines()) if path else set()


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("results")
    parser.add_argument("module")
    parser.add_argument("--tests")
    parser.add_argument("--done")
    parser.add_argument("--classes", nargs="*", default=["*"])
    arguments = parser.parse_args()
    tests, done = lines(arguments.tests), lines(arguments.done)
    sys.argv = sys.argv[:1]
    result = Result(arguments.results)
    try:
        module = importlib.import_module(arguments.module)
    except unittest.SkipTest as reason:
        print("skipped:", reason)
        result.note("skip", arguments.module)
        result.note("end", arguments.module)
        return

    def matches(name, patterns):
        return any(fnmatch.fnmatchcase(name, pattern) for pattern in patterns)

    def is_wanted(test):
        is_named = not arguments.tests or test.id() in tests or matches(test.id(), tests)
        return is_named and test.id() not in done and matches(type(test).__name__, arguments.classes)

    loaded = unittest.defaultTestLoader.loadTestsFromModule(module)
    unittest.TestSuite(filter(is_wanted, flat(loaded))).run(result)
    result.note("end", arguments.module)


if __name__ == "__main__":
    main()
