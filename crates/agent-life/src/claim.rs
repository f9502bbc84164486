//! Whether an attempt may begin.

use std::sync::Arc;

use tenure_model::Ack;

use crate::book::Handle;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Claim {
    Granted,
    /// It is not current any more: it never begins, and nobody waits for a word about it.
    Refused,
    /// Asked to stop before it began. The claim may have been committed unheard, so the control plane has to learn this.
    Stopped,
    /// The agent shuts down; whoever comes after it says how this ends.
    Interrupted,
}

/// Asks for the claim once nothing of the task instance's earlier attempts runs here any more. `submit` insists until
/// it is heard; `None` from it: the agent shuts down.
pub async fn claim(
    handle: &Handle,
    before: Vec<Arc<Handle>>,
    submit: impl Future<Output = Option<Ack>>,
) -> Claim {
    let in_turn = async {
        // Two attempts of one task never overlap here: a cancelled one is given its grace first.
        for earlier in before {
            earlier.ended.cancelled().await;
        }
        submit.await
    };
    match handle.stop.run_until_cancelled(in_turn).await {
        None => Claim::Stopped,
        Some(None) => Claim::Interrupted,
        // A stop that came together with the answer still comes before the start.
        Some(Some(Ack::Accepted)) if handle.stop.is_cancelled() => Claim::Stopped,
        Some(Some(Ack::Accepted)) => Claim::Granted,
        Some(Some(Ack::Superseded | Ack::Retry)) => Claim::Refused,
    }
}
