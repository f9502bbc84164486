//! Where the leases of `tenure elect` are kept: a URL becomes a lease store and the place that mints its epochs.

use std::path::PathBuf;
use std::sync::Arc;

use tenure_clock::{Clock, Entropy};
use tenure_lease::{FenceStore, LeaseStore};
use tenure_lease_etcd::{EtcdLeases, EtcdOptions, OptionsError};
use tenure_lease_http::HttpLeases;
use tenure_store_postgres::{PostgresLeaseOptions, PostgresLeases};
use tenure_store_sqlite::SqliteLeases;

use crate::cli::{Failure, Globals, endpoint, trust};
use crate::discovery::{self, Endpoint};
use crate::epochs::Epochs;

/// Where leases can be kept.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Backend {
    /// A Tenure server; without an address, the one that all other commands use.
    Server(Option<String>),
    Postgres(String),
    Etcd(EtcdOptions),
    Sqlite(PathBuf),
}

const FORMS: &str =
    "http://HOST:PORT, postgres://USER@HOST/DATABASE, etcd://HOST:PORT[,HOST:PORT][/PREFIX] or sqlite:FILE";

impl Backend {
    /// What stands behind `--backend`.
    pub fn parse(url: &str) -> Result<Self, String> {
        let wrong = || format!("it is none of {FORMS}");
        let (scheme, rest) = url.split_once(':').ok_or_else(wrong)?;
        let after_slashes = || rest.strip_prefix("//").filter(|rest| !rest.is_empty()).ok_or_else(wrong);
        match scheme {
            "http" | "https" => after_slashes().map(|_| Self::Server(Some(url.to_owned()))),
            "postgres" | "postgresql" => after_slashes().map(|_| Self::Postgres(url.to_owned())),
            "etcd" | "etcds" => url.parse().map(Self::Etcd).map_err(|error: OptionsError| error.to_string()),
            // `sqlite:FILE`, and `sqlite:///FILE` as others write it.
            "sqlite" => match rest.strip_prefix("//").unwrap_or(rest) {
                "" => Err("name a file after sqlite:, like sqlite:leases.db".into()),
                file => Ok(Self::Sqlite(file.into())),
            },
            _ => Err(wrong()),
        }
    }

    pub async fn open(
        &self,
        globals: &Globals,
        epochs: Epochs,
        clock: &Arc<dyn Clock>,
        entropy: &Entropy,
    ) -> Result<Opened, Failure> {
        match self {
            Self::Server(url) => {
                let globals =
                    Globals { server: url.clone().or_else(|| globals.server.clone()), ..globals.clone() };
                if globals.server.is_none() {
                    discovery::unambiguous().map_err(Failure::Usage)?;
                }
                let Endpoint { url, token, .. } = endpoint(&globals)?;
                let trust = trust(&globals, &url)?;
                let authorities: Vec<&[u8]> =
                    trust.authorities().iter().map(|known| known.as_ref()).collect();
                let (token, clock) = (token.as_deref(), Arc::clone(clock));
                let leases = HttpLeases::trusting(&authorities, &url, token, clock, entropy.clone());
                let leases = leases.map_err(|error| Failure::Usage(error.to_string()))?;
                Ok(Opened::both(leases, url))
            }
            Self::Postgres(url) => {
                let options =
                    PostgresLeaseOptions { application_name: "tenure elect".into(), epochs: epochs.mint() };
                let leases = PostgresLeases::connect(url, options, entropy).await;
                let leases = leases.map_err(|error| match error.is_refusal() {
                    true => refused(error),
                    false => unreachable(error),
                })?;
                Ok(Opened::both(leases, "Postgres".into()))
            }
            Self::Etcd(options) => {
                let leases = EtcdLeases::open(options.clone(), Arc::clone(clock));
                let leases = leases.map_err(|error| Failure::Usage(error.to_string()))?;
                Ok(Opened::both(leases, "etcd".into()))
            }
            Self::Sqlite(file) => {
                let (place, file, clock) = (file.display().to_string(), file.clone(), Arc::clone(clock));
                let opening = tokio::task::spawn_blocking(move || SqliteLeases::open(&file, clock));
                // Whatever is wrong with a file does not pass by waiting.
                let opened = opening.await.map_err(unreachable)?.map_err(refused)?;
                Ok(Opened::both(opened, place))
            }
        }
    }
}

/// The two faces of what was opened.
pub struct Opened {
    pub leases: Arc<dyn LeaseStore>,
    pub fences: Arc<dyn FenceStore>,
    /// For people.
    pub place: String,
}

impl Opened {
    fn both<S: LeaseStore + FenceStore + 'static>(store: S, place: String) -> Self {
        let store = Arc::new(store);
        Self { leases: Arc::clone(&store) as _, fences: store, place }
    }
}

/// With its causes: the outermost says where, the innermost what.
fn unreachable(error: impl Into<anyhow::Error>) -> Failure {
    Failure::Unreachable(format!("{:#}", error.into()))
}

fn refused(error: impl Into<anyhow::Error>) -> Failure {
    Failure::Failed(format!("{:#}", error.into()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_form_of_a_backend_is_understood() {
        let check = |url: &str, backend: Backend| assert_eq!(Backend::parse(url), Ok(backend), "{url}");
        check("http://localhost:8080", Backend::Server(Some("http://localhost:8080".into())));
        check("https://tenure.example", Backend::Server(Some("https://tenure.example".into())));
        check("postgres://me@db/x", Backend::Postgres("postgres://me@db/x".into()));
        check("postgresql:///x?host=/run", Backend::Postgres("postgresql:///x?host=/run".into()));
        check("sqlite:leases.db", Backend::Sqlite("leases.db".into()));
        check("sqlite:/var/lib/leases.db", Backend::Sqlite("/var/lib/leases.db".into()));
        check("sqlite:///var/lib/leases.db", Backend::Sqlite("/var/lib/leases.db".into()));
        let etcd = EtcdOptions::new(["a:2379", "[::1]:2380"]);
        check("etcd://a:2379,[::1]:2380", Backend::Etcd(etcd.clone()));
        check("etcd://a:2379,[::1]:2380/lcm/", Backend::Etcd(etcd.with_prefix("/lcm").unwrap()));
    }

    #[test]
    fn what_is_no_backend_is_refused_with_the_forms_there_are() {
        for url in ["", "redis://x", "leases.db", "postgres:", "http://"] {
            assert!(Backend::parse(url).is_err_and(|why| why.contains("sqlite:FILE")), "{url}");
        }
        assert!(Backend::parse("sqlite:").is_err_and(|why| why.contains("name a file")));
        assert!(Backend::parse("etcd://a:x").is_err_and(|why| why.contains("port")));
    }
}
