//! The lease record and the words in it.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use uuid::Uuid;

/// What a lease is for: `scheduler/shard-03`, `controller/leader`, or anything a user names.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Scope(Arc<str>);

/// Why a text is no scope.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ScopeError {
    #[error("a scope needs a name, like controller/leader")]
    Empty,
    #[error("a scope has at most 200 bytes, and this one has {0}")]
    TooLong(usize),
    #[error(
        "the scope {scope:?} holds {found:?}: letters, digits and any of - _ . : @ + are allowed, in parts \
         joined by /"
    )]
    Character { scope: String, found: char },
    #[error("the scope {0:?} has an empty part: one / between two names, none at either end")]
    EmptyPart(String),
}

impl Scope {
    pub const LONGEST: usize = 200;

    /// For names that the program itself makes up. What a user has typed goes through [`Scope::parse`].
    pub fn new(name: impl AsRef<str>) -> Self {
        Self(Arc::from(name.as_ref()))
    }

    /// Checks that the name survives in URLs, etcd keys, metrics and shells as it is.
    pub fn parse(name: &str) -> Result<Self, ScopeError> {
        if name.is_empty() {
            return Err(ScopeError::Empty);
        }
        if name.len() > Self::LONGEST {
            return Err(ScopeError::TooLong(name.len()));
        }
        let fits = |c: char| c.is_ascii_alphanumeric() || "-_.:@+/".contains(c);
        if let Some(found) = name.chars().find(|c| !fits(*c)) {
            return Err(ScopeError::Character { scope: name.into(), found });
        }
        if name.split('/').any(str::is_empty) {
            return Err(ScopeError::EmptyPart(name.into()));
        }
        Ok(Self::new(name))
    }

    /// The seat of one member of a component: whoever stands for scopes holds one, so that members are
    /// counted, listed and found dead with the same three verbs as everything else.
    pub fn member(component: &str, member: &str) -> Self {
        // One part, whatever the member calls itself.
        Self::new(format!("{}{}", Self::members_of(component), member.replace('/', "_")))
    }

    /// What the seats of all members of a component begin with.
    pub fn members_of(component: &str) -> String {
        format!("{MEMBERS}{component}/")
    }

    /// Component and name, if this is a member's seat.
    pub fn as_member(&self) -> Option<(&str, &str)> {
        self.0.strip_prefix(MEMBERS)?.rsplit_once('/')
    }

    pub fn as_str(&self) -> &str {
        &self.0
    }
}

/// What all members' seats begin with.
pub const MEMBERS: &str = "members/";

impl fmt::Display for Scope {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl fmt::Debug for Scope {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// The fencing token: grows with every term of a scope, never decreases, is never reused.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Epoch(pub u64);

impl fmt::Display for Epoch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "e{}", self.0)
    }
}

impl fmt::Debug for Epoch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "e{}", self.0)
    }
}

/// One unbroken holding of a lease. Chosen by the candidate, so that asking twice is asking once.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Term(pub Uuid);

impl fmt::Display for Term {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// One life of a holder's process: a crash ends it, and with it everything the process held.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Session(pub Uuid);

impl fmt::Display for Session {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// Who holds a lease. Only the term decides; this is for people, and for finding the holder.
#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Holder {
    /// `host:pid`, or whatever the holder calls itself.
    pub name: String,
    /// Stable across restarts of one installation (its data folder), where there is one.
    pub instance: String,
    /// Fresh for every start of the process.
    pub session: Session,
    /// Where others reach it.
    pub address: Option<String>,
}

/// By hand for the sake of `clone_from`, which allocates nothing where one record follows another of the same holder.
impl Clone for Holder {
    fn clone(&self) -> Self {
        let Self { name, instance, session, address } = self;
        let (name, instance, address) = (name.clone(), instance.clone(), address.clone());
        Self { name, instance, session: *session, address }
    }

    fn clone_from(&mut self, source: &Self) {
        let Self { name, instance, session, address } = self;
        name.clone_from(&source.name);
        instance.clone_from(&source.instance);
        *session = source.session;
        address.clone_from(&source.address);
    }
}

impl fmt::Display for Holder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.name)
    }
}

/// How a term came to succeed the one before.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Succession {
    /// Nobody had held it, as far as the store remembers.
    First,
    /// It was given back.
    Released,
    /// It had run out.
    Expired,
    /// The holder was known to be dead.
    Crashed,
    /// The store's clock said it was held, yet nobody had renewed it for longer than it lasts.
    Stalled,
}

impl Succession {
    pub const ALL: [Self; 5] = [Self::First, Self::Released, Self::Expired, Self::Crashed, Self::Stalled];

    pub fn as_str(self) -> &'static str {
        match self {
            Self::First => "first",
            Self::Released => "released",
            Self::Expired => "expired",
            Self::Crashed => "crashed",
            Self::Stalled => "stalled",
        }
    }

    pub fn parse(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|known| known.as_str() == name)
    }
}

impl fmt::Display for Succession {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// A lease as its store knows it.
#[derive(Debug, PartialEq, Serialize, Deserialize)]
pub struct LeaseRecord {
    pub scope: Scope,
    /// The latest holder; `released` or `remaining == 0` says that it holds no longer.
    pub holder: Holder,
    pub term: Term,
    pub epoch: Epoch,
    pub duration: Duration,
    pub acquired_at: Timestamp,
    pub renewed_at: Timestamp,
    pub released: bool,
    /// Until it expires, on the store's clock at the moment of reading. Zero when released.
    pub remaining: Duration,
    /// Grows with every change of this record.
    pub resource_version: u64,
    /// How often the holder has changed.
    pub transitions: u64,
    /// How this term succeeded the one before.
    pub succession: Succession,
    /// The holder's free-form note.
    pub note: String,
}

/// By hand for the sake of `clone_from`: every renewal of every lease is written over what was known of it before.
impl Clone for LeaseRecord {
    fn clone(&self) -> Self {
        let (scope, holder, note) = (self.scope.clone(), self.holder.clone(), self.note.clone());
        Self { scope, holder, note, ..*self }
    }

    fn clone_from(&mut self, source: &Self) {
        let Self {
            scope,
            holder,
            term,
            epoch,
            duration,
            acquired_at,
            renewed_at,
            released,
            remaining,
            resource_version,
            transitions,
            succession,
            note,
        } = self;
        scope.clone_from(&source.scope);
        holder.clone_from(&source.holder);
        (*term, *epoch, *duration) = (source.term, source.epoch, source.duration);
        (*acquired_at, *renewed_at) = (source.acquired_at, source.renewed_at);
        (*released, *remaining) = (source.released, source.remaining);
        (*resource_version, *transitions) = (source.resource_version, source.transitions);
        *succession = source.succession;
        note.clone_from(&source.note);
    }
}

impl LeaseRecord {
    /// Somebody holds it at the moment of reading.
    pub fn is_held(&self) -> bool {
        !self.released && !self.remaining.is_zero()
    }
}

/// One line of a scope's history: a term, from its beginning to its end if that is known.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct PastTerm {
    pub scope: Scope,
    pub epoch: Epoch,
    pub term: Term,
    pub holder: Holder,
    pub acquired_at: Timestamp,
    pub succession: Succession,
    pub note: String,
    /// When it was given back, had run out, or was taken away. `None`: not that the store knows.
    pub ended_at: Option<Timestamp>,
    /// What the successor found; `Released` as soon as it is given back.
    pub end: Option<Succession>,
}
