//! What an agent shows at the door: a token of the API, or an identity of its own.
//!
//! The agent makes the secret of its identity itself, keeps it in a file that only it can read, and tells the control
//! plane its digest. It gets the first one for a join token, and the next ones for the one before, well before that ends.
//! Promises: the secret is on disk before anybody is told of it, so that no answer that is lost and no crash costs a use
//! of the join token; a join token is used only where there is no identity, or where it is refused.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use serde::{Deserialize, Serialize};
use tenure_agent_proto::AgentsClient;
use tenure_agent_proto::wire::{JoinRequest, RenewRequest};
use tenure_clock::{Clock, Entropy};
use tenure_model::NodeId;
use tenure_model::credential::{NODE_SECRET, digest, secret};
use tonic::Request;
use tonic::metadata::{Ascii, MetadataValue};
use tonic::transport::Channel;

use super::{BadLinks, Shared, Trouble};

const ANSWER_WITHIN: Duration = Duration::from_secs(10);
/// Between two looks at whether the time has come; at the most, and at the least.
const LOOK_EVERY: Duration = Duration::from_secs(60);
const LOOK_AGAIN: Duration = Duration::from_secs(1);

/// What opens the door.
#[derive(Clone)]
pub enum Access {
    /// A token of the API.
    Token(String),
    /// An identity of its own, kept in this file; the join token is for getting one.
    Identity { file: PathBuf, join: Option<String> },
}

impl std::fmt::Debug for Access {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Token(_) => f.write_str("Token"),
            Self::Identity { file, join } => {
                f.debug_struct("Identity").field("file", file).field("joins", &join.is_some()).finish()
            }
        }
    }
}

/// As it lies on disk. Times are by this machine's clock, and only say when to renew.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Kept {
    node: String,
    secret: String,
    /// Until then nobody has answered to it.
    joined: bool,
    issued_at: Timestamp,
    expires_at: Timestamp,
}

pub(super) struct Keyring {
    way: Way,
    /// One join at a time.
    joining: tokio::sync::Mutex<()>,
}

enum Way {
    Token(MetadataValue<Ascii>),
    Identity {
        file: PathBuf,
        join: Option<String>,
        kept: Mutex<Kept>,
        /// Why the identity before this one is not good any more.
        why_anew: Mutex<Option<String>>,
    },
}

impl Keyring {
    pub fn open(
        access: &Access,
        node: &NodeId,
        clock: &dyn Clock,
        entropy: &Entropy,
    ) -> Result<Self, BadLinks> {
        let way = match access {
            Access::Token(token) => Way::Token(bearer(token)?),
            Access::Identity { file, join } => {
                if let Some(join) = join {
                    bearer(join)?;
                }
                let kept = match load(file)? {
                    Some(kept) if kept.node != node.as_str() && join.is_none() => {
                        let (file, own) = (file.display().to_string(), kept.node);
                        return Err(BadLinks::OtherNode { file, own, asked: node.to_string() });
                    }
                    Some(kept) if kept.node == node.as_str() => kept,
                    _ => fresh(node.as_str(), clock, entropy),
                };
                Way::Identity {
                    file: file.clone(),
                    join: join.clone(),
                    kept: Mutex::new(kept),
                    why_anew: Mutex::default(),
                }
            }
        };
        Ok(Self { way, joining: Default::default() })
    }

    /// What to show now. Where there is no identity yet, it is asked for.
    pub async fn show(
        &self,
        client: &AgentsClient<Channel>,
        clock: &dyn Clock,
    ) -> Result<MetadataValue<Ascii>, Trouble> {
        let Way::Identity { file, join, kept, why_anew } = &self.way else { return Ok(self.current()) };
        let _alone = self.joining.lock().await;
        let wanted = lock(kept).clone();
        if wanted.joined {
            return Ok(self.current());
        }
        let Some(token) = join else {
            let said = format!("there is no identity in {} yet", file.display());
            return Err(Trouble::NoIdentity { said });
        };
        store(file, &wanted).map_err(|error| cannot_keep(file, &error))?;
        let mut request =
            Request::new(JoinRequest { node: wanted.node.clone(), digest: digest(&wanted.secret) });
        let token = bearer(token).expect("it was looked at before");
        request.metadata_mut().insert("authorization", token);
        let mut client = client.clone();
        let answer = match tokio::time::timeout(ANSWER_WITHIN, client.join(request)).await {
            Ok(Ok(answer)) => answer.into_inner(),
            Ok(Err(status)) => {
                let trouble = Trouble::from_status(&status);
                let why = lock(why_anew).clone().filter(|_| trouble.is_refusal());
                return Err(why.map_or(trouble, |why| Trouble::Refused {
                    said: format!("{why}; the token that it was given does not help: {}", status.message()),
                }));
            }
            Err(_) => return Err(Trouble::Silent),
        };
        *lock(why_anew) = None;
        let joined = valid(wanted, clock, Duration::from_millis(answer.valid_for_ms));
        store(file, &joined).map_err(|error| cannot_keep(file, &error))?;
        tracing::info!(node = joined.node, "joined: this node has an identity of its own");
        *lock(kept) = joined;
        Ok(self.current())
    }

    /// What is shown to calls beside a stream, which come after it.
    pub fn current(&self) -> MetadataValue<Ascii> {
        match &self.way {
            Way::Token(token) => token.clone(),
            Way::Identity { kept, .. } => bearer(&lock(kept).secret).expect("it was made here"),
        }
    }

    /// The identity that was shown is refused. True: there is a join token to get another one with.
    pub fn refused(
        &self,
        shown: &MetadataValue<Ascii>,
        why: &Trouble,
        clock: &dyn Clock,
        entropy: &Entropy,
    ) -> bool {
        let Way::Identity { join: Some(_), kept, why_anew, .. } = &self.way else { return false };
        let mut kept = lock(kept);
        // Another link may have heard it before, and it may be settled by now.
        if kept.joined && bearer(&kept.secret).is_ok_and(|own| own == *shown) {
            *kept = fresh(&kept.node, clock, entropy);
            *lock(why_anew) = Some(why.to_string());
        }
        true
    }

    /// Half of its time has passed.
    fn is_due(&self, now: Timestamp) -> bool {
        let Way::Identity { kept, .. } = &self.way else { return false };
        let kept = lock(kept);
        kept.joined
            && now.duration_since(kept.issued_at) * 2 >= kept.expires_at.duration_since(kept.issued_at)
    }

    /// When to look again: often enough for whatever lifetime was given.
    fn pause(&self) -> Duration {
        let Way::Identity { kept, .. } = &self.way else { return LOOK_EVERY };
        let kept = lock(kept);
        let lifetime: Duration =
            kept.expires_at.duration_since(kept.issued_at).try_into().unwrap_or_default();
        (lifetime / 20).clamp(LOOK_AGAIN, LOOK_EVERY)
    }
}

/// Gets the next identity while the one that is there is still good.
pub(super) async fn keep_renewed(shared: Arc<Shared>) {
    let Way::Identity { file, kept, .. } = &shared.keyring.way else { return };
    let mut next = None;
    loop {
        let pause = shared.keyring.pause();
        tokio::time::sleep(pause + shared.entropy.jitter(pause / 4)).await;
        if !shared.keyring.is_due(shared.clock.now()) {
            continue;
        }
        let own = lock(kept).clone();
        // The same one until it is there: an answer may have been lost.
        let wanted: &Kept = next.get_or_insert_with(|| fresh(&own.node, &*shared.clock, &shared.entropy));
        let Some(valid_for) = renew(&shared, &digest(&wanted.secret)).await else { continue };
        let renewed = valid(wanted.clone(), &*shared.clock, valid_for);
        match store(file, &renewed) {
            Ok(()) => {
                next = None;
                *lock(kept) = renewed;
                tracing::debug!("this node's identity was renewed");
            }
            Err(error) => tracing::warn!("{}", cannot_keep(file, &error)),
        }
    }
}

async fn renew(shared: &Shared, digest: &str) -> Option<Duration> {
    for wire in shared.well() {
        let mut request = Request::new(RenewRequest { digest: digest.to_owned() });
        request.metadata_mut().insert("authorization", shared.keyring.current());
        let mut client = wire.client.clone();
        match tokio::time::timeout(ANSWER_WITHIN, client.renew(request)).await {
            Ok(Ok(answer)) => return Some(Duration::from_millis(answer.into_inner().valid_for_ms)),
            Ok(Err(status)) => {
                tracing::warn!(error = status.message(), "this node's identity was not renewed")
            }
            Err(_) => tracing::warn!("no answer to a renewal within {ANSWER_WITHIN:?}"),
        }
    }
    None
}

fn fresh(node: &str, clock: &dyn Clock, entropy: &Entropy) -> Kept {
    let now = clock.now();
    let secret = secret(NODE_SECRET, &entropy.bytes::<32>());
    Kept { node: node.to_owned(), secret, joined: false, issued_at: now, expires_at: now }
}

fn valid(wanted: Kept, clock: &dyn Clock, valid_for: Duration) -> Kept {
    let issued_at = clock.now();
    let valid_for = SignedDuration::try_from(valid_for).unwrap_or(SignedDuration::MAX);
    let expires_at = issued_at.saturating_add(valid_for).unwrap_or(Timestamp::MAX);
    Kept { joined: true, issued_at, expires_at, ..wanted }
}

fn bearer(secret: &str) -> Result<MetadataValue<Ascii>, BadLinks> {
    let mut bearer: MetadataValue<Ascii> =
        format!("Bearer {secret}").parse().map_err(|_| BadLinks::BadToken)?;
    bearer.set_sensitive(true);
    Ok(bearer)
}

fn load(file: &Path) -> Result<Option<Kept>, BadLinks> {
    let bad = |error: String| BadLinks::BadIdentity { file: file.display().to_string(), error };
    match fs::read(file) {
        Ok(bytes) => serde_json::from_slice(&bytes).map(Some).map_err(|error| bad(error.to_string())),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(bad(error.to_string())),
    }
}

/// Whole or not at all, and for nobody else to read.
fn store(file: &Path, kept: &Kept) -> io::Result<()> {
    let unfinished = file.with_extension("json.new");
    let mut out = OpenOptions::new().create(true).truncate(true).write(true).mode(0o600).open(&unfinished)?;
    out.write_all(&serde_json::to_vec_pretty(kept)?)?;
    out.sync_all()?;
    fs::rename(&unfinished, file)?;
    File::open(file.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new(".")))?
        .sync_all()
}

fn cannot_keep(file: &Path, error: &io::Error) -> Trouble {
    Trouble::NoIdentity {
        said: format!("this node's identity cannot be kept in {}: {error}", file.display()),
    }
}

fn lock<T>(kept: &Mutex<T>) -> MutexGuard<'_, T> {
    kept.lock().expect("no panic while holding the identity")
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use tenure_clock::ManualClock;

    use super::*;

    struct Bench {
        folder: tempfile::TempDir,
        clock: ManualClock,
    }

    impl Bench {
        fn new() -> Self {
            let clock = ManualClock::starting_at("2026-01-01T00:00:00Z".parse().unwrap());
            Self { folder: tempfile::tempdir().unwrap(), clock }
        }

        fn file(&self) -> PathBuf {
            self.folder.path().join("identity.json")
        }

        fn open(&self, node: &str, join: Option<&str>) -> Result<Keyring, BadLinks> {
            let access = Access::Identity { file: self.file(), join: join.map(str::to_owned) };
            Keyring::open(&access, &node.into(), &self.clock, &Entropy::seeded(1))
        }

        fn keep(&self, node: &str, hours: u64) -> Kept {
            let kept = valid(
                fresh(node, &self.clock, &Entropy::seeded(7)),
                &self.clock,
                Duration::from_secs(hours * 3600),
            );
            store(&self.file(), &kept).unwrap();
            kept
        }
    }

    fn removed() -> Trouble {
        Trouble::Refused { said: "node n1 was removed".into() }
    }

    #[test]
    fn an_identity_is_kept_for_its_owner_alone_and_found_again() {
        let bench = Bench::new();
        let kept = bench.keep("n1", 24);
        let mode = fs::metadata(bench.file()).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
        let keyring = bench.open("n1", None).unwrap();
        assert_eq!(keyring.current(), bearer(&kept.secret).unwrap());
        assert!(
            !keyring.refused(&keyring.current(), &removed(), &bench.clock, &Entropy::seeded(2)),
            "no way to another one"
        );
        assert!(matches!(bench.open("n2", None), Err(BadLinks::OtherNode { .. })));
        fs::write(bench.file(), "{").unwrap();
        assert!(matches!(bench.open("n1", None), Err(BadLinks::BadIdentity { .. })));
    }

    #[test]
    fn a_join_token_is_for_when_the_identity_is_refused() {
        let bench = Bench::new();
        let kept = bench.keep("n1", 24);
        let keyring = bench.open("n1", Some("tenure-join-1")).unwrap();
        let shown = keyring.current();
        assert_eq!(shown, bearer(&kept.secret).unwrap(), "what is there goes first");
        assert!(keyring.refused(&shown, &removed(), &bench.clock, &Entropy::seeded(2)));
        let other = keyring.current();
        assert_ne!(other, shown);
        assert!(keyring.refused(&shown, &removed(), &bench.clock, &Entropy::seeded(3)));
        assert_eq!(keyring.current(), other, "a second link that hears of it changes nothing");
    }

    #[test]
    fn it_is_renewed_when_half_of_its_time_has_passed() {
        let bench = Bench::new();
        bench.keep("n1", 24);
        let keyring = bench.open("n1", None).unwrap();
        let hour = Duration::from_secs(3600);
        bench.clock.advance(hour * 11);
        assert!(!keyring.is_due(bench.clock.now()));
        bench.clock.advance(hour);
        assert!(keyring.is_due(bench.clock.now()));
        assert_eq!(keyring.pause(), LOOK_EVERY);
        assert!(
            !bench.open("n2", Some("tenure-join-1")).unwrap().is_due(bench.clock.now()),
            "there is none yet"
        );
    }
}
