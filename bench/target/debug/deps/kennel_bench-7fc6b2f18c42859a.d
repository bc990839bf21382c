/work/main/bench/target/debug/deps/kennel_bench-7fc6b2f18c42859a.d: src/main.rs src/arguments.rs src/contender.rs src/counted.rs src/crowd.rs src/histogram.rs src/idle.rs src/loads.rs src/machine.rs src/process.rs src/report.rs src/socket.rs src/start.rs src/wire.rs src/../../docs/performance.md

/work/main/bench/target/debug/deps/kennel_bench-7fc6b2f18c42859a: src/main.rs src/arguments.rs src/contender.rs src/counted.rs src/crowd.rs src/histogram.rs src/idle.rs src/loads.rs src/machine.rs src/process.rs src/report.rs src/socket.rs src/start.rs src/wire.rs src/../../docs/performance.md

src/main.rs:
src/arguments.rs:
src/contender.rs:
src/counted.rs:
src/crowd.rs:
src/histogram.rs:
src/idle.rs:
src/loads.rs:
src/machine.rs:
src/process.rs:
src/report.rs:
src/socket.rs:
src/start.rs:
src/wire.rs:
src/../../docs/performance.md:

# env-dep:CARGO_MANIFEST_DIR=/work/main/bench
