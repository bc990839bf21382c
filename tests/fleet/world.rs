//! One run: sidecars, servers and clients in one thread and simulated time.

use std::cell::{Cell, RefCell};
use std::future::Future;
use std::net::SocketAddr;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use kennel::app::{App, Start};
use kennel::clock::{Clock, ManualClock};
use kennel::config;
use kennel::embedded::server::serve;
use kennel::embedded::store::Store;
use kennel::random::{self, Random};
use tokio::runtime::{self, LocalOptions};
use tokio::task::spawn_local;
use tokio::time::{Instant, sleep};

use super::coverage;
use super::linearizability::Invocation;
use super::mutants::Mutant;
use super::net::{End, Net, Shared, Trace};

/// The memory of a server: nothing is evicted.
const MEMORY: u64 = 64 << 20;

thread_local! {
    static START: Cell<Option<Instant>> = const { Cell::new(None) };
}

/// The clock of the servers.
fn server_clock() -> u64 {
    let passed = START.get().map_or(Duration::ZERO, |start| start.elapsed());
    ManualClock::START_MS + u64::try_from(passed.as_millis()).unwrap_or(u64::MAX)
}

/// What a run consists of.
pub struct Setup {
    pub sidecars: usize,
    pub servers: usize,
    /// The rules, in TOML.
    pub rules: &'static str,
    /// The longest pause of a client before a command.
    pub pause: Duration,
    /// What is taken away.
    pub mutant: Option<Mutant>,
}

/// A sidecar.
pub struct Sidecar {
    app: RefCell<Option<App>>,
    /// Where it listens, also while it takes another configuration.
    address: SocketAddr,
    clock: ManualClock,
}

/// A server.
struct Memcached {
    store: RefCell<Rc<RefCell<Store>>>,
}

/// A fleet.
pub struct World {
    pub net: Arc<Net>,
    pub setup: Setup,
    pub sidecars: Vec<Sidecar>,
    servers: Vec<Rc<Memcached>>,
    /// What clients sent and received, by key.
    pub history: RefCell<Vec<(String, Invocation)>>,
    random: RefCell<Random>,
    connections: Cell<usize>,
}

impl World {
    fn new(seed: u64, setup: Setup) -> Rc<World> {
        let shows = std::env::var_os("KENNEL_FLEET_SHOW").is_some();
        let net = Net::new(seed, Arc::new(Trace::new(shows)), setup.mutant);
        START.set(Some(Instant::now()));
        random::simulate(seed ^ 0x5eed);
        kennel::net::simulate(Arc::new(Shared(Arc::clone(&net))));
        let servers = (0..setup.servers).map(|_| start_server(&net)).collect();
        let sidecars = (0..setup.sidecars).map(|at| start_sidecar(at, &setup)).collect();
        let random = RefCell::new(Random::seeded(seed ^ 0xc0ffee));
        let (history, connections) = (RefCell::default(), Cell::new(0));
        Rc::new(World { net, setup, sidecars, servers, history, random, connections })
    }

    /// A generator of its own for a part of the run.
    pub fn fork(&self) -> Random {
        Random::seeded(self.random.borrow_mut().any())
    }

    /// The number of a new connection of a client.
    pub fn number(&self) -> usize {
        self.connections.set(self.connections.get() + 1);
        self.connections.get()
    }

    /// A connection to a sidecar.
    pub fn client(&self, sidecar: usize, name: &str) -> End {
        self.net.client(self.sidecars[sidecar].address, name).expect("it listens")
    }

    /// A server is killed, and comes back empty.
    pub fn kill_server(&self, server: usize) {
        self.net.trace.event(&format!("server {server} is killed"));
        self.net.set_up(server, false);
        *self.servers[server].store.borrow_mut() = empty();
    }

    /// A killed server is started.
    pub fn start_server(&self, server: usize) {
        self.net.trace.event(&format!("server {server} is started"));
        self.net.set_up(server, true);
    }

    /// A sidecar takes another configuration.
    pub async fn reload(&self, sidecar: usize, rules: &str) {
        self.net.trace.event(&format!("sidecar {sidecar} takes another configuration"));
        self.take(sidecar, loaded(sidecar, self.setup.servers, rules)).await;
    }

    async fn take(&self, sidecar: usize, next: config::Loaded) {
        let mut app = self.sidecars[sidecar].app.borrow_mut().take().expect("it runs");
        app.switch_to(next).await.expect("it takes the configuration");
        *self.sidecars[sidecar].app.borrow_mut() = Some(app);
    }

    /// A sidecar is told to use these servers instead of all. Like the process, it refuses what would lose something.
    pub async fn reload_servers(&self, sidecar: usize, servers: &[usize]) {
        self.net.trace.event(&format!("sidecar {sidecar} shall use the servers {servers:?}"));
        let before = loaded(sidecar, self.setup.servers, self.setup.rules);
        let next = loaded_with(sidecar, servers.iter().copied(), self.setup.rules);
        if config::Changes::between(&before, &next).lose_something() {
            return;
        }
        self.take(sidecar, next).await;
    }

    /// A sidecar's clock is set forward, or back.
    pub fn step_clock(&self, sidecar: usize, by: Duration, forward: bool) {
        self.net.trace.event(&format!("the clock of sidecar {sidecar} steps by {by:?}, forward: {forward}"));
        let clock = &self.sidecars[sidecar].clock;
        if forward { clock.advance(by) } else { clock.set_back(by) }
    }

    /// The sum of a metric of a sidecar over all label sets that contain this text.
    pub fn metric(&self, sidecar: usize, name: &str, labels: &str) -> f64 {
        let app = self.sidecars[sidecar].app.borrow();
        let text = app.as_ref().expect("it runs").metrics().render();
        let lines = text.lines().filter(|line| {
            let rest = line.strip_prefix(name);
            rest.is_some_and(|rest| rest.starts_with(['{', ' ']) && rest.contains(labels))
        });
        lines.filter_map(|line| line.rsplit(' ').next()?.parse::<f64>().ok()).sum()
    }
}

fn empty() -> Rc<RefCell<Store>> {
    Rc::new(RefCell::new(Store::new(MEMORY, server_clock()).listing_keys()))
}

fn start_server(net: &Arc<Net>) -> Rc<Memcached> {
    let mut connections = net.add_server();
    let server = Rc::new(Memcached { store: RefCell::new(empty()) });
    let serving = Rc::clone(&server);
    spawn_local(async move {
        while let Some(connection) = connections.recv().await {
            let store = Rc::clone(&serving.store.borrow());
            spawn_local(serve(connection, store, server_clock));
        }
    });
    server
}

/// The configuration of a sidecar.
fn loaded(sidecar: usize, servers: usize, rules: &str) -> config::Loaded {
    loaded_with(sidecar, 0..servers, rules)
}

fn loaded_with(sidecar: usize, servers: impl Iterator<Item = usize>, rules: &str) -> config::Loaded {
    let server = |at| format!("{{ address = \"10.{sidecar}.0.{at}:11211\", name = \"m{at}\" }}");
    let servers: Vec<String> = servers.map(server).collect();
    let toml = format!(
        "[listen]\ntcp = [\"127.0.0.1:0\"]\nworkers = 1\n\n[admin]\nlisten = \"\"\n\n[pools.main]\nservers = [{}]\non_error = \"error\"\n\
         connect_timeout = \"200ms\"\nrequest_timeout = \"500ms\"\n\n{rules}",
        servers.join(", ")
    );
    config::read("fleet.toml", &toml, []).unwrap_or_else(|errors| panic!("{errors}\n{toml}"))
}

fn start_sidecar(at: usize, setup: &Setup) -> Sidecar {
    let (clock, manual) = Clock::running();
    let start = Start { simulated: Some(clock), ..Start::default() };
    let (mut app, _) = App::prepare(loaded(at, setup.servers, setup.rules), start).expect("it starts");
    app.open(None).expect("it opens");
    Sidecar { address: app.tcp()[0], app: RefCell::new(Some(app)), clock: manual }
}

/// What a run leaves.
pub struct Outcome {
    pub history: Vec<(String, Invocation)>,
    /// The hash of every byte that was sent, with its time.
    pub trace: u64,
    /// The simulated time.
    pub took: Duration,
}

/// Runs a schedule. The same seed gives the same run.
pub fn run<F: Future<Output = ()>>(
    seed: u64,
    setup: Setup,
    schedule: impl FnOnce(Rc<World>) -> F,
) -> Outcome {
    let mut builder = runtime::Builder::new_current_thread();
    let runtime = builder.enable_all().start_paused(true).build_local(LocalOptions::default());
    runtime.expect("a runtime").block_on(async {
        let start = Instant::now();
        let world = World::new(seed, setup);
        // The sidecars have read where the keys are, and accept clients.
        sleep(Duration::from_secs(5)).await;
        schedule(Rc::clone(&world)).await;
        for sidecar in &world.sidecars {
            let app = sidecar.app.borrow();
            coverage::metrics(&app.as_ref().expect("it runs").metrics().render());
        }
        let (trace, history) = (world.net.trace.hash(), world.history.take());
        Outcome { history, trace, took: start.elapsed() }
    })
}
