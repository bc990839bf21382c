//! The memory limit of a control group: what the sidecar takes follows it.

use std::fs;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::slow_clients::peak;
use crate::world::{Kennel, Memcached, addresses, eventually, guarded, raw, sidecar_toml, within};

const MIB: usize = 1 << 20;

/// Resident memory of this process, in bytes.
fn resident(process: u32) -> usize {
    let rollup =
        fs::read_to_string(format!("/proc/{process}/smaps_rollup")).expect("the memory of a sidecar");
    let line = rollup.lines().find_map(|line| line.strip_prefix("Rss:")).expect("its resident memory");
    let kib = line.split_whitespace().next().and_then(|number| number.parse::<usize>().ok());
    kib.expect("a number of kB") * 1024
}

#[test]
fn what_a_burst_took_is_given_back_when_its_clients_have_gone() {
    const VALUES: usize = 60;
    let server = Memcached::start(&["-m", "512"]);
    let kennel = Kennel::start(&sidecar_toml(&[server.address()], &[raw("everything", "*")]));
    let environment = fs::read(format!("/proc/{}/environ", kennel.id())).expect("its environment");
    let environment = String::from_utf8_lossy(&environment).into_owned();
    assert!(environment.contains("MALLOC_MMAP_THRESHOLD_=16384"), "{environment}");
    let mut client = kennel.client();
    let keys: Vec<String> = (0..VALUES).map(|n| format!("key{n}")).collect();
    for (n, key) in keys.iter().enumerate() {
        // Of all sizes, so that small ones lie between large ones.
        client.store(key, &vec![b'x'; if n % 2 == 0 { 900_000 } else { 40_000 }], 0);
    }
    let before = resident(kennel.id());
    let mut burst = Vec::new();
    for _ in 0..30 {
        let mut client = kennel.client();
        client.send(format!("get {}\r\n", keys.join(" ")).as_bytes());
        burst.push(client);
    }
    within(Duration::from_secs(60), "what the clients do not read is held", || {
        resident(kennel.id()) > before + 48 * MIB
    });
    // Half a value, too.
    for client in &mut burst {
        client.send(b"set half 0 0 100000\r\n");
        client.send(&[b'x'; 16 * 1024]);
    }
    drop(burst);
    within(Duration::from_secs(60), "it has been given back", || resident(kennel.id()) < before + 32 * MIB);
}

/// A control group of this test, below that of the test itself, with a memory limit. Removed when dropped.
struct Group(PathBuf);

impl Group {
    fn new(limit: usize) -> Group {
        let groups = fs::read_to_string("/proc/self/cgroup").expect("the groups of this process");
        let of = |line: &str| line.splitn(3, ':').map(str::to_owned).collect::<Vec<_>>();
        let lines: Vec<_> = groups.lines().map(of).collect();
        let (mount, own, file) =
            match lines.iter().find(|line| line[1].split(',').any(|name| name == "memory")) {
                Some(line) => ("/sys/fs/cgroup/memory", &line[2], "memory.limit_in_bytes"),
                None => (
                    "/sys/fs/cgroup",
                    &lines.iter().find(|line| line[0] == "0").expect("a group")[2],
                    "memory.max",
                ),
            };
        // In a container, the path may be that on the host.
        let above = [format!("{mount}{own}"), mount.to_owned()].map(PathBuf::from);
        let made = above.iter().find_map(|above| {
            let group = above.join(format!("kennel-it-{}", std::process::id()));
            (fs::create_dir(&group).is_ok() && fs::write(group.join(file), limit.to_string()).is_ok())
                .then_some(group)
        });
        Group(made.unwrap_or_else(|| {
            panic!(
                "no control group with a memory limit can be made below {above:?}: this test needs to be root"
            )
        }))
    }

    fn path(&self) -> &Path {
        &self.0
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        // Until the process has left it, it is busy.
        for _ in 0..100 {
            if fs::remove_dir(&self.0).is_ok() {
                return;
            }
            std::thread::sleep(std::time::Duration::from_millis(20));
        }
    }
}

#[test]
fn a_hundred_slow_readers_are_survived_within_128_mib_by_the_default_configuration() {
    let servers = vec![Memcached::start(&["-m", "1024", "-I", "2m"])];
    let group = Group::new(128 * MIB);
    let rules = [guarded("hot", "hot:*", ""), raw("raw", "*")];
    let toml = sidecar_toml(&addresses(&servers), &rules).replace("workers = 2\n", "");
    let kennel = Kennel::start_in_group(group.path(), &toml);
    let value = vec![b'v'; 1_000_000];
    let keys: Vec<String> = (0..10).map(|n| format!("{}:{n}", ["raw", "hot"][n % 2])).collect();
    let mut writer = kennel.client();
    keys.iter().for_each(|key| writer.store(key, &value, 0));
    let request: String =
        keys.iter().map(|key| format!("get {key}\r\n")).chain(["quit\r\n".to_owned()]).collect();
    let reply: usize =
        keys.iter().map(|key| format!("VALUE {key} 0 1000000\r\n\r\nEND\r\n").len() + value.len()).sum();
    let clients: Vec<TcpStream> = (0..100)
        .map(|_| {
            let mut client = TcpStream::connect(kennel.address()).expect("a connection");
            client.write_all(request.as_bytes()).expect("a request");
            client
        })
        .collect();
    // None of them reads. The sidecar has asked for all that it will until they do, or are gone.
    let requests = || kennel.metrics().sum("kennel_upstream_requests_total", &[]);
    let mut last = requests();
    eventually("it comes to rest", || {
        std::thread::sleep(std::time::Duration::from_millis(300));
        let now = requests();
        std::mem::replace(&mut last, now) == now
    });
    let peak = peak(&kennel);
    println!("peak {} MiB", peak / MIB);
    assert!(peak < 128 * MIB, "{} MiB", peak / MIB);
    // Another client is served. The readers get all that they asked for, or were closed.
    eventually("another client is served", || {
        writer.get("raw:0").is_some_and(|found| found.len() == value.len())
    });
    let mut complete = 0;
    for mut client in clients {
        let mut got = Vec::new();
        // A connection that was closed may be reset.
        let _ = client.read_to_end(&mut got);
        complete += usize::from(got.len() == reply);
    }
    println!("{complete} of 100 clients received everything; the others were closed");
    // Whoever reads gets everything from now on.
    for key in &keys {
        eventually("each value is served", || {
            writer.get(key).is_some_and(|found| found.len() == value.len())
        });
    }
    assert!(kennel.http("/healthz").contains(" 200 "));
}
