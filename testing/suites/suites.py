"""The suites: where they come from, how their tests are run, and how their results are read."""
import fnmatch
import os
import pathlib
import re
import shutil
import subprocess

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parent.parent
# Sources of Debian's packages are built here.
SOURCES = ROOT / "target/suites/sources"


class Failure(Exception):
    """Something failed that has to work; the text says what, and what to do."""


def sh(*command, deadline=30, check=True, folder=None):
    """Runs a command to its end and returns what it wrote."""
    done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=deadline, cwd=folder)
    if check and done.returncode != 0:
        raise Failure(f"{' '.join(map(str, command))}: status {done.returncode}\n{done.stdout[-2000:]}{done.stderr[-2000:]}")
    return done.stdout


def source(package, builds, *needed):
    """Fetches the source of a Debian package and builds it by these commands, once. Returns its folder."""
    folder, mark = SOURCES / package, SOURCES / f"{package}.built"
    if mark.exists():
        return folder
    sh(ROOT / "testing/install-deps", "dpkg-source:dpkg-dev", *needed, deadline=1200)
    shutil.rmtree(folder, ignore_errors=True)
    SOURCES.mkdir(parents=True, exist_ok=True)
    names = sh("apt-cache", "showsrc", package, check=False)
    if f"Package: {package}\n" not in names:
        raise Failure(
            f"apt knows no source of {package}: add the type `deb-src` to the sources of Debian (`Types: deb deb-src` in"
            " /etc/apt/sources.list.d, or a line `deb-src ...` in /etc/apt/sources.list), and run `apt-get update`"
        )
    sh("apt-get", "source", "--only-source", package, deadline=600, folder=SOURCES)
    [unpacked] = [path for path in SOURCES.glob(f"{package}-*") if path.is_dir()]
    unpacked.rename(folder)
    for command in builds:
        sh("sh", "-c", command, deadline=3600, folder=folder)
    mark.touch()
    return folder


class Suite:
    """A suite has groups of tests; each group is a run of a program, which has `deadline` seconds."""

    deadline = 1800

    def prepare(self):
        """Installs and builds what is missing."""

    def groups(self):
        """Returns the names of all groups."""

    def command(self, group, tests, done):
        """Returns the command for a group: for tests that match one of these patterns (`None`: for all), where it can choose, without
        those that are done."""

    def results(self, group, log):
        """Returns the result of each test that the log shows, and whether the group has come to its end."""

    def environment(self):
        """Returns the environment of the suite's programs."""
        return {"PATH": "/usr/local/sbin:/usr/sbin:/usr/bin:/sbin:/bin", "HOME": "/root", "LANG": "C.UTF-8", "TERM": "dumb"}


class Python(Suite):
    """The modules of CPython's own suite that use sockets."""

    name = "python"
    modules = {
        "test_socket": [], "test_selectors": [], "test_poll": [], "test_epoll": [], "test_select": [],
        "test_asyncio.test_sock_lowlevel": [], "test_asyncio.test_streams": [], "test_asyncio.test_events": [],
        "test_asyncio.test_server": [], "test_asyncio.test_sslproto": [], "test_asyncio.test_ssl": [],
        "test_asyncio.test_sendfile": [], "test_asyncio.test_buffered_proto": [], "test_asyncio.test_unix_events": [],
        "test_asyncio.test_subprocess": [], "test_asyncio.test_selector_events": [], "test_asyncio.test_base_events": [],
        "test_socketserver": [], "test_ssl": [], "test_httplib": [], "test_httpservers": [], "test_urllib2_localnet": [],
        "test_ftplib": [], "test_smtplib": [], "test_poplib": [], "test_imaplib": [], "test_nntplib": [], "test_telnetlib": [],
        "test_xmlrpc": [], "test_docxmlrpc": [], "test_wsgiref": [], "test_robotparser": [], "test_urllib": [], "test_urllib2": [],
        "test_asyncore": [], "test_asynchat": [], "test_smtpd": [], "test_signal": [], "test_eintr": [], "test_logging": [],
        "test_os": ["*Sendfile*", "*SendFile*", "*Blocking*", "*FD*", "*Pidfd*"], "test_fcntl": [], "test_io": ["*Signal*"],
        "test_subprocess": [], "test_fork1": [], "test_wait4": [], "test_pty": [],
        **{f"test_multiprocessing_{way}": ["*Connection*", "*Listener*", "*Poll*", "*Wait*", "*Timeouts*", "*Family*", "*Socket*"]
           for way in ("fork", "spawn", "forkserver")},
    }  # fmt: skip

    def prepare(self):
        sh(ROOT / "testing/install-deps", "/usr/lib/python3.11/test/test_socket.py:libpython3.11-testsuite", deadline=600)
        self.folder = SOURCES.parent / "python"
        self.folder.mkdir(parents=True, exist_ok=True)

    def groups(self):
        return list(self.modules)

    def command(self, group, tests, done):
        files = [self.folder / f"{group}.{kind}" for kind in ("tests", "done", "results")]
        command = ["/usr/bin/python3", HERE / "python_module.py", files[2], f"test.{group}", "--done", files[1]]
        for path, names in zip(files, (tests, done, ())):
            path.write_text("\n".join(names or ()))
        if tests is not None:
            command += ["--tests", files[0]]
        if self.modules[group]:
            command += ["--classes", *self.modules[group]]
        return command

    def results(self, group, log):
        found, running, word = {}, None, None
        for line in (self.folder / f"{group}.results").read_text().splitlines():
            word, name = line.split(" ", 1)
            running = name if word == "begin" else None
            if word not in ("begin", "end"):
                found[name] = word
        if running:
            found[running] = "hang" if "Timeout (0:" in log.read_text(errors="replace") else "crash"
        return found, word == "end"


class Programs(Suite):
    """A suite whose tests are programs, or files for one; `run` is a shell's command for "$test", in the folder `place`."""

    place = "."
    seconds = 120

    def tests(self):
        """Returns the names of all tests."""

    def groups(self):
        return ["tests"]

    def command(self, group, tests, done):
        names = [name for name in self.tests() if name not in done]
        if tests is not None:
            # A test may have results for each of its parts, which are named behind it.
            names = [name for name in names if any(fnmatch.fnmatchcase(name, it) or it.startswith(name + ": ") for it in tests)]
        run = f"timeout -k 5 {self.seconds} sh -c '{self.run}'"
        loop = f'cd "$0"; for test; do export test; printf "\\n== begin %s\\n" "$test"; {run}; printf "\\n== %s %s\\n" $? "$test"; done; echo "== end"'
        return ["sh", "-c", loop, self.folder / self.place, *names]

    def results(self, group, log):
        found, running, text, is_complete = {}, None, [], False
        for line in log.read_text(errors="replace").splitlines():
            mark = re.fullmatch(r"== (begin|end|\d+) ?(.*)", line)
            if not mark:
                text.append(line)
            elif mark[1] == "begin":
                running, text = mark[2], []
            elif mark[1] == "end":
                is_complete = True
            else:
                found.update(self.judged(mark[2], int(mark[1]), "\n".join(text)))
                running = None
        if running:
            found[running] = "hang"
        return found, is_complete

    def judged(self, test, status, text):
        """Returns the results of a test, or of its parts, from its status and from what it has said."""
        skipped = status == self.skips or re.search(self.says_skipped, text)
        return {test: "hang" if status in (124, 137) else "fail" if status not in (0, self.skips) else "skip" if skipped else "pass"}

    skips = None
    says_skipped = r"(?m)^ok \d+ .*# SKIP|^1\.\.0 # SKIP"


class Libuv(Programs):
    """libuv's own tests, each in a process of its own."""

    name = "libuv"
    place = "build"
    run = 'UV_RUN_AS_ROOT=1 ./uv_run_tests "$test"'

    def prepare(self):
        build = "cmake -B build -DLIBUV_BUILD_TESTS=ON -DCMAKE_BUILD_TYPE=RelWithDebInfo && cmake --build build -j2 --target uv_run_tests"
        self.folder = source("libuv1", [build], "cmake:cmake")

    def tests(self):
        return sh("env", "UV_RUN_AS_ROOT=1", "./uv_run_tests", "--list", folder=self.folder / "build").split()


SUITES = {suite.name: suite for suite in (Python(), Libuv())}
