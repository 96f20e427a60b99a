# `make demo` shows what Atoll does, `make lint` and `make test` check it, `make bench` measures it. See HACKING.md.
CARGO ?= cargo
# More arguments for `make bench`, such as BENCH="--quick" or BENCH="--case short-nginx".
BENCH ?=
# More arguments for `make papers`, such as PAPERS=--quick.
PAPERS ?=
# How long each fuzz target runs, in seconds.
FUZZ_SECONDS ?= 60
# How long `make chaos` takes, in seconds.
CHAOS_SECONDS ?= 3600

# The number of system tests that run at once: most of them wait, for programs, timers and deaths.
TEST_THREADS ?= $(shell expr 3 '*' $$(nproc))

# Documentation of private items is built, too, and may name them.
RUSTDOC_LINTS = -D warnings -A rustdoc::private-intra-doc-links

# Which attacks `make attacks` runs, such as ATTACKS="groups bells" (default: all), and for how many seconds each.
ATTACKS ?=
ATTACK_SECONDS ?= 10

# Which suites `make suites` runs, such as SUITES="python test_socket libuv" (default: all).
SUITES ?=

.PHONY: build demo test lint bench papers fuzz fuzz-coverage attacks soak chaos suites reproducible install-deps clean

build:
	$(CARGO) build --release -p atoll -p atoll-preload

demo: install-deps
	$(CARGO) xtask demo

# Each command runs, also if one before it has failed.
test: install-deps build
	status=0; \
	$(CARGO) test --workspace --exclude atoll-system-tests --no-fail-fast || status=1; \
	RUST_TEST_THREADS=$(TEST_THREADS) $(CARGO) test -p atoll-system-tests --no-fail-fast || status=1; \
	exit $$status

# Checks that run no test: format, lints of compiler, clippy and rustdoc, and the structure (HACKING.md).
lint: install-deps
	$(CARGO) fmt --check
	$(CARGO) clippy --workspace --all-targets -- -D warnings
	RUSTDOCFLAGS="$(RUSTDOC_LINTS)" $(CARGO) doc --quiet --workspace --no-deps --document-private-items --exclude atoll-preload
	RUSTDOCFLAGS="$(RUSTDOC_LINTS)" $(CARGO) doc --quiet --no-deps --document-private-items -p atoll-preload
	$(CARGO) xtask structure

bench: install-deps
	$(CARGO) xtask bench $(BENCH)

# The papers' experiments: CSV, SVG and a sentence each, in papers/. Takes half an hour, most of it for real runs.
papers:
	testing/install-deps valgrind:valgrind
	$(CARGO) xtask papers $(PAPERS)

# Runs every fuzz target for this time, each time from other random numbers; needs only the stable compiler.
fuzz:
	$(CARGO) run --profile checked -p atoll-fuzz-targets --bin fuzz -- --seconds $(FUZZ_SECONDS) --number $$(date +%s)

# The same targets under coverage guidance. Needs the nightly toolchain and cargo-fuzz.
fuzz-coverage:
	cd testing/fuzz && for target in $$(cargo +nightly fuzz list); do \
		mkdir -p corpus/$$target && cargo +nightly fuzz run $$target corpus/$$target seeds/$$target -- \
			-max_total_time=$(FUZZ_SECONDS) || exit 1; done

# The system tests with amounts that take long: 1 GiB per transfer, a million connections. The attacks, with judged rates.
soak: build
	testing/install-deps --soak
	ATOLL_SOAK=1 $(CARGO) test --release -p atoll-system-tests -p atoll-attacks --no-fail-fast

# Programs that attack the stack they run on (testing/attacks), beside a neighbour that is measured.
attacks: install-deps build
	ATTACK_SECONDS=$(ATTACK_SECONDS) $(CARGO) test --release -p atoll-attacks --test attacks -- --nocapture $(ATTACKS)

# Kills and stops servers of a stack for this time (in seconds) under programs that check everything.
chaos: install-deps build
	ATOLL_CHAOS=$(CHAOS_SECONDS) $(CARGO) test --release -p atoll-system-tests chaos:: -- --nocapture

# Test suites of CPython and libuv, on the kernel and on Atoll, test by test. Installs packages, and builds sources of some.
suites: install-deps build
	testing/suites/run $(SUITES)

# Checks that equal sources give equal programs: builds HEAD twice, in other folders, and leaves the programs in target/reproducible.
reproducible: install-deps
	testing/reproducible

install-deps:
	testing/install-deps

clean:
	$(CARGO) clean
	rm -rf bench/results bench/__pycache__
