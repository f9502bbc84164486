//! The attempts that an agent knows: those it has, and those it had.

use std::collections::{BTreeMap, HashSet, VecDeque};
use std::io;
use std::sync::Arc;

use tenure_model::{Assignment, AttemptId, Held, NodeId, OnDisconnect, TiKey};
use tokio_util::sync::CancellationToken;

use crate::epochs::EpochMemory;

/// Ended attempts that are remembered so that a late duplicate does not even ask for its claim.
const REMEMBERED: usize = 4096;

#[derive(Debug, thiserror::Error)]
pub enum AssignError {
    #[error(
        "attempt {attempt} was bound under epoch e{offered} of {scope}, but e{highest} has been seen: its owner was deposed"
    )]
    StaleEpoch { attempt: AttemptId, scope: String, offered: u64, highest: u64 },
    #[error("attempt {attempt} is for node {wanted}, and this is {here}")]
    WrongNode { attempt: AttemptId, wanted: NodeId, here: NodeId },
    #[error("the epoch of {scope} could not be remembered: {source}")]
    Storage { scope: String, source: io::Error },
    #[error("the agent is shutting down")]
    ShuttingDown,
}

/// What the outside holds of an attempt.
#[derive(Debug)]
pub struct Handle {
    pub ti: TiKey,
    pub scope: String,
    pub stop: CancellationToken,
    /// It must not run on when this node loses the control plane.
    pub fenced: bool,
    /// Nothing of it runs any more.
    pub ended: CancellationToken,
}

/// An attempt that is new here.
#[derive(Debug)]
pub struct Taken {
    pub handle: Arc<Handle>,
    /// Attempts of the same task instance that may still be on their way out.
    pub before: Vec<Arc<Handle>>,
}

#[derive(Debug, Default)]
pub struct Book {
    attempts: BTreeMap<AttemptId, Arc<Handle>>,
    forgotten: HashSet<AttemptId>,
    forgotten_in_order: VecDeque<AttemptId>,
}

impl Book {
    /// Takes an assignment, unless it is another node's, its owner was deposed, or the agent is closing. `None`: it is
    /// known already, and what is known is not started again.
    pub fn take(
        &mut self,
        here: &NodeId,
        assignment: &Assignment,
        closing: bool,
        epochs: &mut dyn EpochMemory,
    ) -> Result<Option<Taken>, AssignError> {
        let Assignment { attempt, scope, epoch, .. } = assignment;
        if assignment.node != *here {
            let (wanted, here) = (assignment.node.clone(), here.clone());
            return Err(AssignError::WrongNode { attempt: *attempt, wanted, here });
        }
        // Before anything is refused: an attempt that runs here must never be called «not taken».
        if self.knows(*attempt) {
            return Ok(None);
        }
        if closing {
            return Err(AssignError::ShuttingDown);
        }
        match epochs.admit(scope, *epoch) {
            Ok(Ok(())) => {}
            Ok(Err(highest)) => {
                let (attempt, scope, offered) = (*attempt, scope.clone(), *epoch);
                return Err(AssignError::StaleEpoch { attempt, scope, offered, highest });
            }
            Err(source) => return Err(AssignError::Storage { scope: scope.clone(), source }),
        }
        let before = self.unended(assignment.ti);
        Ok(Some(Taken { handle: self.add(assignment), before }))
    }

    /// An attempt that an earlier agent has left.
    pub fn add(&mut self, assignment: &Assignment) -> Arc<Handle> {
        let handle = || {
            Arc::new(Handle {
                ti: assignment.ti,
                scope: assignment.scope.clone(),
                stop: CancellationToken::new(),
                fenced: assignment.on_disconnect == OnDisconnect::Stop,
                ended: CancellationToken::new(),
            })
        };
        Arc::clone(self.attempts.entry(assignment.attempt).or_insert_with(handle))
    }

    pub fn stop(&self, attempt: AttemptId) {
        if let Some(handle) = self.attempts.get(&attempt) {
            handle.stop.cancel();
        }
    }

    /// Everything this node has: ordered, running, or ended and not yet acknowledged.
    pub fn inventory(&self) -> Vec<Held> {
        let held = |(attempt, handle): (&AttemptId, &Arc<Handle>)| Held {
            attempt: *attempt,
            ti: handle.ti,
            scope: handle.scope.clone(),
        };
        self.attempts.iter().map(held).collect()
    }

    pub fn is_empty(&self) -> bool {
        self.attempts.is_empty()
    }

    /// How many attempts have not ended yet.
    pub fn running(&self) -> usize {
        self.attempts.values().filter(|handle| !handle.ended.is_cancelled()).count()
    }

    pub fn any_fenced(&self) -> bool {
        self.attempts.values().any(|handle| handle.fenced && !handle.ended.is_cancelled())
    }

    pub fn forget(&mut self, attempt: AttemptId) {
        self.attempts.remove(&attempt);
        if self.forgotten.insert(attempt) {
            self.forgotten_in_order.push_back(attempt);
        }
        if self.forgotten_in_order.len() > REMEMBERED
            && let Some(oldest) = self.forgotten_in_order.pop_front()
        {
            self.forgotten.remove(&oldest);
        }
    }

    fn knows(&self, attempt: AttemptId) -> bool {
        self.attempts.contains_key(&attempt) || self.forgotten.contains(&attempt)
    }

    /// Attempts of one task instance of which something may still run.
    fn unended(&self, ti: TiKey) -> Vec<Arc<Handle>> {
        let attempts = self.attempts.values();
        attempts.filter(|handle| handle.ti == ti && !handle.ended.is_cancelled()).cloned().collect()
    }
}
