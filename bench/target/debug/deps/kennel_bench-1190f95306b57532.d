/work/main/bench/target/debug/deps/kennel_bench-1190f95306b57532.d: src/main.rs src/arguments.rs src/contender.rs src/counted.rs src/crowd.rs src/histogram.rs src/idle.rs src/loads.rs src/machine.rs src/process.rs src/report.rs src/socket.rs src/start.rs src/wire.rs

/work/main/bench/target/debug/deps/libkennel_bench-1190f95306b57532.rmeta: src/main.rs src/arguments.rs src/contender.rs src/counted.rs src/crowd.rs src/histogram.rs src/idle.rs src/loads.rs src/machine.rs src/process.rs src/report.rs src/socket.rs src/start.rs src/wire.rs

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

# env-dep:CARGO_MANIFEST_DIR=/work/main/bench
