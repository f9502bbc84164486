//! Everything that the model keeps in mind: one database, the replicas, the nodes, and what is on its way between them.
//!
//! The network has no queue of its own. What an agent has said follows from how far its attempt is, so a report can
//! arrive at any later moment, any number of times, or never; calls and answers of a replica are a slot each.

/// Which holding of the lease. 0: none.
pub type Term = u8;
/// The fencing token. 0: none yet.
pub type Epoch = u8;
/// 1, 2, …: in the order in which they are bound.
pub type Attempt = u8;
pub type NodeNo = u8;

pub const MOST_REPLICAS: usize = 3;
pub const NODES: usize = 2;
pub const MOST_ATTEMPTS: usize = 3;

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct State {
    pub db: Db,
    pub replicas: [Replica; MOST_REPLICAS],
    pub nodes: [Node; NODES],
    /// Answers that say «you may start», on their way; one bit for each attempt.
    pub granted: u8,
    pub trouble: Trouble,
    pub ghosts: Ghosts,
}

/// The database, and the lease store where that is another one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Db {
    pub lease: Lease,
    pub fence: Fence,
    /// How many terms have begun.
    pub terms: u8,
    /// Lease and fence as they were before the last write, if that was an acquire: a failover can lose it.
    pub before: Option<(Lease, Fence)>,
    pub task: Task,
    /// The latest attempt: a bound task has this one.
    pub attempt: Attempt,
    /// Where each attempt was bound to, and under which epoch.
    pub homes: [NodeNo; MOST_ATTEMPTS],
    pub bound_under: [Epoch; MOST_ATTEMPTS],
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Lease {
    pub on_record: bool,
    pub term: Term,
    pub epoch: Epoch,
    /// Neither released nor run out.
    pub held: bool,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Fence {
    pub epoch: Epoch,
    pub term: Term,
}

/// `up_for_retry` is `Scheduled` here: time does nothing else with it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Task {
    Scheduled,
    Queued,
    Running,
    Success,
    Failed,
}

impl Task {
    pub fn is_terminal(self) -> bool {
        matches!(self, Self::Success | Self::Failed)
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Replica {
    pub seat: Seat,
    /// The call about the lease that is on its way, or its answer.
    pub call: Call,
    /// The scheduling transaction on its way. It outlives the authority under which it was begun.
    pub write: Option<Write>,
}

impl Replica {
    pub const NEW: Self = Self { seat: Seat::Follows, call: Call::None, write: None };

    /// Sits or writes under this epoch, or has an answer or a release on its way that names it.
    pub fn has(&self, epoch: Epoch) -> bool {
        let sits = match self.seat {
            Seat::Follows | Seat::Installs { .. } => false,
            Seat::Confirms { epoch: its, .. } | Seat::Leads { epoch: its, .. } => its == epoch,
        };
        let calls = match self.call {
            Call::None | Call::Acquire { .. } | Call::Install { .. } => false,
            Call::Acquired { epoch: its, .. }
            | Call::Installed { epoch: its, .. }
            | Call::Confirm { epoch: its, .. }
            | Call::Confirmed { epoch: its, .. }
            | Call::Release { epoch: its, .. } => its == epoch,
        };
        sits || calls || self.write.is_some_and(|write| write.epoch == epoch)
    }
}

/// What a process believes. It may have been frozen since it had reason to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Seat {
    Follows,
    /// Has won a lease that is kept apart from the state, and installs its fence.
    Installs {
        term: Term,
    },
    /// Makes sure that the lease still lives, now that the fence is up.
    Confirms {
        term: Term,
        epoch: Epoch,
    },
    Leads {
        term: Term,
        epoch: Epoch,
    },
}

impl Seat {
    pub fn term(self) -> Option<Term> {
        match self {
            Self::Follows => None,
            Self::Installs { term } | Self::Confirms { term, .. } | Self::Leads { term, .. } => Some(term),
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Call {
    None,
    /// On its way for the first time (`term` 0), or again with the same term because the answer was lost.
    Acquire {
        term: Term,
    },
    /// The answer. `aged`: the lease has run out since.
    Acquired {
        term: Term,
        epoch: Epoch,
        aged: bool,
    },
    Install {
        term: Term,
        floor: Epoch,
    },
    Installed {
        term: Term,
        epoch: Epoch,
    },
    Confirm {
        term: Term,
        epoch: Epoch,
    },
    Confirmed {
        term: Term,
        epoch: Epoch,
        aged: bool,
    },
    Release {
        term: Term,
        epoch: Epoch,
    },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Write {
    pub term: Term,
    pub epoch: Epoch,
    pub deed: Deed,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Deed {
    Bind { node: NodeNo },
    Withdraw { attempt: Attempt },
    Reap { attempt: Attempt },
    Claim { attempt: Attempt },
    End { attempt: Attempt, outcome: Outcome },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Node {
    /// Has heard nothing for so long that it has fenced itself.
    pub cut_off: bool,
    /// The highest epoch whose orders it has taken; on its disk.
    pub seen: Epoch,
    pub lives: [Life; MOST_ATTEMPTS],
}

/// An attempt on a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Life {
    Unknown,
    /// Ordered; asks whether it may start, again and again.
    Claiming,
    Running,
    /// Says how it ended, again and again.
    Ended(Outcome),
    /// Was told that nobody wants it.
    Refused,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Outcome {
    Success,
    Failed,
    NeverStarted,
}

/// What the lease store or somebody's hands did that no lease allows for. One of them in a history, or several in a
/// large exploration.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Trouble {
    /// A living holder was said to be dead, and lost its lease.
    pub hinted: bool,
    /// Somebody deleted the lease.
    pub deleted: bool,
    /// A failover of the database lost the latest acquire.
    pub forgot: bool,
}

impl Trouble {
    pub const NONE: Self = Self { hinted: false, deleted: false, forgot: false };
    pub const HINTS: Self = Self { hinted: true, ..Self::NONE };
    pub const ANY: Self = Self { hinted: true, deleted: true, forgot: true };

    pub fn count(self) -> u8 {
        u8::from(self.hinted) + u8::from(self.deleted) + u8::from(self.forgot)
    }
}

/// What no process knows and the properties ask for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Ghosts {
    /// Under what the latest scheduling transaction was committed. Epochs never go back, so this is enough to see
    /// whether one of them has two writers.
    pub last_write: Fence,
    /// Attempts whose claim was committed; one bit for each.
    pub claimed: u8,
    /// Promises that a step has broken.
    pub broken: Broken,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Broken {
    pub p1: bool,
    pub p2: bool,
    pub p3: bool,
    pub p5: bool,
    pub p6: bool,
}

impl State {
    pub fn new() -> Self {
        let node = Node { cut_off: false, seen: 0, lives: [Life::Unknown; MOST_ATTEMPTS] };
        Self {
            db: Db {
                lease: Lease::default(),
                fence: Fence::default(),
                terms: 0,
                before: None,
                task: Task::Scheduled,
                attempt: 0,
                homes: [0; MOST_ATTEMPTS],
                bound_under: [0; MOST_ATTEMPTS],
            },
            replicas: [Replica::NEW; MOST_REPLICAS],
            nodes: [node; NODES],
            granted: 0,
            trouble: Trouble::default(),
            ghosts: Ghosts::default(),
        }
    }

    pub fn life(&self, node: NodeNo, attempt: Attempt) -> Life {
        self.nodes[usize::from(node)].lives[index(attempt)]
    }

    pub fn life_mut(&mut self, node: NodeNo, attempt: Attempt) -> &mut Life {
        &mut self.nodes[usize::from(node)].lives[index(attempt)]
    }

    /// Every attempt on every node.
    pub fn lives(&self) -> impl Iterator<Item = (NodeNo, Attempt, Life)> {
        let nodes = (0u8..).zip(self.nodes);
        nodes.flat_map(|(node, on)| (1u8..).zip(on.lives).map(move |(attempt, life)| (node, attempt, life)))
    }

    pub fn home(&self, attempt: Attempt) -> NodeNo {
        self.db.homes[index(attempt)]
    }

    pub fn leaders(&self) -> usize {
        self.replicas.iter().filter(|replica| matches!(replica.seat, Seat::Leads { .. })).count()
    }
}

impl Default for State {
    fn default() -> Self {
        Self::new()
    }
}

pub fn index(attempt: Attempt) -> usize {
    usize::from(attempt) - 1
}

pub fn bit(attempt: Attempt) -> u8 {
    1 << attempt
}
