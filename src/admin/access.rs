//! Who may look, and who may change something.
//!
//! - Whoever reaches the address may look, unless it has an `auth_file`: then a request needs a user and password of it, or the token.
//! - What shows keys can be switched off. Without an `auth_file`, it is shown on this host only, and only under an address or the name
//!   `localhost`, so that a web page whose name has been made to point here (DNS rebinding) cannot have a browser on this host fetch it.
//! - A change needs the token, which a browser sends for no web page. Without a `token_file`, nothing is changed over HTTP: the control
//!   socket of the process does the same for its user.

use std::fmt;
use std::net::IpAddr;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError, RwLock};
use std::time::Duration;

use hyper::header::{AUTHORIZATION, HOST, HeaderMap, ORIGIN, WWW_AUTHENTICATE};
use hyper::http::HeaderValue;
use hyper::{Response, StatusCode};
use tokio::time::Instant;
use tracing::warn;

use super::replies::{Body, TEXT, reply};
use crate::auth::{Token, Users};
use crate::handshake::Requirements;
use crate::listener::ListenAddress;
use crate::pem::BadFile;
use crate::protocol::base64;
use crate::tls::Acceptor;

/// The shortest interval between two log lines about refused requests.
const LOG_INTERVAL: Duration = Duration::from_secs(10);

/// How the admin server is configured.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AdminSpec {
    /// Address of the admin listener.
    pub listen: ListenAddress,
    /// TLS, and the users that may look; all may if there is none.
    pub requirements: Requirements,
    /// The file of the token that changes need; `None`: there are none.
    pub token_file: Option<PathBuf>,
    /// Whether keys are explained.
    pub explain: bool,
    /// Whether what happens to keys is shown.
    pub trace: bool,
    /// Whether the hottest keys are shown.
    pub hot: bool,
}

impl AdminSpec {
    /// The files that it names.
    pub fn files(&self) -> Vec<PathBuf> {
        self.requirements.files().into_iter().chain(self.token_file.clone()).collect()
    }

    fn shown(&self) -> Vec<Feature> {
        let all = [(Feature::Explain, self.explain), (Feature::Trace, self.trace), (Feature::Hot, self.hot)];
        all.into_iter().filter(|(_, on)| *on).map(|(feature, _)| feature).collect()
    }
}

/// What a request needs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Needs {
    /// Nothing: probes have no passwords.
    Nothing,
    Look,
    Keys(Feature),
    Change,
}

/// What can be switched off, because it shows keys.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Feature {
    /// `/explain`
    Explain,
    /// `/trace`
    Trace,
    /// `/hot`
    Hot,
}

/// Why a request is refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Refused {
    /// It lacks a valid user and password, or the token.
    Unknown,
    /// It lacks the token.
    NoToken,
    /// There is no token: nothing is changed here.
    NoTokenFile,
    /// It comes from another host.
    Remote,
    /// Its Host is a name.
    Host,
    /// A page of another site has sent it.
    OtherSite,
    /// It is switched off.
    Off(Feature),
}

/// The files of an admin server, loaded, and what it shows.
pub struct Access {
    /// The TLS of connections.
    pub(super) tls: Option<Acceptor>,
    users: Option<Users>,
    token: Option<Token>,
    host: String,
    shown: Vec<Feature>,
    logged: Mutex<Option<Instant>>,
}

/// The access in force. Clones share it.
#[derive(Debug, Clone)]
pub struct CurrentAccess(Arc<RwLock<Arc<Access>>>);

impl CurrentAccess {
    /// What is in force until a reload changes it.
    pub fn new(access: Access) -> CurrentAccess {
        CurrentAccess(Arc::new(RwLock::new(Arc::new(access))))
    }

    /// From now on, another one. Connections go on, and their next request needs what that one says.
    pub fn replace(&self, access: Access) {
        *self.0.write().unwrap_or_else(PoisonError::into_inner) = Arc::new(access);
    }

    /// Whether connections use TLS.
    pub fn uses_tls(&self) -> bool {
        self.get().tls.is_some()
    }

    /// See [`Access::certificate`].
    pub fn certificate(&self) -> Option<(String, i64)> {
        self.get().certificate()
    }

    /// The one in force.
    pub(super) fn get(&self) -> Arc<Access> {
        Arc::clone(&self.0.read().unwrap_or_else(PoisonError::into_inner))
    }
}

impl fmt::Debug for Access {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Access")
    }
}

impl Access {
    /// Loads the files. The error lists every one that cannot be used.
    pub fn new(spec: &AdminSpec) -> Result<Access, Vec<BadFile>> {
        let Requirements { tls, auth_file } = &spec.requirements;
        let bad = |key, path: &PathBuf| {
            let path = path.clone();
            move |what| vec![BadFile { key, path, what }]
        };
        let tls = tls.as_ref().map(Acceptor::read).transpose();
        let users =
            auth_file.as_ref().map(|path| Users::read(path).map_err(bad("auth_file", path))).transpose();
        let token = spec.token_file.as_ref();
        let token = token.map(|path| Token::read(path).map_err(bad("token_file", path))).transpose();
        match (tls, users, token) {
            (Ok(tls), Ok(users), Ok(token)) => {
                let (host, shown) = (spec.listen.host.to_ascii_lowercase(), spec.shown());
                Ok(Access { tls, users, token, host, shown, logged: Mutex::default() })
            }
            (tls, users, token) => {
                Err([tls.err(), users.err(), token.err()].into_iter().flatten().flatten().collect())
            }
        }
    }

    /// The file of the certificate, and when the first certificate in it expires, in seconds of Unix time.
    pub fn certificate(&self) -> Option<(String, i64)> {
        let (file, expires) = self.tls.as_ref()?.certificate()?;
        Some((file.display().to_string(), expires))
    }

    /// Whether a request with these headers, from this address, may have what it needs.
    pub(super) fn check(&self, needs: Needs, headers: &HeaderMap, from: IpAddr) -> Result<(), Refused> {
        let checked = match needs {
            Needs::Nothing => Ok(()),
            Needs::Look => self.may_look(headers),
            Needs::Keys(feature) if !self.shown.contains(&feature) => Err(Refused::Off(feature)),
            Needs::Keys(_) if is_of_another_site(headers) => Err(Refused::OtherSite),
            Needs::Keys(_) if self.users.is_some() || self.has_token(headers) => self.may_look(headers),
            Needs::Keys(_) if !from.to_canonical().is_loopback() => Err(Refused::Remote),
            Needs::Keys(_) if !self.is_local_name(headers) => Err(Refused::Host),
            Needs::Keys(_) => Ok(()),
            Needs::Change if self.has_token(headers) => Ok(()),
            Needs::Change if self.token.is_some() => Err(Refused::NoToken),
            Needs::Change => Err(Refused::NoTokenFile),
        };
        if let Err(Refused::Unknown | Refused::NoToken) = checked
            && headers.contains_key(AUTHORIZATION)
        {
            self.log_wrong();
        }
        checked
    }

    fn may_look(&self, headers: &HeaderMap) -> Result<(), Refused> {
        match &self.users {
            Some(users) if !has_password(headers, users) && !self.has_token(headers) => Err(Refused::Unknown),
            _ => Ok(()),
        }
    }

    fn has_token(&self, headers: &HeaderMap) -> bool {
        let given = credentials(headers, b"bearer");
        given.is_some_and(|given| self.token.as_ref().is_some_and(|token| token.accepts(given)))
    }

    /// Whether the request names this server by an address, by `localhost` or by the configured host.
    fn is_local_name(&self, headers: &HeaderMap) -> bool {
        let Some(host) = headers.get(HOST).and_then(|host| host.to_str().ok()) else { return true };
        let name = match host.strip_prefix('[').and_then(|rest| rest.split_once(']')) {
            Some((address, _)) => address,
            None => host.rsplit_once(':').map_or(host, |(name, _)| name),
        };
        let name = name.to_ascii_lowercase();
        name.parse::<IpAddr>().is_ok() || name == "localhost" || name == self.host
    }

    fn log_wrong(&self) {
        let mut logged = self.logged.lock().unwrap_or_else(PoisonError::into_inner);
        if logged.is_none_or(|at| at.elapsed() >= LOG_INTERVAL) {
            *logged = Some(Instant::now());
            warn!("a request to the admin address had a wrong password or token");
        }
    }
}

/// Whether a browser says that a page of another site has sent the request. Such a page cannot read the reply, but it could hold all
/// watchers of a trace, with the password that the browser remembers too.
fn is_of_another_site(headers: &HeaderMap) -> bool {
    let site = headers.get("sec-fetch-site").map(HeaderValue::as_bytes);
    let origin = headers.get(ORIGIN).and_then(|origin| origin.to_str().ok());
    let host = headers.get(HOST).and_then(|host| host.to_str().ok());
    let is_own = |origin: &str| origin.split_once("://").is_some_and(|(_, of)| Some(of) == host);
    site.is_some_and(|site| !matches!(site, b"same-origin" | b"none"))
        || origin.is_some_and(|origin| !is_own(origin))
}

/// What follows this scheme in the Authorization header.
fn credentials<'h>(headers: &'h HeaderMap, scheme: &[u8]) -> Option<&'h [u8]> {
    let value = headers.get(AUTHORIZATION)?.as_bytes();
    let at = value.iter().position(|byte| *byte == b' ')?;
    value[..at].eq_ignore_ascii_case(scheme).then(|| value[at..].trim_ascii())
}

/// Whether the Basic credentials are a user and its password.
fn has_password(headers: &HeaderMap, users: &Users) -> bool {
    let given = credentials(headers, b"basic").and_then(base64::decode_strictly);
    let Some(given) = given else { return false };
    match given.iter().position(|byte| *byte == b':') {
        Some(colon) => users.accept(&given[..colon], &given[colon + 1..]),
        None => false,
    }
}

impl Refused {
    /// The status and a text that says what would be accepted.
    pub(super) fn reply(self) -> Response<Body> {
        let (status, why) = match self {
            Refused::Unknown => (
                StatusCode::UNAUTHORIZED,
                "a user and password of admin.auth_file, or the token of admin.token_file, is required\n",
            ),
            Refused::NoToken => (
                StatusCode::UNAUTHORIZED,
                "the token of admin.token_file is required: curl -H \"Authorization: Bearer $(cat FILE)\"\n",
            ),
            Refused::NoTokenFile => (
                StatusCode::FORBIDDEN,
                "without admin.token_file, nothing is changed over HTTP: kennel reload, or SIGHUP, reloads the configuration\n",
            ),
            Refused::Remote => (
                StatusCode::FORBIDDEN,
                "without admin.auth_file, keys are shown to requests from this host only\n",
            ),
            Refused::Host => (
                StatusCode::FORBIDDEN,
                "without admin.auth_file, keys are shown only under an IP address, localhost or the host of admin.listen\n",
            ),
            Refused::OtherSite => (
                StatusCode::FORBIDDEN,
                "keys are not shown to requests that a page of another site has sent\n",
            ),
            Refused::Off(Feature::Explain) => (StatusCode::NOT_FOUND, "switched off by admin.explain\n"),
            Refused::Off(Feature::Trace) => (StatusCode::NOT_FOUND, "switched off by admin.trace\n"),
            Refused::Off(Feature::Hot) => (StatusCode::NOT_FOUND, "switched off by admin.hot\n"),
        };
        let mut reply = reply(status, TEXT, why);
        let challenge = match self {
            Refused::Unknown => Some("Basic realm=\"kennel\", charset=\"UTF-8\""),
            Refused::NoToken => Some("Bearer realm=\"kennel\""),
            _ => None,
        };
        if let Some(challenge) = challenge {
            reply.headers_mut().insert(WWW_AUTHENTICATE, HeaderValue::from_static(challenge));
        }
        reply
    }
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use super::*;

    #[test]
    fn without_a_token_file_nothing_is_changed() {
        let access = Access {
            tls: None,
            users: None,
            token: None,
            host: "admin.example".to_owned(),
            shown: vec![Feature::Explain],
            logged: Mutex::default(),
        };
        for (host, authorization, from) in [
            ("127.0.0.1:9111", "", IpAddr::from(Ipv4Addr::LOCALHOST)),
            ("localhost", "Bearer ", IpAddr::from(Ipv4Addr::LOCALHOST)),
            ("10.0.0.5:9111", "Bearer 0123456789abcdef", IpAddr::from([10, 0, 0, 7])),
        ] {
            let mut headers = HeaderMap::new();
            headers.insert(HOST, HeaderValue::from_static(host));
            headers.insert(AUTHORIZATION, HeaderValue::from_static(authorization));
            assert_eq!(
                access.check(Needs::Change, &headers, from),
                Err(Refused::NoTokenFile),
                "{host} {from}"
            );
        }
    }

    #[test]
    fn a_page_of_another_site_is_shown_no_keys() {
        let access = Access {
            tls: None,
            users: None,
            token: None,
            host: "admin.example".to_owned(),
            shown: vec![Feature::Trace],
            logged: Mutex::default(),
        };
        let here = IpAddr::from(Ipv4Addr::LOCALHOST);
        for (name, value, expected) in [
            ("sec-fetch-site", "same-origin", Ok(())),
            ("sec-fetch-site", "none", Ok(())),
            ("sec-fetch-site", "cross-site", Err(Refused::OtherSite)),
            ("sec-fetch-site", "same-site", Err(Refused::OtherSite)),
            ("origin", "http://127.0.0.1:9111", Ok(())),
            ("origin", "http://127.0.0.1:8000", Err(Refused::OtherSite)),
            ("origin", "null", Err(Refused::OtherSite)),
        ] {
            let mut headers = HeaderMap::new();
            headers.insert(HOST, HeaderValue::from_static("127.0.0.1:9111"));
            headers.insert(name, HeaderValue::from_static(value));
            let checked = access.check(Needs::Keys(Feature::Trace), &headers, here);
            assert_eq!(checked, expected, "{name}: {value}");
            assert_eq!(access.check(Needs::Look, &headers, here), Ok(()));
        }
    }

    #[test]
    fn without_users_keys_are_shown_on_this_host_only_or_with_the_token() {
        let access = Access {
            tls: None,
            users: None,
            token: Some(Token::parse(b"0123456789abcdef").unwrap()),
            host: "admin.example".to_owned(),
            shown: vec![Feature::Explain],
            logged: Mutex::default(),
        };
        let (here, there) = (IpAddr::from(Ipv4Addr::LOCALHOST), IpAddr::from([10, 0, 0, 7]));
        let mapped = IpAddr::from(Ipv4Addr::LOCALHOST.to_ipv6_mapped());
        let headers = |host: &'static str, authorization: &'static str| {
            let mut headers = HeaderMap::new();
            headers.insert(HOST, HeaderValue::from_static(host));
            headers.insert(AUTHORIZATION, HeaderValue::from_static(authorization));
            headers
        };
        for off in [Feature::Trace, Feature::Hot] {
            let token = headers("127.0.0.1:9111", "Bearer 0123456789abcdef");
            assert_eq!(access.check(Needs::Keys(off), &token, here), Err(Refused::Off(off)));
        }
        let keys = Needs::Keys(Feature::Explain);
        for (host, authorization, from, expected) in [
            ("127.0.0.1:9111", "", here, Ok(())),
            ("127.0.0.1:9111", "", mapped, Ok(())),
            ("Admin.Example:9111", "", here, Ok(())),
            ("other.example", "", here, Err(Refused::Host)),
            ("10.0.0.5:9111", "", there, Err(Refused::Remote)),
            ("other.example", "Bearer 0123456789abcdef", there, Ok(())),
            ("10.0.0.5:9111", "Bearer 0123456789abcdeF", there, Err(Refused::Remote)),
        ] {
            assert_eq!(access.check(keys, &headers(host, authorization), from), expected, "{host} {from}");
            assert_eq!(access.check(Needs::Look, &headers(host, authorization), from), Ok(()));
        }
    }
}
