//! The integration tests: real memcacheds, the real binary, real sockets. One test binary, so that it links once.
//!
//! `world` starts the servers and sidecars, `client` sends and reads byte by byte, `slow_server` disturbs connections, `gate`
//! holds a command until an interleaving has happened; then there is one file per promise, in the order of the design. `failover`
//! takes servers away, in `discovery` they are found in `dns`, in `outage` no server answers, and in `marks` sidecars have
//! different servers. `poison` and `slow_clients` contain malicious and careless clients,
//! `limits` clients that exceed their limits; `fuzz_corpus` replays
//! what fuzzing found; in `chaos` everything fails at once, in `attack` nothing does.

mod admin;
mod administration;
mod attack;
mod between;
mod binary;
mod bounded_pools;
mod admin_access;
mod careful_reload;
mod certificates;
mod change;
mod chaos;
mod client;
mod differential;
mod discovery;
mod dns;
mod drain;
mod embedded_is_faithful;
mod examples;
mod explain;
mod explicit_tags;
mod failover;
mod fuzz_corpus;
mod frameworks;
mod gate;
mod guarded_means_what_memcached_means;
mod hang_ups;
mod idle_connections;
mod invalidates;
mod libraries;
mod limits;
#[path = "../linearizability/mod.rs"]
#[allow(dead_code, reason = "its own tests and the simulation use more of it")]
mod linearizability;
mod marks;
mod memory;
mod meta;
mod mixed_changes;
#[path = "../fleet/mixed_commands.rs"]
mod mixed_commands;
mod mixed_fleet;
mod mixed_rules;
mod near;
mod observe;
mod observed;
mod open_files;
mod outage;
mod page;
mod passwords;
mod poison;
mod promise_1_one_rebuild;
mod promise_2_no_resurrection;
mod promise_3_stale_is_bounded;
mod promise_4_nobody_waits_for_nothing;
mod promise_5_the_winners_death_frees_the_key;
mod promise_6_replies_never_cross;
mod promise_7_failure_degrades_to_a_miss;
mod promise_8_raw_is_exact;
mod raw;
mod readme;
mod reload;
mod reserved;
mod returning_server;
mod server_errors;
mod server_versions;
mod shared_connections;
mod shared_reads;
mod joined_gets;
mod last_set_wins;
mod shutdown;
mod slow_clients;
mod slow_is_sick;
mod slow_server;
mod startup;
mod spoilt_tags;
mod stats;
mod structures;
mod tag_command;
mod tag_replicas;
mod systemd;
mod tls;
mod unix_sockets;
mod upstream_tls;
mod upgrade;
mod whose_set_is_it;
mod world;
