//! Tokens, sign-in codes and sessions.
//!
//! Owns who a request comes from. Secrets are compared by their hashes, in constant time, and appear in no log. A wrong
//! credential never blocks a right one: tokens have 244 random bits, and the limit of bad ones only keeps the log short.

use std::collections::{HashMap, VecDeque};
use std::net::IpAddr;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use axum::http::{HeaderMap, StatusCode, header};

use crate::problem::{Problem, Result};

/// Time in which a sign-in code can be used.
pub(crate) const CODE_LIFETIME: Duration = Duration::from_secs(600);

/// Bad credentials of one address in a minute from which the answer is 429.
const MAX_BAD: usize = 20;
const BAD_INTERVAL: Duration = Duration::from_secs(60);

/// Addresses whose bad credentials are counted, and sessions and codes that exist at the same time. The oldest go first.
const MAX_ADDRESSES: usize = 1_024;
const MAX_SESSIONS: usize = 1_000;
const MAX_CODES: usize = 16;

/// What a caller may do.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Access {
    Read,
    Full,
}

impl Access {
    pub(crate) fn as_str(self) -> &'static str {
        match self {
            Access::Read => "read",
            Access::Full => "full",
        }
    }
}

/// With what a caller has authenticated.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Credential {
    Token,
    Session,
}

impl Credential {
    pub(crate) fn as_str(self) -> &'static str {
        match self {
            Credential::Token => "token",
            Credential::Session => "session",
        }
    }
}

/// Sender of an authenticated request.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Caller {
    pub(crate) access: Access,
    pub(crate) credential: Credential,
}

/// Makes a secret, such as a token: 64 hexadecimal digits with 244 random bits.
pub fn new_secret() -> String {
    format!("{}{}", uuid::Uuid::new_v4().simple(), uuid::Uuid::new_v4().simple())
}

/// The credentials that the server accepts.
#[derive(Debug)]
pub(crate) struct Credentials {
    tokens: Vec<(blake3::Hash, Access)>,
    cookie_name: String,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    /// Sorted by age, the oldest first.
    sessions: VecDeque<(blake3::Hash, Access)>,
    /// Sorted by age, the oldest first.
    codes: VecDeque<(blake3::Hash, Access, Instant)>,
    bad: HashMap<IpAddr, VecDeque<Instant>>,
}

impl Credentials {
    /// Cookies are shared by all ports of a host, so the name of this server's cookie has its port.
    pub(crate) fn new(port: u16, full_token: &str, read_token: &str) -> Self {
        let token = |text: &str, access| (!text.is_empty()).then(|| (hash(text), access));
        let tokens = [token(full_token, Access::Full), token(read_token, Access::Read)];
        Credentials {
            tokens: tokens.into_iter().flatten().collect(),
            cookie_name: format!("gristmill-{port}"),
            state: Mutex::default(),
        }
    }

    pub(crate) fn cookie_name(&self) -> &str {
        &self.cookie_name
    }

    /// Makes a code that can be exchanged for a session once.
    pub(crate) fn new_code(&self, access: Access) -> String {
        let code = new_secret();
        let mut state = self.state();
        if state.codes.len() >= MAX_CODES {
            state.codes.pop_front();
        }
        state.codes.push_back((hash(&code), access, Instant::now()));
        code
    }

    /// Exchanges a code for a session, whose secret is returned.
    pub(crate) fn sign_in(&self, code: &str, peer: Option<IpAddr>) -> Result<(String, Access)> {
        let (given, now) = (hash(code), Instant::now());
        let mut state = self.state();
        state.codes.retain(|(.., made)| now.duration_since(*made) < CODE_LIFETIME);
        // All are compared, so that the time does not depend on which one matches.
        let known = state.codes.iter().enumerate();
        let found = known.fold(None, |found, (at, (code, ..))| if *code == given { Some(at) } else { found });
        let Some((_, access, _)) = found.and_then(|at| state.codes.remove(at)) else {
            let detail = "the sign-in link was used or has expired; POST /api/v1/sign-in-links makes a new one";
            return Err(state.refuse(peer, now, detail));
        };
        let session = new_secret();
        if state.sessions.len() >= MAX_SESSIONS {
            state.sessions.pop_front();
        }
        state.sessions.push_back((hash(&session), access));
        Ok((session, access))
    }

    /// Ends the session of a request, if it has one.
    pub(crate) fn sign_out(&self, headers: &HeaderMap) {
        let given: Vec<blake3::Hash> = self.cookies(headers).map(hash).collect();
        self.state().sessions.retain(|(session, _)| !given.contains(session));
    }

    /// Returns who sends a request: by its bearer token, or else by the cookie of its session.
    pub(crate) fn authenticate(&self, headers: &HeaderMap, peer: Option<IpAddr>) -> Result<Caller> {
        // Another scheme is for a reverse proxy.
        let given = headers.get_all(header::AUTHORIZATION).iter().filter_map(|value| bearer_token(value.as_bytes()));
        let mut given = given.fuse();
        let (found, detail) = match (given.next(), given.next()) {
            (Some(token), None) => {
                let access = find(&self.tokens, hash(token));
                let caller = access.map(|access| Caller { access, credential: Credential::Token });
                (caller, "the bearer token is wrong; `gristmill serve` prints the path of the file that has it")
            }
            (Some(_), Some(_)) => (None, "the request has several Authorization headers; expected one"),
            (None, _) => {
                let mut cookies = self.cookies(headers).peekable();
                if cookies.peek().is_none() {
                    let detail = "this request needs a bearer token (Authorization: Bearer TOKEN), or a session that was \
                        begun with a sign-in link";
                    return Err(Problem::new(StatusCode::UNAUTHORIZED, detail));
                }
                // A page of another port can set a cookie of this name, so there may be several.
                let mut state = self.state();
                let sessions = state.sessions.make_contiguous();
                let access = cookies.filter_map(|cookie| find(sessions, hash(cookie))).max();
                let caller = access.map(|access| Caller { access, credential: Credential::Session });
                (caller, "the session has ended; sign in with a new link")
            }
        };
        found.ok_or_else(|| self.state().refuse(peer, Instant::now(), detail))
    }

    /// Returns the values of this server's cookie. The other cookies of the host may have any bytes.
    fn cookies<'a>(&'a self, headers: &'a HeaderMap) -> impl Iterator<Item = &'a [u8]> {
        let pairs =
            headers.get_all(header::COOKIE).iter().flat_map(|value| value.as_bytes().split(|byte| *byte == b';'));
        let name = self.cookie_name.as_bytes();
        pairs.filter_map(move |pair| pair.trim_ascii().strip_prefix(name)?.strip_prefix(b"="))
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    /// Returns the error for a bad credential: 401, or 429 after too many of one address.
    fn refuse(&mut self, peer: Option<IpAddr>, now: Instant, detail: &str) -> Problem {
        let unauthorized = Problem::new(StatusCode::UNAUTHORIZED, detail);
        let Some(peer) = peer else { return unauthorized };
        if self.bad.len() >= MAX_ADDRESSES && !self.bad.contains_key(&peer) {
            self.bad.retain(|_, times| times.back().is_some_and(|last| now.duration_since(*last) < BAD_INTERVAL));
            if self.bad.len() >= MAX_ADDRESSES {
                return unauthorized;
            }
        }
        let times = self.bad.entry(peer).or_default();
        while times.front().is_some_and(|first| now.duration_since(*first) >= BAD_INTERVAL) {
            times.pop_front();
        }
        if times.len() >= MAX_BAD {
            let detail = "too many wrong tokens or codes from this address; wait a minute";
            return Problem::new(StatusCode::TOO_MANY_REQUESTS, detail);
        }
        times.push_back(now);
        tracing::warn!(%peer, "refused a wrong token, code or session");
        unauthorized
    }
}

/// Returns the token of an `Authorization` header with the scheme Bearer.
fn bearer_token(value: &[u8]) -> Option<&[u8]> {
    let (scheme, token) = value.split_at_checked(7)?;
    scheme.eq_ignore_ascii_case(b"bearer ").then_some(token)
}

fn hash(secret: impl AsRef<[u8]>) -> blake3::Hash {
    blake3::hash(secret.as_ref())
}

/// Compares in constant time, as `Hash` does, with all of them.
fn find(known: &[(blake3::Hash, Access)], given: blake3::Hash) -> Option<Access> {
    known.iter().fold(None, |found, (hash, access)| if *hash == given { Some(*access) } else { found })
}
