//! Who comes in: whoever shows a token of the API, or a node with an identity of its own, as that node and no other.
//!
//! Streams are let in on the database's word; the many small calls beside them on what was learned then. A look at the
//! short list of refused identities, every two seconds, ends both.

use std::collections::{HashMap, HashSet};
use std::sync::{Arc, PoisonError, RwLock};
use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use tenure_agent_proto::REFUSED_KEY;
use tenure_agent_proto::wire::{JoinRequest, RenewRequest};
use tenure_model::NodeId;
use tenure_model::credential::{JOIN_TOKEN, NODE_SECRET, digest};
use tenure_store::{IdentityStore, Join, Renewal, StoreError};
use tokio::time::MissedTickBehavior;
use tonic::metadata::{MetadataMap, MetadataValue};
use tonic::{Code, Status};

use crate::fleet::Shared;

/// How soon a removed node is cut off.
const LOOK_EVERY: Duration = Duration::from_secs(2);
/// For the database to answer.
const WITHIN: Duration = Duration::from_secs(5);
/// What no digest and no name exceeds.
const LONGEST_NAME: usize = 256;

/// Where identities are kept, and how long one lasts.
#[derive(Clone)]
pub struct Identities {
    pub store: Arc<dyn IdentityStore>,
    pub lifetime: Duration,
}

impl std::fmt::Debug for Identities {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Identities").field("lifetime", &self.lifetime).finish_non_exhaustive()
    }
}

/// Who has come in.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Guest {
    /// With a token of the API: as good as its holder, whatever the node is called.
    Anybody,
    Node(Shown),
}

/// A node's own identity, as it was shown.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Shown {
    pub digest: String,
    pub node: NodeId,
    pub until: Timestamp,
}

impl Guest {
    pub fn may_be(&self, node: &NodeId) -> Result<(), Status> {
        match self {
            Self::Node(shown) if shown.node != *node => Err(refused(format!(
                "this identity is that of node {}, and the agent says that it is {node}: start it with --name {}, or in \
                 a data folder of its own",
                shown.node, shown.node
            ))),
            Self::Anybody | Self::Node(_) => Ok(()),
        }
    }
}

/// What this replica has learned of identities; it forgets them when they end.
#[derive(Debug, Default)]
pub(crate) struct Known(RwLock<HashMap<String, Shown>>);

impl Known {
    fn get(&self, digest: &str, now: Timestamp) -> Option<Shown> {
        let known = self.0.read().unwrap_or_else(PoisonError::into_inner);
        known.get(digest).filter(|shown| shown.until > now).cloned()
    }

    fn put(&self, shown: &Shown) {
        let mut known = self.0.write().unwrap_or_else(PoisonError::into_inner);
        known.insert(shown.digest.clone(), shown.clone());
    }

    fn forget(&self, refused: &HashSet<String>, now: Timestamp) {
        let mut known = self.0.write().unwrap_or_else(PoisonError::into_inner);
        known.retain(|digest, shown| shown.until > now && !refused.contains(digest));
    }
}

/// What was shown in the metadata of a call.
pub(crate) fn bearer(metadata: &MetadataMap) -> Result<&str, Status> {
    let shown = metadata.get("authorization").and_then(|value| value.to_str().ok());
    let shown = shown.and_then(|value| value.strip_prefix("Bearer "));
    shown.ok_or_else(|| Status::unauthenticated("no token was shown (authorization: Bearer TOKEN)"))
}

impl Shared {
    /// For a stream: the database is asked.
    pub async fn identify(&self, secret: &str) -> Result<Guest, Status> {
        let Some(identities) = self.parts.identities.as_ref().filter(|_| secret.starts_with(NODE_SECRET))
        else {
            return Err(Status::unauthenticated(match secret.starts_with(JOIN_TOKEN) {
                true => "a join token gives an identity, and opens nothing else",
                false => "this token is not known here",
            }));
        };
        let digest = digest(secret);
        let found = in_time(identities.store.node_identity(&digest)).await?;
        let found = found.ok_or_else(|| {
            Status::unauthenticated("the identity of this node is not known here: it needs a new join token")
        })?;
        if found.revoked_at.is_some() {
            return Err(removed(&found.node));
        }
        if !found.is_valid(self.parts.clock.now()) {
            return Err(expired(&found.node));
        }
        let shown = Shown { digest, node: found.node, until: found.expires_at };
        self.known.put(&shown);
        Ok(Guest::Node(shown))
    }

    /// For a small call beside a stream.
    pub async fn recognize(&self, secret: &str) -> Result<Guest, Status> {
        match self.known.get(&digest(secret), self.parts.clock.now()) {
            Some(shown) => Ok(Guest::Node(shown)),
            None => self.identify(secret).await,
        }
    }

    pub async fn join(&self, token: &str, request: JoinRequest) -> Result<Duration, Status> {
        let identities = self.identities(token, JOIN_TOKEN, "a join token")?;
        let (node, own) = (fitting(request.node, "the node's name")?, fitting(request.digest, "the digest")?);
        let (at, until) = self.lifetime(identities);
        let join = Join { token: digest(token), node: node.into(), digest: own, at, until };
        let until = in_time(identities.store.join_node(&join)).await?;
        tracing::info!(node = %join.node, "a node has joined");
        Ok(left(at, until))
    }

    pub async fn renew(&self, secret: &str, request: RenewRequest) -> Result<Duration, Status> {
        let identities = self.identities(secret, NODE_SECRET, "a node's identity")?;
        let (at, until) = self.lifetime(identities);
        let next = fitting(request.digest, "the digest")?;
        let renewal = Renewal { shown: digest(secret), next, at, until };
        let until = in_time(identities.store.renew_node(&renewal)).await?;
        Ok(left(at, until))
    }

    fn identities(&self, shown: &str, kind: &str, name: &str) -> Result<&Identities, Status> {
        let identities = self.parts.identities.as_ref();
        identities
            .filter(|_| shown.starts_with(kind))
            .ok_or_else(|| Status::unauthenticated(format!("what was shown is not {name}")))
    }

    fn lifetime(&self, identities: &Identities) -> (Timestamp, Timestamp) {
        let at = self.parts.clock.now();
        let lifetime = SignedDuration::try_from(identities.lifetime).unwrap_or(SignedDuration::MAX);
        (at, at.saturating_add(lifetime).unwrap_or(Timestamp::MAX))
    }
}

/// Until the fleet closes: cuts off nodes that were removed, and those whose identity has run out.
pub(crate) async fn watch(fleet: Arc<Shared>, identities: Identities) {
    let mut ticks = tokio::time::interval(LOOK_EVERY);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut failing = false;
    while fleet.closing.run_until_cancelled(ticks.tick()).await.is_some() {
        let looked = look(&fleet, &*identities.store).await;
        // Said once for each outage. Whoever is in stays in meanwhile: tasks run on without the control plane.
        if let (Err(status), false) = (&looked, failing) {
            tracing::warn!(error = status.message(), "which nodes were removed cannot be read; trying again");
        }
        failing = looked.is_err();
    }
}

async fn look(fleet: &Shared, store: &dyn IdentityStore) -> Result<(), Status> {
    let now = fleet.parts.clock.now();
    let refused: HashSet<String> = in_time(store.revoked_identities(now)).await?.into_iter().collect();
    fleet.known.forget(&refused, now);
    for link in fleet.all() {
        let Some(shown) = link.shown() else { continue };
        if refused.contains(&shown.digest) {
            link.hang_up(removed(&shown.node));
        } else if shown.until <= now {
            // It may have another one by now, shown to another replica.
            match in_time(store.identified_until(&shown.node, now)).await? {
                Some(until) => link.identified_until(until),
                None => link.hang_up(expired(&shown.node)),
            }
        }
    }
    Ok(())
}

fn removed(node: &NodeId) -> Status {
    refused(format!(
        "node {node} was removed, and its identity is refused: to bring it back, start its agent with a new join token \
         (tenure node token --name {node})"
    ))
}

fn expired(node: &NodeId) -> Status {
    Status::unauthenticated(format!(
        "the identity of node {node} has expired: start its agent with a new join token (tenure node token --name {node})"
    ))
}

/// A word that will not change by asking again.
fn refused(why: String) -> Status {
    let mut status = Status::new(Code::PermissionDenied, why);
    status.metadata_mut().insert(REFUSED_KEY, MetadataValue::from_static("yes"));
    status
}

fn fitting(text: String, what: &str) -> Result<String, Status> {
    match text.len() {
        0 => Err(Status::invalid_argument(format!("{what} is missing"))),
        1..=LONGEST_NAME => Ok(text),
        _ => Err(Status::invalid_argument(format!("{what} is longer than {LONGEST_NAME} characters"))),
    }
}

fn left(at: Timestamp, until: Timestamp) -> Duration {
    until.duration_since(at).try_into().unwrap_or_default()
}

async fn in_time<T>(asking: impl Future<Output = Result<T, StoreError>>) -> Result<T, Status> {
    match tokio::time::timeout(WITHIN, asking).await {
        Ok(Ok(answer)) => Ok(answer),
        Ok(Err(StoreError::Conflict(why))) => Err(refused(why)),
        Ok(Err(error)) => Err(Status::unavailable(format!("identities cannot be checked now: {error}"))),
        Err(_) => {
            Err(Status::unavailable(format!("identities cannot be checked now: no answer within {WITHIN:?}")))
        }
    }
}
