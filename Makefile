# The few commands people use. CI runs .ci/run, which runs these.

ARGS ?=
SECONDS ?= 60

.PHONY: help test lint fmt fuzz bench

help: ## this list
	@sed -n 's/^\([a-z]*\):.*## \(.*\)/make \1	\2/p' $(MAKEFILE_LIST) | expand -t 14

test: ## all tests; needs root, /dev/fuse, git, fuse3, openssh-server, strace
	cargo test --locked --workspace --no-fail-fast

lint: ## formatting, clippy, rustdoc, licences, file length, layering
	.ci/lint

fmt: ## format every file
	cargo fmt --all

fuzz: ## every fuzz target for SECONDS (60) seconds
	fsd/fuzz/run $(SECONDS)

# `--workspace` with a choice of binaries keeps the dependencies' features, and so their one build, as they are for the tests.
bench: ## compare with a checkout, git clone and git worktree; ARGS=--small takes a minute, ARGS=--help lists more
	cargo build --locked --workspace --bin gitmount --bin gitmount-bench
	"$${CARGO_TARGET_DIR:-target}/debug/gitmount-bench" $(ARGS)
