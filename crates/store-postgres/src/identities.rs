//! Join tokens and the identities of nodes.
//!
//! Whatever gives or takes an identity of a node holds that node's lock: otherwise an identity that is issued while its
//! node is being removed would outlive the removal.

use async_trait::async_trait;
use jiff::{SignedDuration, Timestamp};
use tenure_model::{NodeId, TenantId};
use tenure_store::{
    AuditEntry, Common, IdentityStore, Join, JoinTokenRecord, LONGEST_JOIN_TOKEN, NewJoinToken, NodeIdentity,
    RemovedNode, Renewal, StoreError, Trigger, cannot_renew, digest_in_use, name_in_use, removed_since,
    unknown_join_token,
};

use crate::deed::Deed;
use crate::rows::{self, Cells};
use crate::session::Session;
use crate::{PostgresStore, batch};

macro_rules! tokens {
    () => {
        "SELECT id, node, uses, used, created_at, created_by, expires_at, revoked_at FROM join_tokens"
    };
}

const FORGET_TOKENS: &str = "DELETE FROM join_tokens WHERE expires_at < $1";
const ADD_TOKEN: &str =
    "INSERT INTO join_tokens (id, digest, node, uses, used, created_at, created_by, expires_at)
    VALUES ($1, $2, $3, $4, 0, $5, $6, $7) ON CONFLICT DO NOTHING
    RETURNING id, node, uses, used, created_at, created_by, expires_at, revoked_at";
const TOKENS: &str = concat!(tokens!(), " ORDER BY created_at DESC, id");
const LOCK_TOKEN: &str = concat!(tokens!(), " WHERE id = $1 FOR UPDATE");
const LOCK_SHOWN_TOKEN: &str = concat!(tokens!(), " WHERE digest = $1 FOR UPDATE");
const REVOKE_TOKEN: &str = "UPDATE join_tokens SET revoked_at = $2 WHERE id = $1";
const USE_TOKEN: &str = "UPDATE join_tokens SET used = used + 1 WHERE id = $1";

const LOCK_NODE: &str = "SELECT pg_advisory_xact_lock(hashtextextended('tenure node ' || $1, 0))";
const FIND: &str =
    "SELECT node, issued_at, expires_at, revoked_at, token FROM node_credentials WHERE digest = $1";
const UNTIL: &str = "SELECT max(expires_at) FROM node_credentials
    WHERE node = $1 AND revoked_at IS NULL AND expires_at > $2";
const REMOVED_AT: &str = "SELECT max(revoked_at) FROM node_credentials WHERE node = $1";
const REVOKED: &str = "SELECT digest FROM node_credentials
    WHERE revoked_at IS NOT NULL AND expires_at > $1 ORDER BY digest";
const FORGET: &str = "DELETE FROM node_credentials
    WHERE node = $1 AND expires_at < $2 AND (revoked_at IS NULL OR revoked_at < $2)";
const ISSUE: &str = "INSERT INTO node_credentials (digest, node, token, issued_at, expires_at)
    VALUES ($1, $2, $3, $4, $5)";

const LISTED: &str = "SELECT 1 FROM nodes WHERE node = $1 AND removed_at IS NULL";
const REVOKE: &str = "UPDATE node_credentials SET revoked_at = $2 WHERE node = $1 AND revoked_at IS NULL";
/// Whatever it had: a row that says when it was removed, for join tokens from before.
const MARK: &str = "INSERT INTO node_credentials (digest, node, issued_at, expires_at, revoked_at)
    VALUES ('removed ' || $2::timestamptz || ' ' || $1::text, $1::text, $2, $2, $2) ON CONFLICT DO NOTHING";
const REMOVE: &str = "UPDATE nodes SET removed_at = $2 WHERE node = $1";
const HOLDS: &str = rows::held!("$1");
const DELETE_GONE: &str = concat!(
    "DELETE FROM nodes n WHERE removed_at IS NOT NULL AND (",
    rows::held!("n.node"),
    ") = 0 RETURNING node"
);
const FORGET_SHARES: &str = "DELETE FROM shares WHERE what = $1";

#[async_trait]
impl IdentityStore for PostgresStore {
    async fn add_join_token(
        &self,
        trigger: &Trigger,
        token: &NewJoinToken,
    ) -> Result<JoinTokenRecord, StoreError> {
        let deed = self.deed("adding a join token").await?;
        let outcome = add_token(&deed, trigger, token).await;
        self.done(deed, outcome).await
    }

    async fn join_tokens(&self) -> Result<Vec<JoinTokenRecord>, StoreError> {
        rows::all(&Session::once(&self.pool, "listing join tokens", TOKENS, &[]).await?, token)
    }

    async fn revoke_join_token(&self, trigger: &Trigger, id: &str) -> Result<(), StoreError> {
        let deed = self.deed("revoking a join token").await?;
        let outcome = revoke_token(&deed, trigger, id).await;
        self.done(deed, outcome).await
    }

    async fn join_node(&self, join: &Join) -> Result<Timestamp, StoreError> {
        let deed = self.deed("letting a node join").await?;
        let outcome = self::join(&deed, join).await;
        self.done(deed, outcome).await
    }

    async fn renew_node(&self, renewal: &Renewal) -> Result<Timestamp, StoreError> {
        let deed = self.deed("renewing a node's identity").await?;
        let outcome = renew(&deed, renewal).await;
        self.done(deed, outcome).await
    }

    async fn node_identity(&self, digest: &str) -> Result<Option<NodeIdentity>, StoreError> {
        let found = Session::once(&self.pool, "looking a node's identity up", FIND, &[&digest]).await?;
        Ok(rows::all(&found, identity)?.pop().map(|(identity, _)| identity))
    }

    async fn identified_until(&self, node: &NodeId, at: Timestamp) -> Result<Option<Timestamp>, StoreError> {
        let doing = "looking for a node's identity";
        let found = Session::once(&self.pool, doing, UNTIL, &[&node.as_str(), &at]).await?;
        Ok(rows::all(&found, |cells| cells.take())?.pop().flatten())
    }

    async fn revoked_identities(&self, at: Timestamp) -> Result<Vec<String>, StoreError> {
        let doing = "reading which identities are refused";
        rows::all(&Session::once(&self.pool, doing, REVOKED, &[&at]).await?, |cells| cells.take())
    }

    async fn remove_node(&self, trigger: &Trigger, node: &NodeId) -> Result<RemovedNode, StoreError> {
        let deed = self.deed("removing a node").await?;
        let outcome = remove(&deed, trigger, node).await;
        self.done(deed, outcome).await
    }
}

fn token(cells: &mut Cells<'_>) -> Result<JoinTokenRecord, StoreError> {
    Ok(JoinTokenRecord {
        id: cells.take()?,
        node: cells.optional_text()?,
        uses: cells.number()?,
        used: cells.number()?,
        created_at: cells.take()?,
        created_by: cells.take()?,
        expires_at: cells.take()?,
        revoked_at: cells.take()?,
    })
}

/// With the join token that it was given for.
fn identity(cells: &mut Cells<'_>) -> Result<(NodeIdentity, Option<String>), StoreError> {
    let identity = NodeIdentity {
        node: cells.text()?,
        issued_at: cells.take()?,
        expires_at: cells.take()?,
        revoked_at: cells.take()?,
    };
    Ok((identity, cells.take()?))
}

async fn add_token(
    deed: &Deed<'_>,
    trigger: &Trigger,
    new: &NewJoinToken,
) -> Result<JoinTokenRecord, StoreError> {
    let NewJoinToken { id, digest, node, uses, expires_at } = new;
    deed.session.execute(FORGET_TOKENS, &[&long_ago(trigger.at)]).await?;
    let name = node.as_ref().map(NodeId::as_str);
    let uses = i32::try_from(*uses).unwrap_or(i32::MAX);
    let actor = rows::storable(&trigger.actor);
    let made = deed
        .session
        .row(ADD_TOKEN, &[id, digest, &name, &uses, &trigger.at, &actor, expires_at])
        .await?
        .ok_or_else(|| StoreError::Conflict(format!("there is a join token {id} already")))?;
    note(deed, trigger, "join_token_made", id.clone(), node.clone()).await?;
    token(&mut Cells::of(&made))
}

async fn revoke_token(deed: &Deed<'_>, trigger: &Trigger, id: &str) -> Result<(), StoreError> {
    let known = deed.session.row(LOCK_TOKEN, &[&id]).await?;
    let known = known.ok_or_else(|| StoreError::NotFound(format!("there is no join token {id}")))?;
    let known = token(&mut Cells::of(&known))?;
    if known.revoked_at.is_some() {
        return Ok(());
    }
    deed.session.execute(REVOKE_TOKEN, &[&id, &trigger.at]).await?;
    note(deed, trigger, "join_token_revoked", id.to_owned(), known.node).await
}

async fn find(deed: &Deed<'_>, digest: &str) -> Result<Option<(NodeIdentity, Option<String>)>, StoreError> {
    let found = deed.session.row(FIND, &[&digest]).await?;
    found.map(|row| identity(&mut Cells::of(&row))).transpose()
}

/// A single value that may be missing.
async fn instant(
    deed: &Deed<'_>,
    sql: &'static str,
    params: &[&(dyn tokio_postgres::types::ToSql + Sync)],
) -> Result<Option<Timestamp>, StoreError> {
    let row = deed.session.row(sql, params).await?;
    row.map_or(Ok(None), |row| Cells::of(&row).take())
}

async fn join(deed: &Deed<'_>, join: &Join) -> Result<Timestamp, StoreError> {
    let Join { node, digest, at, until, .. } = join;
    let conflict = StoreError::Conflict;
    let name = node.as_str();
    deed.session.execute(LOCK_NODE, &[&name]).await?;
    let shown = deed.session.row(LOCK_SHOWN_TOKEN, &[&join.token]).await?;
    let shown = shown.ok_or_else(|| conflict(unknown_join_token()))?;
    let shown = token(&mut Cells::of(&shown))?;
    match find(deed, digest).await? {
        // Its answer was lost.
        Some((known, Some(by))) if known.node == *node && by == shown.id && known.is_valid(*at) => {
            return Ok(known.expires_at);
        }
        Some(_) => return Err(conflict(digest_in_use())),
        None => {}
    }
    shown.admits(node, *at).map_err(conflict)?;
    let removed = instant(deed, REMOVED_AT, &[&name]).await?;
    if removed.is_some_and(|removed| removed >= shown.created_at) {
        return Err(conflict(removed_since(node)));
    }
    if shown.node.is_none() && instant(deed, UNTIL, &[&name, at]).await?.is_some() {
        return Err(conflict(name_in_use(node)));
    }
    deed.session.execute(USE_TOKEN, &[&shown.id]).await?;
    issue(deed, node, digest, Some(&shown.id), *at, *until).await?;
    let by = Trigger { tenant: TenantId::default_tenant(), actor: format!("node {node}"), at: *at };
    note(deed, &by, "node_joined", shown.id, Some(node.clone())).await?;
    kept(deed, digest).await
}

async fn renew(deed: &Deed<'_>, renewal: &Renewal) -> Result<Timestamp, StoreError> {
    let Renewal { shown, next, at, until } = renewal;
    if let Some((known, _)) = find(deed, shown).await? {
        deed.session.execute(LOCK_NODE, &[&known.node.as_str()]).await?;
    }
    // Again, now that nobody else can change it.
    let shown = find(deed, shown).await?.map(|(identity, _)| identity);
    let Some(valid) = shown.as_ref().filter(|identity| identity.is_valid(*at)) else {
        return Err(StoreError::Conflict(cannot_renew(shown.as_ref())));
    };
    match find(deed, next).await? {
        Some((known, None)) if known.node == valid.node && known.is_valid(*at) => Ok(known.expires_at),
        Some(_) => Err(StoreError::Conflict(digest_in_use())),
        None => {
            issue(deed, &valid.node, next, None, *at, *until).await?;
            kept(deed, next).await
        }
    }
}

async fn issue(
    deed: &Deed<'_>,
    node: &NodeId,
    digest: &str,
    token: Option<&str>,
    at: Timestamp,
    until: Timestamp,
) -> Result<(), StoreError> {
    let name = node.as_str();
    deed.session.execute(FORGET, &[&name, &long_ago(at)]).await?;
    deed.session.execute(ISSUE, &[&digest, &name, &token, &at, &until]).await.map(drop)
}

/// As the database has rounded it.
async fn kept(deed: &Deed<'_>, digest: &str) -> Result<Timestamp, StoreError> {
    let (identity, _) = find(deed, digest).await?.expect("it was put there just now");
    Ok(identity.expires_at)
}

/// What has to be known while a join token may still come, and no longer.
fn long_ago(at: Timestamp) -> Timestamp {
    at.saturating_sub(SignedDuration::try_from(LONGEST_JOIN_TOKEN).expect("a month")).unwrap_or(at)
}

async fn remove(deed: &Deed<'_>, trigger: &Trigger, node: &NodeId) -> Result<RemovedNode, StoreError> {
    let (name, at) = (node.as_str(), trigger.at);
    deed.session.execute(LOCK_NODE, &[&name]).await?;
    let listed = deed.session.row(LISTED, &[&name]).await?.is_some();
    let had_identity = instant(deed, UNTIL, &[&name, &at]).await?.is_some();
    if !listed && !had_identity {
        return Err(StoreError::NotFound(format!("there is no node {node}")));
    }
    deed.session.execute(REVOKE, &[&name, &at]).await?;
    deed.session.execute(MARK, &[&name, &at]).await?;
    deed.session.execute(REMOVE, &[&name, &at]).await?;
    let holds = deed.session.row(HOLDS, &[&name]).await?.expect("an aggregate has one row");
    let holds = Cells::of(&holds).big_number()?;
    for row in deed.session.rows(DELETE_GONE, &[]).await? {
        let gone = Common::Node(Cells::of(&row).text()?).key();
        deed.session.execute(FORGET_SHARES, &[&gone]).await?;
    }
    note(deed, trigger, "node_removed", String::new(), Some(node.clone())).await?;
    deed.limits_changed();
    Ok(RemovedNode { holds, had_identity })
}

async fn note(
    deed: &Deed<'_>,
    by: &Trigger,
    event: &str,
    to: String,
    node: Option<NodeId>,
) -> Result<(), StoreError> {
    deed.trail(by, None, None, AuditEntry { to, node, ..batch::entry(event) }).await
}
