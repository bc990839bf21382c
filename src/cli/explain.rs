//! `kennel explain KEY`: what is known of a key. Asks the running sidecar of the configuration; without one, the servers.

use std::ffi::OsString;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::process::ExitCode;
use std::rc::Rc;
use std::time::Duration;

use tokio::runtime;
use tokio::task::LocalSet;
use tokio::time::timeout;

use super::admin_client::{AdminClient, Unreachable, add_parameter};
use super::check::print;
use super::pipeline;
use crate::config::{self, Config, Location};
use crate::protocol::base64;
use crate::proxy::{AskedBy, Explanation, key_error, shown};
use crate::upstream::Address;

/// The longest time that a sidecar is given to reply. It gives up itself before that.
const SIDECAR_TIMEOUT: Duration = Duration::from_secs(8);
/// The longest time that the servers are given.
const SERVERS_TIMEOUT: Duration = Duration::from_secs(10);
/// The longest time for finding out where the keys are.
const OBSERVE_TIMEOUT: Duration = Duration::from_secs(3);

/// What to explain, and how.
#[derive(Debug)]
pub struct Question<'a> {
    /// Key to explain, as on the command line.
    pub key: &'a OsString,
    /// The key is in base64.
    pub base64: bool,
    /// Print JSON.
    pub json: bool,
    /// Ask the servers, not a sidecar.
    pub direct: bool,
}

/// Explains a key by the configuration at `location`, or by the sidecar at the admin address `admin`. Prints to stdout and returns 0, or
/// prints why it cannot to stderr and returns 1.
pub fn run(question: &Question<'_>, location: &Location, admin: Option<&str>) -> ExitCode {
    match explain(question, location, admin) {
        Ok(text) => print(&mut io::stdout(), &text, ExitCode::SUCCESS),
        Err(why) => print(&mut io::stderr(), &format!("kennel explain: {why}\n"), ExitCode::FAILURE),
    }
}

fn explain(question: &Question<'_>, location: &Location, admin: Option<&str>) -> Result<String, String> {
    let key = key(question)?;
    if question.direct {
        return ask_servers(&key, question.json, location.path());
    }
    match ask_sidecar(&key, question.json, location, admin) {
        Ok(text) => Ok(text),
        // Whoever names an address wants its sidecar.
        Err(Unreachable::Nobody(why)) if admin.is_none() => {
            let text = ask_servers(&key, question.json, location.path());
            text.map_err(|other| format!("no sidecar replies ({why}), and {other}"))
        }
        Err(why) => Err(why.to_string()),
    }
}

/// The key, or why there can be none.
fn key(question: &Question<'_>) -> Result<Vec<u8>, String> {
    let given = question.key.as_bytes();
    let key = match question.base64 {
        true => base64::decode_strictly(given).ok_or_else(|| format!("{} is not base64", shown(given)))?,
        false => given.to_vec(),
    };
    key_error(&key).map_or(Ok(key), Err)
}

fn ask_sidecar(
    key: &[u8],
    json: bool,
    location: &Location,
    admin: Option<&str>,
) -> Result<String, Unreachable> {
    let client = AdminClient::new(location, admin).map_err(Unreachable::Refused)?;
    let mut query = String::new();
    add_parameter(&mut query, "key", key);
    add_parameter(&mut query, "format", if json { b"json" } else { b"text" });
    client.get(&format!("/explain{query}"), SIDECAR_TIMEOUT)
}

fn ask_servers(key: &[u8], json: bool, path: Option<&Path>) -> Result<String, String> {
    let config = Config::load(path, config::environment()).map_err(|errors| errors.to_string())?;
    let is_embedded = |address: &Address| matches!(address, Address::Embedded { .. });
    if let Some(pool) =
        config.pools.iter().find(|pool| pool.all_servers().any(|server| is_embedded(&server.address)))
    {
        return Err(format!(
            "the pool {:?} is inside the sidecar's process and can be reached only through the sidecar: start it, and see \
             admin.listen",
            pool.name
        ));
    }
    let runtime =
        runtime::Builder::new_current_thread().enable_all().build().map_err(|error| error.to_string())?;
    let explanation = LocalSet::new().block_on(&runtime, async {
        let (proxy, monitors) = pipeline::of_config(&config).map_err(|error| error.to_string())?;
        let proxy = Rc::new(proxy);
        for monitor in &monitors {
            monitor.observe(OBSERVE_TIMEOUT).await;
        }
        let explaining = timeout(SERVERS_TIMEOUT, proxy.explain(key, AskedBy::Command));
        explaining.await.map_err(|_| format!("the servers did not reply within {SERVERS_TIMEOUT:?}"))
    });
    // Do not wait for host names that are still being resolved.
    runtime.shutdown_background();
    show(&explanation?, json)
}

fn show(explanation: &Explanation, json: bool) -> Result<String, String> {
    match json {
        true => serde_json::to_string(explanation).map(|text| text + "\n").map_err(|error| error.to_string()),
        false => Ok(explanation.to_string()),
    }
}
