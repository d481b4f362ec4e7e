# `make run` does Forebay's main job on real data, `make test` runs everything that has to hold.
# Both set their machine up first (scripts/setup) and need no arguments.

CARGO ?= cargo
TARGET ?= $(or $(CARGO_TARGET_DIR),target)
export PATH := $(PATH):/usr/sbin:/sbin:$(HOME)/.cargo/bin

.PHONY: install library package run quick test test-long check unit fuzz fsx fsx-long crash shuttle mount mount-long clients bench-quick build setup setup-long setup-build requires bench clean help

help:
	@echo "make run        the main job: an image served to real clients, a volume, a mount; SQLite during a backup; quick benches and their page"
	@echo "make quick      the inner loop: format, clippy, house checks, unit tests, short model tests, 2,000 crash states"
	@echo "make test       every class of check, in the size of a run for each change: goal: 20 minutes"
	@echo "make test-long  the same at length, with a new seed, and fuzzing, mutants, foreign crates, static packages: many hours"
	@echo "make check      format, clippy (of fuzz targets, too), layers, tidy, rustdoc"
	@echo "make unit       cargo test of all crates but those of volumes (make crash) and of benches (make bench-quick)"
	@echo "make fuzz       the decoders of foreign bytes, by cargo-fuzz from the kept corpus"
	@echo "make fsx        seeded runs against a model: 300 for each map, 15 on each engine; fsx-long: 10,000 and 500"
	@echo "make crash      tests of volumes, 50,000 crash states"
	@echo "make shuttle    concurrency tests of the folio state machine"
	@echo "make mount      suites on a real mount: pjdfstest, fsx, databases, kill -9; mount-long: as many as the bars ask for"
	@echo "make build      the programs, optimised: forebay, and forebay-lab with benches and crash test"
	@echo "make package    static binaries and Debian packages of both, in dist of the target folder"
	@echo "make library    the C library, built and not installed: \`sudo scripts/install-c target/library\` does that without cargo"
	@echo "make install    the C library, below DESTDIR and PREFIX (/usr/local): libforebay.so.0, libforebay.a, forebay.h, forebay.pc, forebay(3), libforebay_sqlite.so"
	@echo "make bench      the benches in full, some hours, and their page"

setup:
	@scripts/setup

setup-long:
	@scripts/setup --long

setup-build:
	@scripts/setup --build

build: setup-build
	$(CARGO) build --release --locked --package forebay-cli --package forebay-lab --bins \
		--package forebay --example volume_survives

run: build
	scripts/main-job --binary $(TARGET)/release/forebay --html $(TARGET)/report.html

quick: setup
	scripts/test-all quick

test: setup
	scripts/test-all

test-long: setup-long
	scripts/test-all --long

check: setup
	scripts/test-all check

unit: setup
	scripts/test-all unit

fuzz: setup-long
	scripts/test-all --long fuzz

fsx: setup
	scripts/test-all fsx

fsx-long: setup
	scripts/test-all --long fsx

crash: setup
	scripts/test-all crash

shuttle: setup
	scripts/test-all shuttle

mount: setup
	scripts/test-all mount

mount-long: setup
	scripts/test-all --long mount

clients: setup
	scripts/test-all main-job

bench-quick: setup
	scripts/test-all bench

bench: build
	$(TARGET)/release/forebay-lab bench all --html $(TARGET)/report.html

package: setup
	scripts/package

# Without the rlib, which keeps cargo from optimising across crates. The copies are out of reach of
# other builds, which make the rlib.
library:
	$(CARGO) rustc --release --locked --package forebay-capi --lib --crate-type cdylib,staticlib
	mkdir -p $(TARGET)/library
	cp $(TARGET)/release/libforebay_c.so $(TARGET)/release/libforebay_c.a $(TARGET)/library

install: library
	scripts/install-c $(TARGET)/library

requires: setup
	$(CARGO) xtask requires

clean:
	$(CARGO) clean
