//! Join tokens and the identities of nodes.

use async_trait::async_trait;
use jiff::{SignedDuration, Timestamp};
use rusqlite::{Connection, params};
use tenure_model::{NodeId, TenantId};
use tenure_store::{
    AuditEntry, Common, IdentityStore, Join, JoinTokenRecord, LONGEST_JOIN_TOKEN, NewJoinToken, NodeIdentity,
    RemovedNode, Renewal, StoreError, Trigger, cannot_renew, digest_in_use, name_in_use, removed_since,
    unknown_join_token,
};

use crate::errors::Fail;
use crate::rows::{At, Cells, all, kept, one};
use crate::trail::{self, By};
use crate::writer::Tx;
use crate::{Office, SqliteStore, limits};

macro_rules! tokens {
    () => {
        "SELECT id, node, uses, used, created_at, created_by, expires_at, revoked_at FROM join_tokens"
    };
}

/// Tasks that are bound to a node.
macro_rules! held {
    ($node:literal) => {
        concat!(
            "SELECT count(*) FROM runs r JOIN task_instances t ON t.run = r.key
             WHERE r.state IN ('queued', 'running') AND t.node = ",
            $node,
            " AND t.state IN ('queued', 'running', 'restarting')"
        )
    };
}
pub(crate) use held;

#[async_trait]
impl IdentityStore for SqliteStore {
    async fn add_join_token(
        &self,
        trigger: &Trigger,
        token: &NewJoinToken,
    ) -> Result<JoinTokenRecord, StoreError> {
        let (trigger, token) = (trigger.clone(), token.clone());
        self.write("adding a join token", move |tx, _| add_token(tx, &trigger, &token)).await
    }

    async fn join_tokens(&self) -> Result<Vec<JoinTokenRecord>, StoreError> {
        self.read("listing join tokens", |conn, _| {
            all(&mut conn.prepare_cached(concat!(tokens!(), " ORDER BY created_at DESC, id"))?, [], token)
        })
        .await
    }

    async fn revoke_join_token(&self, trigger: &Trigger, id: &str) -> Result<(), StoreError> {
        let (trigger, id) = (trigger.clone(), id.to_owned());
        self.write("revoking a join token", move |tx, _| revoke_token(tx, &trigger, &id)).await
    }

    async fn join_node(&self, join: &Join) -> Result<Timestamp, StoreError> {
        let join = join.clone();
        self.write("letting a node join", move |tx, _| self::join(tx, &join)).await
    }

    async fn renew_node(&self, renewal: &Renewal) -> Result<Timestamp, StoreError> {
        let renewal = renewal.clone();
        self.write("renewing a node's identity", move |tx, _| renew(tx, &renewal)).await
    }

    async fn node_identity(&self, digest: &str) -> Result<Option<NodeIdentity>, StoreError> {
        let digest = digest.to_owned();
        let doing = "looking a node's identity up";
        let found = self.read(doing, move |conn, _| find(conn, &digest)).await?;
        Ok(found.map(|(identity, _)| identity))
    }

    async fn identified_until(&self, node: &NodeId, at: Timestamp) -> Result<Option<Timestamp>, StoreError> {
        let node = node.clone();
        self.read("looking for a node's identity", move |conn, _| until(conn, &node, at)).await
    }

    async fn revoked_identities(&self, at: Timestamp) -> Result<Vec<String>, StoreError> {
        self.read("reading which identities are refused", move |conn, _| {
            let mut select = conn.prepare_cached(
                "SELECT digest FROM node_credentials WHERE revoked_at IS NOT NULL AND expires_at > ?1 ORDER BY digest",
            )?;
            all(&mut select, [At(at)], |cells| cells.take())
        })
        .await
    }

    async fn remove_node(&self, trigger: &Trigger, node: &NodeId) -> Result<RemovedNode, StoreError> {
        let (trigger, node) = (Trigger { at: kept(trigger.at), ..trigger.clone() }, node.clone());
        self.write("removing a node", move |tx, office| remove(tx, office, &trigger, &node)).await
    }
}

fn token(cells: &mut Cells<'_>) -> Result<JoinTokenRecord, Fail> {
    Ok(JoinTokenRecord {
        id: cells.take()?,
        node: cells.optional_text()?,
        uses: cells.take()?,
        used: cells.take()?,
        created_at: cells.instant()?,
        created_by: cells.take()?,
        expires_at: cells.instant()?,
        revoked_at: cells.optional_instant()?,
    })
}

fn add_token(tx: &Tx<'_>, trigger: &Trigger, new: &NewJoinToken) -> Result<JoinTokenRecord, Fail> {
    let NewJoinToken { id, digest, node, uses, expires_at } = new;
    tx.prepare_cached("DELETE FROM join_tokens WHERE expires_at < ?1")?
        .execute([At(long_ago(trigger.at))])?;
    let mut insert = tx.prepare_cached(
        "INSERT INTO join_tokens (id, digest, node, uses, used, created_at, created_by, expires_at)
         VALUES (?1, ?2, ?3, ?4, 0, ?5, ?6, ?7) ON CONFLICT DO NOTHING",
    )?;
    let name = node.as_ref().map(NodeId::as_str);
    let made =
        insert.execute(params![id, digest, name, uses, At(trigger.at), trigger.actor, At(*expires_at)])?;
    if made == 0 {
        return Err(Fail::conflict(format!("there is a join token {id} already")));
    }
    note(tx, By::user(trigger), "join_token_made", id.clone(), node.clone())?;
    let mut select = tx.prepare_cached(concat!(tokens!(), " WHERE id = ?1"))?;
    Ok(one(&mut select, [id], token)?.expect("it was put there just now"))
}

fn revoke_token(tx: &Tx<'_>, trigger: &Trigger, id: &str) -> Result<(), Fail> {
    let mut select = tx.prepare_cached(concat!(tokens!(), " WHERE id = ?1"))?;
    let Some(known) = one(&mut select, [id], token)? else {
        return Err(Fail::not_found(format!("there is no join token {id}")));
    };
    if known.revoked_at.is_some() {
        return Ok(());
    }
    let mut revoke = tx.prepare_cached("UPDATE join_tokens SET revoked_at = ?2 WHERE id = ?1")?;
    revoke.execute(params![id, At(trigger.at)])?;
    note(tx, By::user(trigger), "join_token_revoked", id.to_owned(), known.node)
}

/// The identity, and the join token that it was given for.
fn find(conn: &Connection, digest: &str) -> Result<Option<(NodeIdentity, Option<String>)>, Fail> {
    let mut select = conn.prepare_cached(
        "SELECT node, issued_at, expires_at, revoked_at, token FROM node_credentials WHERE digest = ?1",
    )?;
    one(&mut select, [digest], |cells| {
        let identity = NodeIdentity {
            node: cells.text()?,
            issued_at: cells.instant()?,
            expires_at: cells.instant()?,
            revoked_at: cells.optional_instant()?,
        };
        Ok((identity, cells.take()?))
    })
}

fn until(conn: &Connection, node: &NodeId, at: Timestamp) -> Result<Option<Timestamp>, Fail> {
    let mut select = conn.prepare_cached(
        "SELECT max(expires_at) FROM node_credentials WHERE node = ?1 AND revoked_at IS NULL AND expires_at > ?2",
    )?;
    let until = one(&mut select, params![node.as_str(), At(at)], |cells| cells.optional_instant())?;
    Ok(until.flatten())
}

fn join(tx: &Tx<'_>, join: &Join) -> Result<Timestamp, Fail> {
    let Join { node, digest, at, .. } = join;
    let mut select = tx.prepare_cached(concat!(tokens!(), " WHERE digest = ?1"))?;
    let Some(shown) = one(&mut select, [&join.token], token)? else {
        return Err(Fail::conflict(unknown_join_token()));
    };
    match find(tx, digest)? {
        // Its answer was lost.
        Some((known, Some(by))) if known.node == *node && by == shown.id && known.is_valid(*at) => {
            return Ok(known.expires_at);
        }
        Some(_) => return Err(Fail::conflict(digest_in_use())),
        None => {}
    }
    shown.admits(node, *at).map_err(Fail::conflict)?;
    let mut removed = tx.prepare_cached("SELECT max(revoked_at) FROM node_credentials WHERE node = ?1")?;
    let removed = one(&mut removed, [node.as_str()], |cells| cells.optional_instant())?.flatten();
    if removed.is_some_and(|removed| removed >= shown.created_at) {
        return Err(Fail::conflict(removed_since(node)));
    }
    if shown.node.is_none() && until(tx, node, *at)?.is_some() {
        return Err(Fail::conflict(name_in_use(node)));
    }
    tx.prepare_cached("UPDATE join_tokens SET used = used + 1 WHERE id = ?1")?.execute([&shown.id])?;
    issue(tx, node, digest, Some(&shown.id), *at, join.until)?;
    let (tenant, actor) = (TenantId::default_tenant(), format!("node {node}"));
    let by = By { tenant: &tenant, actor: &actor, at: *at, authority: None };
    note(tx, by, "node_joined", shown.id, Some(node.clone()))?;
    Ok(kept(join.until))
}

fn renew(tx: &Tx<'_>, renewal: &Renewal) -> Result<Timestamp, Fail> {
    let Renewal { shown, next, at, until } = renewal;
    let shown = find(tx, shown)?.map(|(identity, _)| identity);
    let Some(valid) = shown.as_ref().filter(|identity| identity.is_valid(*at)) else {
        return Err(Fail::conflict(cannot_renew(shown.as_ref())));
    };
    match find(tx, next)? {
        Some((known, None)) if known.node == valid.node && known.is_valid(*at) => Ok(known.expires_at),
        Some(_) => Err(Fail::conflict(digest_in_use())),
        None => {
            issue(tx, &valid.node, next, None, *at, *until)?;
            Ok(kept(*until))
        }
    }
}

fn issue(
    tx: &Tx<'_>,
    node: &NodeId,
    digest: &str,
    token: Option<&str>,
    at: Timestamp,
    until: Timestamp,
) -> Result<(), Fail> {
    let mut forget = tx.prepare_cached(
        "DELETE FROM node_credentials WHERE node = ?1 AND expires_at < ?2 AND coalesce(revoked_at, 0) < ?2",
    )?;
    forget.execute(params![node.as_str(), At(long_ago(at))])?;
    let mut insert = tx.prepare_cached(
        "INSERT INTO node_credentials (digest, node, token, issued_at, expires_at) VALUES (?1, ?2, ?3, ?4, ?5)",
    )?;
    insert.execute(params![digest, node.as_str(), token, At(at), At(until)])?;
    Ok(())
}

/// What has to be known while a join token may still come, and no longer.
fn long_ago(at: Timestamp) -> Timestamp {
    at.saturating_sub(SignedDuration::try_from(LONGEST_JOIN_TOKEN).expect("a month"))
        .unwrap_or(Timestamp::MIN)
}

fn remove(tx: &Tx<'_>, office: &Office, trigger: &Trigger, node: &NodeId) -> Result<RemovedNode, Fail> {
    let (name, at) = (node.as_str(), At(trigger.at));
    let mut select =
        tx.prepare_cached("SELECT count(*) FROM nodes WHERE node = ?1 AND removed_at IS NULL")?;
    let listed = one(&mut select, [name], |cells| cells.take::<i64>())? == Some(1);
    let had_identity = until(tx, node, trigger.at)?.is_some();
    if !listed && !had_identity {
        return Err(Fail::not_found(format!("there is no node {node}")));
    }
    tx.prepare_cached("UPDATE node_credentials SET revoked_at = ?2 WHERE node = ?1 AND revoked_at IS NULL")?
        .execute(params![name, at])?;
    // Whatever it had: a row that says when it was removed, for join tokens from before.
    tx.prepare_cached(
        "INSERT INTO node_credentials (digest, node, issued_at, expires_at, revoked_at)
         VALUES ('removed ' || ?2 || ' ' || ?1, ?1, ?2, ?2, ?2) ON CONFLICT DO NOTHING",
    )?
    .execute(params![name, at])?;
    tx.prepare_cached("UPDATE nodes SET removed_at = ?2 WHERE node = ?1")?.execute(params![name, at])?;
    let holds = one(&mut tx.prepare_cached(held!("?1"))?, [name], |cells| cells.take::<i64>())?;
    let mut gone = tx.prepare_cached(concat!(
        "DELETE FROM nodes WHERE removed_at IS NOT NULL AND (",
        held!("nodes.node"),
        ") = 0 RETURNING node"
    ))?;
    for gone in all(&mut gone, [], |cells| cells.text::<NodeId>())? {
        tx.prepare_cached("DELETE FROM shares WHERE what = ?1")?.execute([Common::Node(gone).key()])?;
    }
    note(tx, By::user(trigger), "node_removed", String::new(), Some(node.clone()))?;
    limits::next_version(tx, office)?;
    Ok(RemovedNode { holds: holds.unwrap_or(0) as u64, had_identity })
}

fn note(tx: &Tx<'_>, by: By<'_>, event: &str, to: String, node: Option<NodeId>) -> Result<(), Fail> {
    trail::audit(tx, by, None, None, &[AuditEntry { node, ..trail::entry(event, "", to) }])
}
