//! Where etcd is and under which prefix leases live: options, and the URL that says all of it.

use std::fmt;
use std::num::NonZeroU16;
use std::str::FromStr;
use std::time::Duration;

/// What a user would expect to find with `etcdctl get --prefix /tenure/`.
const DEFAULT_PREFIX: &str = "/tenure/";
/// etcd's own.
const DEFAULT_PORT: u16 = 2379;
/// One call to etcd takes milliseconds. This is long for a healthy cluster, and short enough for a holder of
/// the default lease of 15 s to try a second endpoint and a third before its deadline.
const DEFAULT_TIMEOUT: Duration = Duration::from_secs(2);

/// How to reach etcd. Parses from `etcd://[user:password@]host:port[,host:port…][/prefix]`.
#[derive(Clone, PartialEq, Eq)]
pub struct EtcdOptions {
    /// `host:port`, tried in this order; the next one when one fails.
    pub endpoints: Vec<String>,
    /// What all keys begin with. Ends with a slash.
    pub prefix: String,
    pub credentials: Option<Credentials>,
    /// Of one call; a verb makes a few.
    pub timeout: Duration,
}

#[derive(Clone, PartialEq, Eq)]
pub struct Credentials {
    pub user: String,
    pub password: String,
}

/// Why a text does not say where etcd is. Never repeats a password.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum OptionsError {
    #[error("an etcd address looks like etcd://host:2379/prefix")]
    Scheme,
    #[error(
        "etcds:// is not supported: this client speaks no TLS. Use etcd:// on a network you trust, or to a \
         local TLS proxy (stunnel, envoy) in front of etcd"
    )]
    Tls,
    #[error("the etcd address names no host: etcd://host:2379")]
    NoEndpoint,
    #[error("{0:?} is no host: an etcd address names hosts and ports, like etcd-1:2379 or [::1]:2379")]
    Host(String),
    /// The port itself is not repeated: somebody may have left out the host after a password.
    #[error("the port after {0:?} is no number from 1 to 65535")]
    Port(String),
    #[error("a user comes with a password: etcd://user:password@host:2379")]
    NoPassword,
    #[error(
        "the user or the password holds a % that is not followed by two hexadecimal digits: write % as %25"
    )]
    Escape,
    #[error("the etcd prefix {0:?} holds {1:?}: letters, digits and any of - _ . : + / are allowed")]
    Prefix(String, char),
}

impl EtcdOptions {
    pub fn new(endpoints: impl IntoIterator<Item = impl Into<String>>) -> Self {
        Self {
            endpoints: endpoints.into_iter().map(Into::into).collect(),
            prefix: DEFAULT_PREFIX.into(),
            credentials: None,
            timeout: DEFAULT_TIMEOUT,
        }
    }

    pub fn with_prefix(self, prefix: &str) -> Result<Self, OptionsError> {
        Ok(Self { prefix: checked_prefix(prefix)?, ..self })
    }
}

impl FromStr for EtcdOptions {
    type Err = OptionsError;

    fn from_str(url: &str) -> Result<Self, OptionsError> {
        if url.starts_with("etcds://") {
            return Err(OptionsError::Tls);
        }
        let rest = url.strip_prefix("etcd://").ok_or(OptionsError::Scheme)?;
        // A password may hold a slash that nobody has escaped, so the last @ comes before the first slash.
        let (credentials, rest) = match rest.rsplit_once('@') {
            Some((credentials, rest)) => (Some(credentials.parse()?), rest),
            None => (None, rest),
        };
        let (hosts, path) = rest.split_once('/').unwrap_or((rest, ""));
        if hosts.is_empty() {
            return Err(OptionsError::NoEndpoint);
        }
        let endpoints = hosts.split(',').map(checked_endpoint).collect::<Result<Vec<_>, _>>()?;
        let options = Self { credentials, ..Self::new(endpoints) };
        match path.trim_matches('/') {
            "" => Ok(options),
            path => options.with_prefix(&format!("/{path}")),
        }
    }
}

impl FromStr for Credentials {
    type Err = OptionsError;

    fn from_str(text: &str) -> Result<Self, OptionsError> {
        let (user, password) = text.split_once(':').ok_or(OptionsError::NoPassword)?;
        Ok(Self { user: unescaped(user)?, password: unescaped(password)? })
    }
}

impl fmt::Debug for EtcdOptions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{self}")
    }
}

impl fmt::Debug for Credentials {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:***", self.user)
    }
}

/// As a URL, without the password.
impl fmt::Display for EtcdOptions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("etcd://")?;
        if let Some(credentials) = &self.credentials {
            write!(f, "{credentials:?}@")?;
        }
        write!(f, "{}{}", self.endpoints.join(","), self.prefix)
    }
}

/// A prefix that ends with a slash, so that `/lcm` does not meet the keys of `/lcm-2`.
fn checked_prefix(prefix: &str) -> Result<String, OptionsError> {
    let fits = |c: char| c.is_ascii_alphanumeric() || "-_.:+/".contains(c);
    if let Some(found) = prefix.chars().find(|c| !fits(*c)) {
        return Err(OptionsError::Prefix(prefix.into(), found));
    }
    Ok(format!("{}/", prefix.trim_end_matches('/')))
}

fn checked_endpoint(text: &str) -> Result<String, OptionsError> {
    let (host, port) = match text.rsplit_once(':') {
        // The colons of an IPv6 address are inside brackets.
        Some((host, port)) if !port.ends_with(']') => {
            let number: NonZeroU16 = port.parse().map_err(|_| OptionsError::Port(host.into()))?;
            (host, number.get())
        }
        _ => (text, DEFAULT_PORT),
    };
    let bracketed = host.strip_prefix('[').and_then(|host| host.strip_suffix(']'));
    let fits = match bracketed {
        Some(address) => address.parse::<std::net::Ipv6Addr>().is_ok(),
        None => !host.is_empty() && host.chars().all(|c| c.is_ascii_alphanumeric() || "-._".contains(c)),
    };
    if fits { Ok(format!("{host}:{port}")) } else { Err(OptionsError::Host(host.into())) }
}

/// `%40` and friends, for passwords that hold what a URL is made of.
fn unescaped(text: &str) -> Result<String, OptionsError> {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let Some((&first, after)) = rest.split_first() {
        rest = after;
        if first != b'%' {
            bytes.push(first);
            continue;
        }
        let digits = rest.get(..2).and_then(|digits| std::str::from_utf8(digits).ok());
        let byte = digits.and_then(|digits| u8::from_str_radix(digits, 16).ok());
        bytes.push(byte.ok_or(OptionsError::Escape)?);
        rest = &rest[2..];
    }
    String::from_utf8(bytes).map_err(|_| OptionsError::Escape)
}

#[cfg(test)]
mod tests {
    //! Goal: an address says everything, and a wrong one says what is wrong without telling secrets.

    use super::*;

    fn parsed(url: &str) -> EtcdOptions {
        url.parse().unwrap_or_else(|error| panic!("{url}: {error}"))
    }

    #[test]
    fn an_address_may_be_as_short_as_a_host() {
        let options = parsed("etcd://etcd-1");
        assert_eq!(options.endpoints, ["etcd-1:2379"]);
        assert_eq!(options.prefix, "/tenure/");
        assert_eq!(options.credentials, None);
        assert_eq!(parsed("etcd://etcd-1:4001/").prefix, "/tenure/");
    }

    #[test]
    fn an_address_may_say_everything() {
        let options = parsed("etcd://tom:p%40ss%2fword@a:1,b,[::1],[::1]:7/lcm/prod");
        assert_eq!(options.endpoints, ["a:1", "b:2379", "[::1]:2379", "[::1]:7"]);
        assert_eq!(options.prefix, "/lcm/prod/");
        let credentials = options.credentials.expect("given");
        assert_eq!((credentials.user.as_str(), credentials.password.as_str()), ("tom", "p@ss/word"));
    }

    #[test]
    fn a_prefix_always_ends_with_one_slash() {
        for url in ["etcd://a/lcm", "etcd://a/lcm/", "etcd://a//lcm//"] {
            assert_eq!(parsed(url).prefix, "/lcm/", "{url}");
        }
    }

    #[test]
    fn a_wrong_address_says_what_is_wrong() {
        let wrong = |url: &str| url.parse::<EtcdOptions>().expect_err(url);
        assert_eq!(wrong("http://a"), OptionsError::Scheme);
        assert!(wrong("etcds://a").to_string().contains("TLS"));
        assert_eq!(wrong("etcd://"), OptionsError::NoEndpoint);
        assert_eq!(wrong("etcd:///lcm"), OptionsError::NoEndpoint);
        assert_eq!(wrong("etcd://a:b"), OptionsError::Port("a".into()));
        assert_eq!(wrong("etcd://a,,b"), OptionsError::Host("".into()));
        assert_eq!(wrong("etcd://a:99999"), OptionsError::Port("a".into()));
        assert_eq!(wrong("etcd://a:0"), OptionsError::Port("a".into()));
        assert_eq!(wrong("etcd://[nope]"), OptionsError::Host("[nope]".into()));
        assert_eq!(wrong("etcd://tom@a"), OptionsError::NoPassword);
        assert_eq!(wrong("etcd://tom:100%@a"), OptionsError::Escape);
        assert_eq!(wrong("etcd://a/lcm?x=1"), OptionsError::Prefix("/lcm?x=1".into(), '?'));
    }

    #[test]
    fn no_text_about_an_address_tells_the_password() {
        let options = parsed("etcd://tom:hunter2@a/lcm");
        assert_eq!(options.to_string(), "etcd://tom:***@a:2379/lcm/");
        assert!(!format!("{options:?} {:?}", options.credentials).contains("hunter2"));
        for url in [
            "etcd://tom:hunter2@",
            "etcd://tom:hunter2",
            "etcd://tom:hunter2@:x",
            "etcd://tom:hunter2%@a",
            "etcd://tom:hunter2@a/ü",
        ] {
            let error = url.parse::<EtcdOptions>().expect_err(url);
            assert!(!format!("{error} {error:?}").contains("hunter2"), "{error}");
        }
    }
}
