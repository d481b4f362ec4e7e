# `make run` does Forebay's main job on real data, `make test` runs everything that has to hold.
# Both set their machine up first (scripts/setup) and need no arguments.

CARGO ?= cargo
TARGET ?= $(or $(CARGO_TARGET_DIR),target)
export PATH := $(PATH):/usr/sbin:/sbin:$(HOME)/.cargo/bin

.PHONY: package run test check unit fuzz fsx fsx-long crash shuttle mount mount-long clients bench-quick build setup requires bench clean help

help:
	@echo "make run        the main job: an image served to real clients, a volume, a mount, a database beside a backup; quick benches and their page"
	@echo "make test       everything: house checks, unit and integration tests, shuttle, clients, benches"
	@echo "make check      format, clippy, layers, tidy, deps, rustdoc"
	@echo "make unit       cargo test of all crates but those of volumes (make crash)"
	@echo "make fuzz       the decoders of foreign bytes, by cargo-fuzz from the kept corpus"
	@echo "make fsx        seeded runs against a model: 1,000 for each map, 50 on each engine; fsx-long: ten times as many"
	@echo "make crash      100,000 crash states of volumes"
	@echo "make shuttle    concurrency tests of the folio state machine"
	@echo "make mount      suites on a real mount: pjdfstest, fsx, databases, kill -9; mount-long: as many as the bars ask for"
	@echo "make package    a static binary and a Debian package, in dist of the target folder"
	@echo "make bench      the benches in full, some hours, and their page"

setup:
	@scripts/setup

build: setup
	$(CARGO) build --release --locked --package forebay-cli
	$(CARGO) build --release --locked --package forebay --example volume_survives

run: build
	scripts/main-job --binary $(TARGET)/release/forebay --html $(TARGET)/report.html

test: setup
	scripts/test-all

check: setup
	scripts/test-all check

unit: setup
	scripts/test-all unit

fuzz: setup
	scripts/test-all fuzz

fsx: setup
	scripts/test-all fsx

fsx-long: setup
	FOREBAY_FSX_RUNS=10000 scripts/test-all fsx

crash: setup
	scripts/test-all crash

shuttle: setup
	scripts/test-all shuttle

mount: setup
	scripts/test-all mount

mount-long: setup
	FOREBAY_STEP_LIMIT=20000 FOREBAY_MOUNT_FSX_OPS=380000 FOREBAY_MOUNT_KILLS=200 FOREBAY_MOUNT_BARS=1 FOREBAY_MOUNT_PG_KILLS=50 scripts/test-all mount

clients: setup
	scripts/test-all main-job

bench-quick: setup
	scripts/test-all bench

bench: build
	$(TARGET)/release/forebay bench all --html $(TARGET)/report.html

package: setup
	scripts/package

requires: setup
	$(CARGO) xtask requires

clean:
	$(CARGO) clean
