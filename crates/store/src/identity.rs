//! Who may be a node: tokens that let machines join, and the identities that they get for them.
//!
//! The store knows digests only; what opens a door is known to those who show it. An agent makes the secret of its
//! identity itself and sends the digest, so that whatever is lost on the way can be sent again.

use std::time::Duration;

use async_trait::async_trait;
use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use tenure_model::NodeId;

use crate::{StoreError, Trigger};

/// No join token lives longer. What is known of revoked identities is kept for as long, so that a token from before a
/// node's removal never lets that node in again.
pub const LONGEST_JOIN_TOKEN: Duration = Duration::from_secs(30 * 86_400);

#[async_trait]
pub trait IdentityStore: Send + Sync {
    async fn add_join_token(
        &self,
        trigger: &Trigger,
        token: &NewJoinToken,
    ) -> Result<JoinTokenRecord, StoreError>;

    /// The newest first. Those that ran out long ago are forgotten.
    async fn join_tokens(&self) -> Result<Vec<JoinTokenRecord>, StoreError>;

    /// It lets nobody in any more; identities that it has given stay.
    async fn revoke_join_token(&self, trigger: &Trigger, id: &str) -> Result<(), StoreError>;

    /// An identity for a node, for one use of a join token. The same request again changes nothing. A refusal is a
    /// conflict whose text is for users. Answers with when the identity ends.
    async fn join_node(&self, join: &Join) -> Result<Timestamp, StoreError>;

    /// Another identity for the node that shows a valid one, which stays valid until its own end. Repeating it, and
    /// being refused, are as with joining.
    async fn renew_node(&self, renewal: &Renewal) -> Result<Timestamp, StoreError>;

    /// Whose identity it is, valid or not; `None`: nobody's.
    async fn node_identity(&self, digest: &str) -> Result<Option<NodeIdentity>, StoreError>;

    /// When the last valid identity of a node ends; `None`: it has none.
    async fn identified_until(&self, node: &NodeId, at: Timestamp) -> Result<Option<Timestamp>, StoreError>;

    /// The digests of identities that are refused though their time has not run out: a short list, for every replica to
    /// look at often.
    async fn revoked_identities(&self, at: Timestamp) -> Result<Vec<String>, StoreError>;

    /// Refuses all identities of the node from now on. Its record goes as soon as it holds nothing, and gets no work
    /// until then.
    async fn remove_node(&self, trigger: &Trigger, node: &NodeId) -> Result<RemovedNode, StoreError>;
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NewJoinToken {
    /// What people call it by.
    pub id: String,
    pub digest: String,
    /// Only the node of this name may use it.
    pub node: Option<NodeId>,
    pub uses: u32,
    pub expires_at: Timestamp,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct JoinTokenRecord {
    pub id: String,
    pub node: Option<NodeId>,
    pub uses: u32,
    pub used: u32,
    pub created_at: Timestamp,
    pub created_by: String,
    pub expires_at: Timestamp,
    pub revoked_at: Option<Timestamp>,
}

impl JoinTokenRecord {
    /// Why it does not let this node in; `Ok` if it does. Whether the name is free is another question.
    pub fn admits(&self, node: &NodeId, at: Timestamp) -> Result<(), String> {
        let Self { id, uses, .. } = self;
        if self.revoked_at.is_some() {
            return Err(format!("join token {id} was revoked: {ANOTHER}"));
        }
        if self.expires_at <= at {
            return Err(format!("join token {id} has expired: {ANOTHER}"));
        }
        if let Some(own) = self.node.as_ref().filter(|own| *own != node) {
            return Err(format!(
                "join token {id} is for node {own}, and this is {node}: start the agent with --name {own}, or make a \
                 token with \"tenure node token --name {node}\""
            ));
        }
        if self.used >= *uses {
            let times = if *uses == 1 { "once".into() } else { format!("{uses} times") };
            return Err(format!("join token {id} has been used {times}, as often as it may be: {ANOTHER}"));
        }
        Ok(())
    }
}

const ANOTHER: &str = "make another one with \"tenure node token\"";

/// Why a join is refused, for users: the same words from every store.
pub fn unknown_join_token() -> String {
    format!("this join token is not known here: {ANOTHER}")
}

pub fn removed_since(node: &NodeId) -> String {
    format!("node {node} was removed after this join token was made: {ANOTHER}")
}

pub fn name_in_use(node: &NodeId) -> String {
    format!(
        "there is a node {node} with an identity of its own: choose another name (--name), or make a token for this \
         one with \"tenure node token --name {node}\""
    )
}

pub fn digest_in_use() -> String {
    "this secret is that of another identity: make a new one".into()
}

pub fn cannot_renew(identity: Option<&NodeIdentity>) -> String {
    match identity {
        Some(NodeIdentity { node, revoked_at: Some(_), .. }) => {
            format!("node {node} was removed: its identity is not renewed")
        }
        Some(NodeIdentity { node, .. }) => format!("the identity of node {node} has expired: join again"),
        None => "this identity is not known here: join again".into(),
    }
}

/// What an agent without an identity asks for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Join {
    /// Of the join token.
    pub token: String,
    pub node: NodeId,
    /// Of the identity's secret, which the agent keeps to itself.
    pub digest: String,
    pub at: Timestamp,
    pub until: Timestamp,
}

/// What an agent asks for while its identity is valid.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Renewal {
    /// Of the identity that is shown.
    pub shown: String,
    /// Of the next one's secret.
    pub next: String,
    pub at: Timestamp,
    pub until: Timestamp,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NodeIdentity {
    pub node: NodeId,
    pub issued_at: Timestamp,
    pub expires_at: Timestamp,
    pub revoked_at: Option<Timestamp>,
}

impl NodeIdentity {
    pub fn is_valid(&self, at: Timestamp) -> bool {
        self.revoked_at.is_none() && self.expires_at > at
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RemovedNode {
    /// Tasks that were still bound to it; its record stays until they have ended.
    pub holds: u64,
    /// It had an identity, which is refused from now on. Otherwise its agent used a token of the API.
    pub had_identity: bool,
}
