//! Join tokens and the identities of nodes.

use async_trait::async_trait;
use jiff::Timestamp;
use tenure_model::{NodeId, TenantId};
use tenure_store::{
    Common, IdentityStore, Join, JoinTokenRecord, LONGEST_JOIN_TOKEN, NewJoinToken, NodeIdentity,
    RemovedNode, Renewal, StoreError, Trigger, cannot_renew, digest_in_use, name_in_use, removed_since,
    unknown_join_token,
};

use crate::MemoryStore;
use crate::limits::{self, back};
use crate::tables::{Credential, Tables, TokenRow};
use crate::trail::By;

#[async_trait]
impl IdentityStore for MemoryStore {
    async fn add_join_token(
        &self,
        trigger: &Trigger,
        token: &NewJoinToken,
    ) -> Result<JoinTokenRecord, StoreError> {
        self.write(|tables| add_token(tables, trigger, token))
    }

    async fn join_tokens(&self) -> Result<Vec<JoinTokenRecord>, StoreError> {
        let mut listed: Vec<_> =
            self.read(|tables| tables.tokens.values().map(|row| row.record.clone()).collect());
        listed.sort_by(|a: &JoinTokenRecord, b| b.created_at.cmp(&a.created_at).then(a.id.cmp(&b.id)));
        Ok(listed)
    }

    async fn revoke_join_token(&self, trigger: &Trigger, id: &str) -> Result<(), StoreError> {
        self.write(|tables| {
            let missing = || StoreError::NotFound(format!("there is no join token {id}"));
            let known = &mut tables.tokens.get_mut(id).ok_or_else(missing)?.record;
            if known.revoked_at.is_none() {
                known.revoked_at = Some(trigger.at);
                let node = known.node.clone();
                tables.note(By::user(trigger), "join_token_revoked", id.to_owned(), node);
            }
            Ok(())
        })
    }

    async fn join_node(&self, join: &Join) -> Result<Timestamp, StoreError> {
        self.write(|tables| self::join(tables, join))
    }

    async fn renew_node(&self, renewal: &Renewal) -> Result<Timestamp, StoreError> {
        self.write(|tables| renew(tables, renewal))
    }

    async fn node_identity(&self, digest: &str) -> Result<Option<NodeIdentity>, StoreError> {
        Ok(self.read(|tables| tables.credentials.get(digest).map(|known| known.identity.clone())))
    }

    async fn identified_until(&self, node: &NodeId, at: Timestamp) -> Result<Option<Timestamp>, StoreError> {
        Ok(self.read(|tables| until(tables, node, at)))
    }

    async fn revoked_identities(&self, at: Timestamp) -> Result<Vec<String>, StoreError> {
        let refused =
            |known: &Credential| known.identity.revoked_at.is_some() && known.identity.expires_at > at;
        Ok(self.read(|tables| {
            let listed = tables.credentials.iter().filter(|(_, known)| refused(known));
            listed.map(|(digest, _)| digest.clone()).collect()
        }))
    }

    async fn remove_node(&self, trigger: &Trigger, node: &NodeId) -> Result<RemovedNode, StoreError> {
        self.write(|tables| remove(tables, trigger, node))
    }
}

fn add_token(
    tables: &mut Tables,
    trigger: &Trigger,
    new: &NewJoinToken,
) -> Result<JoinTokenRecord, StoreError> {
    let NewJoinToken { id, digest, node, uses, expires_at } = new.clone();
    let long_ago = back(trigger.at, LONGEST_JOIN_TOKEN);
    tables.tokens.retain(|_, row| row.record.expires_at >= long_ago);
    if tables.tokens.values().any(|row| row.record.id == id || row.digest == digest) {
        return Err(StoreError::Conflict(format!("there is a join token {id} already")));
    }
    let record = JoinTokenRecord {
        id: id.clone(),
        node: node.clone(),
        uses,
        used: 0,
        created_at: trigger.at,
        created_by: trigger.actor.clone(),
        expires_at,
        revoked_at: None,
    };
    tables.tokens.insert(id.clone(), TokenRow { digest, record: record.clone() });
    tables.note(By::user(trigger), "join_token_made", id, node);
    Ok(record)
}

fn until(tables: &Tables, node: &NodeId, at: Timestamp) -> Option<Timestamp> {
    let valid = identities(tables, node).filter(|identity| identity.is_valid(at));
    valid.map(|identity| identity.expires_at).max()
}

fn identities<'a>(tables: &'a Tables, node: &'a NodeId) -> impl Iterator<Item = &'a NodeIdentity> {
    tables.credentials.values().map(|known| &known.identity).filter(move |identity| identity.node == *node)
}

fn join(tables: &mut Tables, join: &Join) -> Result<Timestamp, StoreError> {
    let Join { token, node, digest, at, until: end } = join;
    let shown = tables.tokens.values().find(|row| row.digest == *token).map(|row| row.record.clone());
    let shown = shown.ok_or_else(|| StoreError::Conflict(unknown_join_token()))?;
    if let Some(Credential { identity, token }) = tables.credentials.get(digest) {
        let repeated = identity.node == *node && token.as_ref() == Some(&shown.id) && identity.is_valid(*at);
        return match repeated {
            true => Ok(identity.expires_at), // its answer was lost
            false => Err(StoreError::Conflict(digest_in_use())),
        };
    }
    shown.admits(node, *at).map_err(StoreError::Conflict)?;
    let removed = identities(tables, node).filter_map(|identity| identity.revoked_at).max();
    if removed.is_some_and(|removed| removed >= shown.created_at) {
        return Err(StoreError::Conflict(removed_since(node)));
    }
    if shown.node.is_none() && until(tables, node, *at).is_some() {
        return Err(StoreError::Conflict(name_in_use(node)));
    }
    tables.tokens.get_mut(&shown.id).expect("found just now").record.used += 1;
    issue(tables, node, digest, Some(shown.id.clone()), *at, *end);
    let (tenant, actor) = (TenantId::default_tenant(), format!("node {node}"));
    let by = By { tenant: &tenant, actor: &actor, at: *at, authority: None };
    tables.note(by, "node_joined", shown.id, Some(node.clone()));
    Ok(*end)
}

fn renew(tables: &mut Tables, renewal: &Renewal) -> Result<Timestamp, StoreError> {
    let Renewal { shown, next, at, until } = renewal;
    let shown = tables.credentials.get(shown).map(|known| &known.identity);
    let Some(valid) = shown.filter(|identity| identity.is_valid(*at)) else {
        return Err(StoreError::Conflict(cannot_renew(shown)));
    };
    match tables.credentials.get(next) {
        Some(Credential { identity, token: None })
            if identity.node == valid.node && identity.is_valid(*at) =>
        {
            Ok(identity.expires_at)
        }
        Some(_) => Err(StoreError::Conflict(digest_in_use())),
        None => {
            let node = valid.node.clone();
            issue(tables, &node, next, None, *at, *until);
            Ok(*until)
        }
    }
}

fn issue(
    tables: &mut Tables,
    node: &NodeId,
    digest: &str,
    token: Option<String>,
    at: Timestamp,
    until: Timestamp,
) {
    let long_ago = back(at, LONGEST_JOIN_TOKEN);
    let needed = |identity: &NodeIdentity| {
        identity.node != *node
            || identity.expires_at >= long_ago
            || identity.revoked_at.is_some_and(|revoked| revoked >= long_ago)
    };
    tables.credentials.retain(|_, known| needed(&known.identity));
    let identity = NodeIdentity { node: node.clone(), issued_at: at, expires_at: until, revoked_at: None };
    tables.credentials.insert(digest.to_owned(), Credential { identity, token });
}

fn remove(tables: &mut Tables, trigger: &Trigger, node: &NodeId) -> Result<RemovedNode, StoreError> {
    let at = trigger.at;
    let listed = tables.nodes.get(node).is_some_and(|record| !record.removed);
    let had_identity = until(tables, node, at).is_some();
    if !listed && !had_identity {
        return Err(StoreError::NotFound(format!("there is no node {node}")));
    }
    for known in tables.credentials.values_mut().filter(|known| known.identity.node == *node) {
        known.identity.revoked_at.get_or_insert(at);
    }
    // Whatever it had: a row that says when it was removed, for join tokens from before.
    let identity = NodeIdentity { node: node.clone(), issued_at: at, expires_at: at, revoked_at: Some(at) };
    tables.credentials.insert(format!("removed {at} {node}"), Credential { identity, token: None });
    tables.nodes.entry(node.clone()).and_modify(|record| record.removed = true);
    let holds = limits::held(tables, node);
    let removed = tables.nodes.values().filter(|record| record.removed).map(|record| record.node.clone());
    let gone: Vec<NodeId> = removed.filter(|node| limits::held(tables, node) == 0).collect();
    for node in gone {
        tables.nodes.remove(&node);
        tables.shares.remove(&Common::Node(node).key());
    }
    tables.note(By::user(trigger), "node_removed", String::new(), Some(node.clone()));
    tables.limits_changed();
    Ok(RemovedNode { holds, had_identity })
}
