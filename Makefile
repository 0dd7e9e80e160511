# The few commands people use. CI runs .ci/run, which runs these.

ARGS ?=
SECONDS ?= 60
# The end-to-end tests wait more than they compute.
E2E_THREADS ?= 6
# Test files with a long form: each looks at GITMOUNT_TORTURE.
TORTURE ?= torture torture_kills daemon_kills many_views hand_over store switch_alive model kernel_free

# The processor of the image's programs.
IMAGE_TARGET ?= x86_64-unknown-linux-musl
IMAGE_NAME ?= gitmount:0.1.0

.PHONY: help test e2e torture cluster cluster-down cluster-build lint fmt fuzz bench image manifests

help: ## this list
	@sed -n 's/^\([a-z0-9-]*\):.*## \(.*\)/make \1	\2/p' $(MAKEFILE_LIST) | expand -t 20

test: ## all tests; needs root, /dev/fuse and the packages that README.md names
	cargo test --locked --workspace --no-fail-fast; result=$$?; \
	cargo test --locked --workspace --test e2e -- --test-threads=$(E2E_THREADS) && exit $$result

e2e: ## the end-to-end tests alone, on a real Kubernetes
	cargo test --locked --workspace --test e2e -- --test-threads=$(E2E_THREADS)

torture: ## the long form of the tests that have one (switches, kills, models); takes an hour
	GITMOUNT_TORTURE=1 cargo test --locked --workspace --no-fail-fast $(foreach test,$(TORTURE),--test $(test)) -- --nocapture

# `cargo run` knows no `--workspace`, without which the dependencies would get other features.
CLUSTER = cargo build --locked --quiet --workspace --bin gitmount-cluster && "$${CARGO_TARGET_DIR:-target}/debug/gitmount-cluster"

cluster: ## the Kubernetes of the end-to-end tests: bring it up, or say where it is
	$(CLUSTER) up

cluster-down: ## end it
	$(CLUSTER) down

cluster-build: ## build its programs, which takes ten minutes and is done once
	$(CLUSTER) build

lint: ## formatting, clippy, rustdoc, licences, file length, layering
	.ci/lint

fmt: ## format every file
	cargo fmt --all

fuzz: ## every fuzz target for SECONDS (60) seconds
	fsd/fuzz/run $(SECONDS)

# `--workspace` with a choice of binaries keeps the dependencies' features, and so their one build, as they are for the tests.
bench: ## compare with a checkout, git clone and git worktree; ARGS=--small takes a minute, ARGS=storm simulates 1,000 nodes, ARGS=--help lists more
	cargo build --locked --workspace --bin gitmount --bin gitmount-bench
	"$${CARGO_TARGET_DIR:-target}/debug/gitmount-bench" $(ARGS)

# Static programs, in a profile of their own: `debug/gitmount-image` only puts them into the tar.
image: ## the container image, without a container engine: target/image/gitmount.tar (or IMAGE_NAME, IMAGE_TARGET)
	rustup target list --installed | grep -qx $(IMAGE_TARGET) || rustup target add $(IMAGE_TARGET)
	cargo build --locked --workspace --bin gitmount --bin gitmount-csi --profile image --target $(IMAGE_TARGET)
	cargo build --locked --workspace --bin gitmount-image
	mkdir -p target/image
	"$${CARGO_TARGET_DIR:-target}/debug/gitmount-image" --programs "$${CARGO_TARGET_DIR:-target}/$(IMAGE_TARGET)/image" \
		--name $(IMAGE_NAME) --revision "$$(git rev-parse HEAD 2>/dev/null)" --output target/image/gitmount.tar

manifests: ## write deploy/manifests anew from the chart
	GITMOUNT_WRITE=1 cargo test --locked --workspace --test chart -- manifests
