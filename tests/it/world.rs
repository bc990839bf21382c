//! The environment of a test: real memcacheds, the real `kennel`, and helpers that wait for them. Processes are killed when the
//! test ends, also when it panics and when it is itself killed.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::os::fd::OwnedFd;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, ExitStatus, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Mutex, OnceLock};
use std::time::Duration;

use tokio::time::Instant;

use crate::client::Client;

/// The default time limit of a condition.
const DEADLINE: Duration = Duration::from_secs(40);

/// Numbers temporary directories and port attempts of this process.
static NEXT: AtomicU32 = AtomicU32::new(0);

/// Waits until `condition` holds; fails the test after 10 s.
pub(crate) fn eventually(what: &str, condition: impl FnMut() -> bool) {
    within(DEADLINE, what, condition);
}

/// Waits until `condition` holds, checking every 5 ms; fails the test after `limit`. Returns the time that it took.
pub(crate) fn within(limit: Duration, what: &str, mut condition: impl FnMut() -> bool) -> Duration {
    let start = Instant::now();
    while !condition() {
        assert!(start.elapsed() < limit, "not within {limit:?}: {what}");
        std::thread::sleep(Duration::from_millis(5));
    }
    start.elapsed()
}

/// The result of `f`, and how long it took.
pub(crate) fn timed<T>(f: impl FnOnce() -> T) -> (T, Duration) {
    let start = Instant::now();
    let value = f();
    (value, start.elapsed())
}

/// A connection to the server itself, bypassing the sidecars.
pub(crate) fn direct(server: &Memcached) -> Client {
    Client::tcp(server.address)
}

/// The index in `servers` of the server that holds `key`. Exactly one must.
pub(crate) fn holder(servers: &[Memcached], key: &str) -> usize {
    let holding: Vec<usize> =
        (0..servers.len()).filter(|i| direct(&servers[*i]).ttl(key).is_some()).collect();
    assert_eq!(holding.len(), 1, "{key} is held by the servers {holding:?}");
    holding[0]
}

/// Waits until the guarded item `key` is stale by its server's clock: it is stored with a TTL of ttl + `stale_for`.
pub(crate) fn until_stale(servers: &[Memcached], key: &str, stale_for: i64) {
    let mut server = direct(&servers[holder(servers, key)]);
    eventually("the item outlives its soft expiry", || {
        server.ttl(key).unwrap_or_else(|| panic!("{key} is gone, not stale")) <= stale_for
    });
}

/// A configuration for tests: free ports, two workers, one pool "main" of `servers` (addresses) with short timeouts, and `rules`
/// in order (made by [`guarded`] and [`raw`]).
pub(crate) fn sidecar_toml(servers: &[String], rules: &[String]) -> String {
    format!(
        "[listen]\ntcp = [\"127.0.0.1:0\"]\nworkers = 2\n\n\
         [admin]\nlisten = \"127.0.0.1:0\"\ntoken_file = {:?}\n\n\
         [pools.main]\nservers = {servers:?}\nconnect_timeout = \"200ms\"\nrequest_timeout = \"500ms\"\n\n{}",
        token_file(),
        rules.join("\n")
    )
}

/// The token of every sidecar here.
const TOKEN: &str = "token-of-the-tests";

/// The file of the token. It is the same for all tests, which may write it at the same time.
fn token_file() -> PathBuf {
    let dir = Path::new(env!("CARGO_TARGET_TMPDIR"));
    let (file, new) = (dir.join("admin-token"), dir.join(format!("admin-token-{}", std::process::id())));
    // A sidecar with `reload = "watch"` notices when it is written.
    if std::fs::read_to_string(&file).ok().as_deref() != Some(TOKEN) {
        std::fs::write(&new, TOKEN).and_then(|()| std::fs::rename(&new, &file)).expect("write the token");
    }
    file
}

/// The same configuration without failover, for tests that read or write items on the servers, flush them, or count what is sent to
/// them: what they are about is the same with failover.
pub(crate) fn without_failover(toml: &str) -> String {
    toml.replace("[pools.main]\n", "[pools.main]\nfailover = false\n")
}

/// The version in the item of a tag, which a fence follows in a pool with failover.
pub(crate) fn version_of(item: &[u8]) -> u64 {
    let text = String::from_utf8_lossy(item);
    text.split(' ')
        .next()
        .and_then(|version| version.parse().ok())
        .unwrap_or_else(|| panic!("no version: {text}"))
}

/// The same configuration with longer durations of failover: a sidecar that has no CPU time for some seconds keeps its views.
pub(crate) fn with_long_windows(toml: &str) -> String {
    toml.replace(
        "[pools.main]\n",
        "[pools.main]\nwindow = \"5s\"\nfail_after = \"5s\"\nrecover_after = \"5s\"\n",
    )
}

/// The same configuration with a declaration of how clients use their connections.
pub(crate) fn clients_are(how: &str, toml: &str) -> String {
    toml.replace("[listen]\n", &format!("[listen]\nclients = {how:?}\n"))
}

/// A guarded rule for [`sidecar_toml`]; `more` are additional lines of TOML.
pub(crate) fn guarded(name: &str, pattern: &str, more: &str) -> String {
    format!("[[rules]]\nname = {name:?}\nmatch = {pattern:?}\nkind = \"guarded\"\n{more}\n")
}

/// A raw rule for [`sidecar_toml`].
pub(crate) fn raw(name: &str, pattern: &str) -> String {
    format!("[[rules]]\nname = {name:?}\nmatch = {pattern:?}\nkind = \"raw\"\n")
}

/// Starts `n` memcacheds.
pub(crate) fn memcacheds(n: usize) -> Vec<Memcached> {
    (0..n).map(|_| Memcached::start(&[])).collect()
}

/// Their addresses, for [`sidecar_toml`].
pub(crate) fn addresses(servers: &[Memcached]) -> Vec<String> {
    servers.iter().map(Memcached::address).collect()
}

/// A real memcached on a free port of 127.0.0.1.
pub(crate) struct Memcached {
    /// Its address; unchanged by [`Memcached::restart`].
    pub(crate) address: SocketAddr,
    program: PathBuf,
    args: Vec<String>,
    process: Option<Process>,
    has_died: bool,
}

impl Memcached {
    /// Starts `/usr/bin/memcached` (or the one in PATH) with these additional arguments and waits until it responds.
    pub(crate) fn start(args: &[&str]) -> Memcached {
        let installed = Path::new("/usr/bin/memcached");
        Memcached::start_program(if installed.exists() { installed } else { Path::new("memcached") }, args)
    }

    /// Starts the newest memcached, built by `scripts/test`. Kennel reports its version.
    pub(crate) fn newest(args: &[&str]) -> Memcached {
        let program = Path::new(env!("CARGO_MANIFEST_DIR")).join("target/memcached/memcached");
        assert!(program.exists(), "{} is missing: scripts/test builds it", program.display());
        Memcached::start_program(&program, args)
    }

    /// The same with another program.
    pub(crate) fn start_program(program: &Path, args: &[&str]) -> Memcached {
        let args = owned(args);
        for _ in 0..20 {
            let address = free_address();
            if let Some(process) = spawn_memcached(program, address, &args) {
                return Memcached {
                    address,
                    program: program.to_owned(),
                    args,
                    process: Some(process),
                    has_died: false,
                };
            }
        }
        panic!("no memcached came up in 20 attempts, each on a port that was free a moment before");
    }

    /// `host:port`, as in a configuration.
    pub(crate) fn address(&self) -> String {
        self.address.to_string()
    }

    /// SIGKILL. Returns once it has ended.
    pub(crate) fn kill(&mut self) {
        self.process = None;
        self.has_died = true;
    }

    /// Whether it was ever killed.
    pub(crate) fn has_died(&self) -> bool {
        self.has_died
    }

    /// Kills it if it runs and starts an empty one at the same address; returns once that responds.
    pub(crate) fn restart(&mut self) {
        self.kill();
        eventually("memcached is back on its port", || {
            self.process = spawn_memcached(&self.program, self.address, &self.args);
            self.process.is_some()
        });
    }

    /// The same with other arguments.
    pub(crate) fn restart_with(&mut self, args: &[&str]) {
        self.args = owned(args);
        self.restart();
    }

    /// SIGSTOP: it keeps its connections and does not respond. Returns once all its threads are stopped.
    pub(crate) fn stop(&self) {
        let process = self.process.as_ref().expect("a running memcached");
        process.signal("STOP");
        let threads = format!("/proc/{}/task", process.child.id());
        let stopped = |thread: std::fs::DirEntry| {
            let stat = std::fs::read_to_string(thread.path().join("stat")).unwrap_or_default();
            stat.rsplit_once(") ").is_some_and(|(_, rest)| rest.starts_with('T'))
        };
        eventually("a stopped memcached stands still", || {
            std::fs::read_dir(&threads).expect("its threads").flatten().all(stopped)
        });
    }

    /// SIGCONT.
    pub(crate) fn cont(&self) {
        self.process.as_ref().expect("a running memcached").signal("CONT");
    }
}

fn owned(args: &[&str]) -> Vec<String> {
    args.iter().map(|arg| (*arg).to_owned()).collect()
}

/// The process, once it responds at this address; `None` if it ended, for example because the port was taken meanwhile.
fn spawn_memcached(program: &Path, address: SocketAddr, args: &[String]) -> Option<Process> {
    let mut command = Command::new(program);
    command.args(["-l", "127.0.0.1", "-U", "0", "-t", "2", "-u", "root", "-p"]);
    command.arg(address.port().to_string()).args(args).stdout(Stdio::null()).stderr(Stdio::null());
    let mut process = Process::spawn(&mut command);
    let pid = process.child.id();
    // A memcached that requires a password knows this one.
    let hello: &[u8] = if args.iter().any(|a| a == "-Y") { b"set a 0 0 9\r\nuser pass\r\n" } else { b"" };
    // A memcached with TLS is asked over a listener without.
    let plain = args.iter().find_map(|arg| arg.strip_prefix("notls:")).map_or(address, parse);
    let start = Instant::now();
    loop {
        // Its pid, not merely a reply: another process's memcached may have taken the port.
        if pid_of_server(plain, hello) == Some(pid) {
            return Some(process);
        }
        if process.ended().is_some() {
            return None;
        }
        assert!(start.elapsed() < DEADLINE, "memcached (pid {pid}) does not respond on {address}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

fn pid_of_server(address: SocketAddr, hello: &[u8]) -> Option<u32> {
    let mut stream = TcpStream::connect(address).ok()?;
    stream.set_read_timeout(Some(DEADLINE)).ok()?;
    stream.write_all(&[hello, b"stats\r\n"].concat()).ok()?;
    let mut lines = BufReader::new(stream).lines();
    lines.find_map(|l| l.ok()?.strip_prefix("STAT pid ")?.parse().ok())
}

/// A port without a listener, below the range from which Linux takes the ports of outgoing connections, so that a killed server's
/// port is not taken by a client before the restart.
pub(crate) fn free_address() -> SocketAddr {
    loop {
        let n = NEXT.fetch_add(1, Ordering::Relaxed);
        let port = 15_000 + (std::process::id().wrapping_mul(7919).wrapping_add(n * 13) % 17_000) as u16;
        let address = SocketAddr::from((Ipv4Addr::LOCALHOST, port));
        if TcpListener::bind(address).is_ok() {
            return address;
        }
    }
}

/// A running sidecar: the binary that cargo built for this test.
pub(crate) struct Kennel {
    process: Process,
    dir: PathBuf,
    tcp: SocketAddr,
    admin: SocketAddr,
}

impl Kennel {
    /// Starts `kennel --config FILE` with this configuration and waits until it has logged its addresses and that it is ready.
    /// The configuration must have a TCP listener and an admin listener, as that of [`sidecar_toml`].
    pub(crate) fn start(toml: &str) -> Kennel {
        Kennel::start_by(Command::new(env!("CARGO_BIN_EXE_kennel")), toml, "200")
    }

    /// The same, but waits only until it has logged its addresses and is not ready.
    pub(crate) fn start_unready(toml: &str) -> Kennel {
        Kennel::start_by(Command::new(env!("CARGO_BIN_EXE_kennel")), toml, "503")
    }

    /// The same with TLS at its admin address, which is not asked.
    pub(crate) fn start_with_tls_admin(toml: &str) -> Kennel {
        Kennel::start_by(Command::new(env!("CARGO_BIN_EXE_kennel")), toml, "")
    }

    /// The same with a limit of open files.
    pub(crate) fn start_with_open_files(limit: usize, toml: &str) -> Kennel {
        let mut command = Command::new("sh");
        let limited = format!("ulimit -n {limit}; exec \"$0\" \"$@\"");
        command.args(["-c", &limited, env!("CARGO_BIN_EXE_kennel")]);
        Kennel::start_by(command, toml, "200")
    }

    /// Starts `kennel --takeover` with this configuration, and waits as [`Kennel::start`] does.
    pub(crate) fn take_over(toml: &str) -> Kennel {
        let mut command = Command::new(env!("CARGO_BIN_EXE_kennel"));
        command.arg("--takeover");
        Kennel::start_by(command, toml, "200")
    }

    /// Starts `kennel` by a command, to which `--config` is added.
    pub(crate) fn start_command(command: Command, toml: &str) -> Kennel {
        Kennel::start_by(command, toml, "200")
    }

    /// Waits until it ends by itself, for this long at most. Returns its exit status, and its log.
    pub(crate) fn end(mut self, limit: Duration) -> (ExitStatus, String) {
        let mut status = None;
        within(limit, "kennel ends", || {
            status = self.process.ended();
            status.is_some()
        });
        (status.expect("just checked"), self.log())
    }

    /// Sends a signal.
    pub(crate) fn signal(&self, name: &str) {
        self.process.signal(name);
    }

    /// Its process id.
    pub(crate) fn id(&self) -> u32 {
        self.process.child.id()
    }

    /// The same in a control group.
    pub(crate) fn start_in_group(group: &Path, toml: &str) -> Kennel {
        let mut command = Command::new("sh");
        let inside = format!("echo $$ > {}/cgroup.procs; exec \"$0\" \"$@\"", group.display());
        command.args(["-c", &inside, env!("CARGO_BIN_EXE_kennel")]);
        Kennel::start_by(command, toml, "200")
    }

    /// Starts `kennel` with these listening sockets, as systemd does.
    pub(crate) fn start_activated(sockets: [OwnedFd; 2], names: &str, toml: &str) -> Kennel {
        let [first, second] = sockets;
        let mut command = Command::new("sh");
        let script = "exec 3<&0 4<&1 </dev/null >/dev/null; LISTEN_PID=$$ exec \"$0\" \"$@\"";
        command.args(["-c", script, env!("CARGO_BIN_EXE_kennel")]);
        command.env("LISTEN_FDS", "2").env("LISTEN_FDNAMES", names).stdin(first).stdout(second);
        Kennel::start_spawned(command, toml, "200", Process::spawn_with_stdin)
    }

    fn start_by(mut command: Command, toml: &str, readiness: &str) -> Kennel {
        command.stdout(Stdio::null());
        Kennel::start_spawned(command, toml, readiness, Process::spawn)
    }

    fn start_spawned(
        mut command: Command,
        toml: &str,
        readiness: &str,
        spawn: fn(&mut Command) -> Process,
    ) -> Kennel {
        let dir = temp_dir();
        let file = dir.join("kennel.toml");
        std::fs::write(&file, toml).expect("write the configuration");
        let log = std::fs::File::create(dir.join("stderr")).expect("create the log");
        command.arg("--config").arg(&file).stderr(log);
        for (name, _) in std::env::vars_os().filter(|(n, _)| n.to_string_lossy().starts_with("KENNEL_")) {
            command.env_remove(name);
        }
        let process = spawn(&mut command);
        let unset = SocketAddr::from((Ipv4Addr::UNSPECIFIED, 0));
        let mut kennel = Kennel { process, dir, tcp: unset, admin: unset };
        eventually("kennel logs its addresses and that it is ready", || {
            // The guard lives in `kennel`: this panic kills the process and removes the directory like any other.
            if let Some(status) = kennel.process.ended() {
                panic!("kennel ended ({status}) before it was ready\n{}\nwith\n{toml}", kennel.log());
            }
            let tcp = kennel.logged("listening tcp=");
            let url = if readiness.is_empty() { "https" } else { "http" };
            let admin = kennel.logged(&format!("listening for operators url={url}://"));
            let (Some(tcp), Some(admin)) = (tcp, admin) else { return false };
            (kennel.tcp, kennel.admin) = (parse(&tcp), parse(admin.trim_end_matches('/')));
            readiness.is_empty() || kennel.http("/readyz").split(' ').nth(1) == Some(readiness)
        });
        let default_ports = [11211, 9111];
        assert!(
            ![kennel.tcp, kennel.admin].iter().any(|address| default_ports.contains(&address.port())),
            "a test must listen on free ports:\n{toml}"
        );
        kennel
    }

    /// A new client of its TCP listener.
    pub(crate) fn client(&self) -> Client {
        Client::tcp(self.tcp)
    }

    /// Its TCP listener.
    pub(crate) fn address(&self) -> SocketAddr {
        self.tcp
    }

    /// A new client of its Unix listener, which the configuration must have.
    pub(crate) fn unix_client(&self) -> Client {
        let mut path = None;
        eventually("kennel logs its Unix socket", || {
            path = self.logged("listening unix=");
            path.is_some()
        });
        Client::unix(Path::new(&path.expect("just checked")))
    }

    /// Suspends it during `f`, so that everything sent to it arrives at once.
    pub(crate) fn standing_still(&self, meanwhile: impl FnOnce()) {
        self.process.signal("STOP");
        meanwhile();
        self.process.signal("CONT");
    }

    /// SIGKILL. Returns once it has ended.
    pub(crate) fn kill(mut self) {
        self.process.kill();
    }

    /// SIGTERM: its exit status, and how long it took. Fails the test after 10 s.
    pub(crate) fn terminate(mut self) -> (ExitStatus, Duration) {
        self.ask_to_terminate();
        let mut status = None;
        let took = within(DEADLINE, "kennel exits after SIGTERM", || {
            status = self.process.ended();
            status.is_some()
        });
        (status.expect("just checked"), took)
    }

    /// Writes another configuration to its file, at once. The sidecar is not told.
    pub(crate) fn write_config(&self, toml: &str) {
        let (file, next) = (self.dir.join("kennel.toml"), self.dir.join("next.toml"));
        std::fs::write(&next, toml).expect("write the configuration");
        std::fs::rename(next, file).expect("replace the configuration");
    }

    /// Has it read this configuration: the status and body of the reply to `POST /reload`.
    pub(crate) fn reload(&self, toml: &str) -> (u16, String) {
        self.reload_by("/reload", toml)
    }

    /// The same, even if the configuration would lose something.
    pub(crate) fn force(&self, toml: &str) -> (u16, String) {
        self.reload_by("/reload?force=1", toml)
    }

    pub(crate) fn reload_by(&self, path: &str, toml: &str) -> (u16, String) {
        self.write_config(toml);
        let reply = self.ask("POST", path, &format!("Authorization: Bearer {TOKEN}"));
        let status = reply.split(' ').nth(1).and_then(|status| status.parse().ok());
        let body = reply.split_once("\r\n\r\n").map_or("", |(_, body)| body);
        (status.unwrap_or_else(|| panic!("no reply: {reply:?}")), body.to_owned())
    }

    /// SIGHUP.
    pub(crate) fn hang_up(&self) {
        self.process.signal("HUP");
    }

    /// Its directory, with the configuration file `kennel.toml`.
    pub(crate) fn dir(&self) -> &Path {
        &self.dir
    }

    /// Sends SIGTERM and does not wait.
    pub(crate) fn ask_to_terminate(&self) {
        self.process.signal("TERM");
    }

    /// A scrape of /metrics.
    pub(crate) fn metrics(&self) -> Metrics {
        let reply = self.http("/metrics");
        let body = reply.split_once("\r\n\r\n").unwrap_or_else(|| panic!("not HTTP: {reply}")).1;
        let series = body.lines().filter(|l| !l.is_empty() && !l.starts_with('#')).map(|line| {
            let (series, value) = line.rsplit_once(' ').unwrap_or_else(|| panic!("not a sample: {line}"));
            (series.to_owned(), value.parse().unwrap_or_else(|e| panic!("{line}: {e}")))
        });
        Metrics(series.collect())
    }

    /// The address of its admin listener.
    pub(crate) fn admin(&self) -> SocketAddr {
        self.admin
    }

    /// One HTTP/1.0 request to the admin listener: the whole response, empty if there is none.
    pub(crate) fn http(&self, path: &str) -> String {
        self.ask("GET", path, "Host: 127.0.0.1")
    }

    /// The same with another method and with these headers.
    pub(crate) fn ask(&self, method: &str, path: &str, headers: &str) -> String {
        let Ok(mut stream) = TcpStream::connect(self.admin) else { return String::new() };
        stream.set_read_timeout(Some(2 * DEADLINE)).expect("a time-out above zero");
        let mut reply = Vec::new();
        let _ = stream.write_all(format!("{method} {path} HTTP/1.0\r\n{headers}\r\n\r\n").as_bytes());
        let _ = stream.read_to_end(&mut reply);
        String::from_utf8_lossy(&reply).into_owned()
    }

    /// Its whole log.
    pub(crate) fn log(&self) -> String {
        std::fs::read_to_string(self.dir.join("stderr")).unwrap_or_default()
    }

    /// What follows these words of the log, up to the end of the line.
    fn logged(&self, words: &str) -> Option<String> {
        let log = self.log();
        // The last line may be incomplete.
        let (_, rest) = log.split_once(&format!(" kennel: {words}"))?;
        Some(rest.split_once('\n')?.0.to_owned())
    }
}

impl Drop for Kennel {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!(
                "--- log of kennel on {}
{}",
                self.tcp,
                self.log()
            );
        }
        self.process.kill();
        let _ = std::fs::remove_dir_all(&self.dir);
    }
}

fn parse(address: &str) -> SocketAddr {
    address.parse().unwrap_or_else(|e| panic!("no address: {address:?}: {e}"))
}

/// A new directory of this test, with a path short enough for a Unix socket. The caller removes it.
pub(crate) fn temp_dir() -> PathBuf {
    let n = NEXT.fetch_add(1, Ordering::Relaxed);
    let dir = std::env::temp_dir().join(format!("kennel-it-{}-{n}", std::process::id()));
    std::fs::create_dir_all(&dir).expect("create a temp dir");
    dir
}

/// One scrape: series as written (name and labels) to value.
pub(crate) struct Metrics(pub(crate) BTreeMap<String, f64>);

impl Metrics {
    /// The sum of the series of this name that have all these labels, each written `label="value"`. 0 if there is none: a counter
    /// that was never incremented is not exported.
    pub(crate) fn sum(&self, name: &str, labels: &[&str]) -> f64 {
        let of_name = |s: &str| s.strip_prefix(name).is_some_and(|r| r.is_empty() || r.starts_with('{'));
        let matching = self.0.iter().filter(|(s, _)| of_name(s) && labels.iter().all(|l| s.contains(l)));
        matching.map(|(_, v)| v).sum()
    }
}

/// A child process that does not outlive its owner.
struct Process {
    child: Child,
}

impl Process {
    fn spawn(command: &mut Command) -> Process {
        command.stdin(Stdio::null());
        Process::spawn_with_stdin(command)
    }

    fn spawn_with_stdin(command: &mut Command) -> Process {
        let program = command.get_program().to_owned();
        let child = command.spawn();
        let child = child.unwrap_or_else(|e| panic!("start {}: {e}", program.display()));
        watch('+', child.id());
        Process { child }
    }

    fn ended(&mut self) -> Option<ExitStatus> {
        self.child.try_wait().expect("wait for a child of ours")
    }

    /// Through the shell's `kill`: std can only send SIGKILL.
    fn signal(&self, name: &str) {
        let kill = format!("kill -{name} {}", self.child.id());
        let status = Command::new("sh").args(["-c", &kill]).status().expect("run sh");
        assert!(status.success(), "{kill}");
    }

    fn kill(&mut self) {
        let _ = self.child.kill();
        // Until it is waited for, its pid is not reused.
        watch('-', self.child.id());
        let _ = self.child.wait();
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        self.kill();
    }
}

/// Kills what was registered and not removed, once this process has ended and its end of the pipe has closed.
const WATCHDOG: &str = r#"
live=
while read -r sign pid; do
    rest=
    for p in $live; do [ "$p" = "$pid" ] || rest="$rest $p"; done
    live=$rest
    if [ "$sign" = + ]; then live="$live $pid"; fi
done
[ -z "$live" ] || kill -9 $live
"#;

/// Reports to the watchdog that `pid` runs (`+`) or has ended (`-`). Drop alone would leave servers behind when a runner kills a
/// test that hangs.
fn watch(sign: char, pid: u32) {
    static PIPE: OnceLock<Mutex<ChildStdin>> = OnceLock::new();
    let pipe = PIPE.get_or_init(|| {
        let mut command = Command::new("sh");
        // Its own process group: signals to the test's group must not reach it.
        command.args(["-c", WATCHDOG]).process_group(0);
        command.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::null());
        #[allow(clippy::zombie_processes, reason = "it ends when we do, so we can never wait for it")]
        let mut child = command.spawn().expect("run sh");
        Mutex::new(child.stdin.take().expect("stdin is a pipe"))
    });
    let mut pipe = pipe.lock().unwrap_or_else(|e| e.into_inner());
    writeln!(pipe, "{sign} {pid}").expect("the watchdog reads until we are gone");
}

/// How many misses with a lease these sidecars have returned.
pub(crate) fn wins(sidecars: &[Kennel]) -> f64 {
    sidecars.iter().map(|s| s.metrics().sum("kennel_requests_total", &["outcome=\"miss_won\""])).sum()
}

/// Waits until this sidecar has released this many leases of disconnected clients.
pub(crate) fn until_disconnected(sidecar: &Kennel, leases: f64) {
    eventually("the sidecar notices that its client has left", || {
        sidecar.metrics().sum("kennel_leases_total", &["end=\"disconnected\""]) >= leases
    });
}
