# Whimbrel: what people and CI run. `make help` lists it.

CARGO ?= cargo
JOBS ?= $(shell nproc 2>/dev/null || echo 2)
# Seconds for each fuzz target.
FUZZ_SECONDS ?= 20
FUZZ_TARGETS := frame record ticket config names_protocol har transfer notice status relay chat snapshot suspended sessions stun tls durable introduction known_peers mdns texts access proxy devices router

# The older program of `make interop`: the first whose bytes on the wire are still understood. It is of the day on which
# records of names got a signed end (version 2). Programs from before cannot read those, though theirs are still read.
OLD ?= 4784131
# The older program from which today's takes over: the first with which everything that runs can be taken over.
OLD_TAKE_OVER ?= b2703c9
# Where scripts/setup.sh installs Rust, if it has to.
export PATH := $(PATH):$(or $(CARGO_HOME),$(HOME)/.cargo)/bin
TARGET := $(abspath $(or $(CARGO_TARGET_DIR),target))

RUN_TESTS = CARGO="$(CARGO)" python3 scripts/run-tests.py --jobs $(JOBS) $(if $(BESIDE),--beside $(BESIDE))

# What `make coverage` looks at. Tests that measure may fail under it, and are only told. LLVM_COV and LLVM_PROFDATA name the tools where rustup has none.
COVERED := -p whimbrel-base -p whimbrel-proto -p whimbrel-names -p whimbrel-transport
# What `make mutants` breaks, and in how many ways.
MUTATED := -p whimbrel-proto -p whimbrel-names -f 'crates/proto/src/**' -f 'crates/names/src/**'
MUTANTS ?= 200

# How often `make eval-access` loads each page by each policy.
ROUNDS ?= 7

# How often `make eval-reach` tries each pair of gateways, and how many MiB go through it in the first run.
RUNS ?= 20
SIZE ?= 1024

# Recorded cellular networks for the bench `traces`.
TRACES ?= ../shared/data/traces

.PHONY: help setup build demo demo-devices test checks dist test-bare format lint docs unit interop soak eval-access eval-devices eval-durable eval-messages eval-reach bench bench-key bench-quick bench-pageload fuzz coverage mutants clean

help: ## Show this list
	@awk -F':.*## ' '/^[a-z-]+:.*## / { printf "  make %-15s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

setup: ## Install what building and testing need (toolchain, packages)
	@sh scripts/setup.sh test

build: ## Build the program: target/release/whimbrel
	sh scripts/setup.sh build $(CARGO) build --release --bin whimbrel -j $(JOBS)

demo: ## Show one download living through four moves (the same as ./demo)
	@CARGO_BUILD_JOBS=$(JOBS) ./demo

demo-devices: ## Show a download that begins on a phone and goes on at a PC (needs curl and Python)
	sh scripts/setup.sh build $(CARGO) build --release --bin whimbrel -j $(JOBS)
	@sh scripts/demo-devices.sh $(TARGET)/release/whimbrel

test: ## Check and test everything (the same as ./test)
	@./test JOBS=$(JOBS)

# Most tests wait for clocks: lints, which only compute, take the processors when no test wants them.
checks: format ## What `test` does once everything is installed
	$(RUN_TESTS) --beneath "make lint docs JOBS=$(JOBS)"

format: ## Check the formatting
	$(CARGO) fmt --all --check

lint: ## Lint all code, tests included
	$(CARGO) clippy --workspace --all-targets -j $(JOBS) -- -D warnings

docs: ## Build the API documentation without warnings
	RUSTDOCFLAGS="-D warnings" $(CARGO) doc --workspace --no-deps -j $(JOBS)

unit: ## Run every test, several groups of them beside each other (BESIDE=)
	$(RUN_TESTS)

dist: ## Make what is given to users, in dist/: archive, .deb, bill of materials, checksums
	@sh scripts/setup.sh test sh scripts/dist.sh

test-bare: ## Run ./demo in minimal Debian roots (as root; needs debootstrap; some 20 minutes)
	@sh scripts/test-bare-root.sh

interop: ## Let today's program talk with one of an older commit, and take over from one (OLD=, OLD_TAKE_OVER=; needs the history)
	@for commit in $(OLD) $(OLD_TAKE_OVER); do \
		git cat-file -e $$commit^{commit} || { echo "commit $$commit is not in this clone: git fetch --unshallow"; exit 1; }; \
	done
	rm -rf $(TARGET)/interop
	@for commit in $(OLD) $(OLD_TAKE_OVER); do \
		echo "building $$commit"; \
		mkdir -p $(TARGET)/interop/$$commit; \
		git archive $$commit | tar -x -C $(TARGET)/interop/$$commit || exit 1; \
		CARGO_TARGET_DIR=$(TARGET) $(CARGO) build --manifest-path $(TARGET)/interop/$$commit/Cargo.toml --bin whimbrel -j $(JOBS) || exit 1; \
		cp $(TARGET)/debug/whimbrel $(TARGET)/interop/whimbrel-$$commit || exit 1; \
	done
	CARGO_TARGET_DIR=$(TARGET) WHIMBREL_OLD=$(TARGET)/interop/whimbrel-$(OLD) \
		WHIMBREL_OLD_TAKE_OVER=$(TARGET)/interop/whimbrel-$(OLD_TAKE_OVER) \
		$(CARGO) test -p whimbrel-cli --test all -j $(JOBS) -- --ignored --nocapture interop_old::

soak: ## Let paths come and go for three minutes (a part of it is in `make test`)
	WHIMBREL_SOAK_SECONDS=180 $(CARGO) test -p whimbrel-transport --test all -j $(JOBS) -- lab::multipath_many --nocapture

eval-durable: ## Kill processes with durable messages 1000 times, and cut the power 20 000 times (some ten minutes)
	WHIMBREL_KILLS=1000 $(CARGO) test --release -p whimbrel --test all -j $(JOBS) -- durable_kills:: --nocapture
	WHIMBREL_ROUNDS=20000 $(CARGO) test --release -p whimbrel --lib -j $(JOBS) -- durable::store --nocapture

eval-messages: ## Messages and sleep at full length: outages and sleep of a minute, an upgrade under 1 GiB, five million random operations (minutes)
	WHIMBREL_MESSAGE_OPS=5000000 $(CARGO) test --release -p whimbrel-proto --test all -j $(JOBS) -- message_model:: --nocapture
	WHIMBREL_OUTAGE_SECONDS=60 $(CARGO) test --release -p whimbrel-transport --test all -j $(JOBS) -- lab::messages:: lab::outages:: lab::hops:: --nocapture
	WHIMBREL_SLEEP_SECONDS=60 $(CARGO) test --release -p whimbrel --test all -j $(JOBS) -- lab_names::asleep:: --nocapture
	WHIMBREL_DOWNLOAD_MIB=1024 $(CARGO) test --release -p whimbrel-cli --test all -j $(JOBS) -- takeover::a_download --nocapture

eval-devices: build ## Move sessions in the lab, merge and bring in step devices' lists (an hour; HAProxy; results in bench/results)
	$(CARGO) run --release -p whimbrel-bench -j $(JOBS) -- session-move --out bench/results
	$(CARGO) run --release -p whimbrel-bench -j $(JOBS) -- hand-over-gap --out bench/results
	$(CARGO) test --release -p whimbrel-devices --test lab_sync -j $(JOBS) -- --nocapture
	WHIMBREL_HISTORIES=100000 $(CARGO) test --release -p whimbrel-devices --lib -j $(JOBS) -- histories --nocapture
	$(CARGO) run --release -p whimbrel-bench -j $(JOBS) -- gateway-sessions --out bench/results

eval-reach: ## Connect all pairs of NAT gateways, print which path carries; crowds at a relay (hours; RUNS=20, SIZE=1024 MiB)
	WHIMBREL_RUNS=$(RUNS) WHIMBREL_SIZE=$(SIZE) $(CARGO) test --release -p whimbrel-relay --test all -j $(JOBS) -- matrix:: --nocapture
	$(CARGO) test --release -p whimbrel-relay --test all -j $(JOBS) -- punching:: crowds:: lifetimes:: --ignored --nocapture

eval-access: build ## Load the paper's pages over two networks in browsers, by every policy (hours; ROUNDS=7; results in bench/results)
	@sh scripts/setup.sh browsers
	WHIMBREL_BROWSERS=required $(CARGO) test --release -p whimbrel-bench -j $(JOBS) -- access_pages
	$(CARGO) run --release -p whimbrel-bench -j $(JOBS) -- access-pages --rounds $(ROUNDS) --out bench/results --traces $(TRACES)

bench: build ## Measure against the peers (hours; results in bench/results)
	$(CARGO) run --release -p whimbrel-bench --features peers -j $(JOBS) -- all --out bench/results --traces $(TRACES)

bench-key: ## Measure the key benches (some 35 minutes; results in bench/results, docs/results.md)
	@sh scripts/measure.sh

bench-quick: build ## Run every bench for a moment; nothing is kept
	$(CARGO) run --release -p whimbrel-bench --features peers -j $(JOBS) -- all --quick --traces $(TRACES)

bench-pageload: ## Measure simulations of page loads per second and core
	$(CARGO) run --release -p whimbrel-pageload -j $(JOBS) -- bench crates/pageload/data/pages.jsonl.gz --only crates/pageload/data/oracle.csv

fuzz: ## Fuzz every decoder for a short while
	@command -v cargo-fuzz >/dev/null || $(CARGO) install cargo-fuzz --locked
	@for target in $(FUZZ_TARGETS); do \
		echo "fuzzing $$target for $(FUZZ_SECONDS) s"; \
		mkdir -p fuzz/corpus/$$target fuzz/seeds/$$target; \
		RUSTC_BOOTSTRAP=1 $(CARGO) fuzz run $$target fuzz/corpus/$$target fuzz/seeds/$$target -- -max_total_time=$(FUZZ_SECONDS) -max_len=8192 || exit 1; \
	done

coverage: ## Report which lines and branches the tests of base, proto, names and transport reach (some 30 minutes)
	@command -v cargo-llvm-cov >/dev/null || $(CARGO) install cargo-llvm-cov --locked
	RUSTC_BOOTSTRAP=1 $(CARGO) llvm-cov $(COVERED) --branch --summary-only --ignore-run-fail -j $(JOBS)

mutants: ## Break the cores of proto and names in MUTANTS ways, and see whether tests notice (hours)
	@command -v cargo-mutants >/dev/null || $(CARGO) install cargo-mutants --locked
	$(CARGO) mutants $(MUTATED) --shard 0/$$(( ($$($(CARGO) mutants $(MUTATED) --list | wc -l) + $(MUTANTS) - 1) / $(MUTANTS) )) \
		--sharding round-robin --timeout 300 -o $(TARGET)

clean: ## Remove what was built
	$(CARGO) clean
	rm -rf fuzz/target fuzz/corpus fuzz/artifacts
