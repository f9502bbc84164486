//! Hints: one watch on everything under the prefix, for as long as anybody has the backend.
//!
//! The watch begins at the present, and says «look at everything» as soon as it stands: whatever happened while there
//! was none, a change of credentials, a compaction, or etcd's whole data being replaced, is covered by that.

use std::time::Duration;

use tenure_lease::{Hint, LeaseError};
use tokio::sync::broadcast;
use tokio::task::JoinHandle;

use crate::keys::Keys;
use crate::options::EtcdOptions;
use crate::protocol::{WatchCreateRequest, WatchResponse};
use crate::wire::Wire;

/// A slow subscriber that lags behind further looks at everything.
pub(crate) const HINTS: usize = 4_096;
const SHORTEST_PAUSE: Duration = Duration::from_millis(100);
const LONGEST_PAUSE: Duration = Duration::from_secs(5);

/// The task that listens. It ends with its handle.
pub(crate) struct Watching(JoinHandle<()>);

impl Watching {
    /// On a connection of its own: hints never hold up a renewal.
    pub(crate) fn start(options: &EtcdOptions, keys: Keys, hints: broadcast::Sender<Hint>) -> Self {
        let wire = Wire::new(options).expect("these options have been used before");
        Self(tokio::spawn(Follower { wire, keys, hints }.follow(0)))
    }
}

impl Drop for Watching {
    fn drop(&mut self) {
        self.0.abort();
    }
}

struct Follower {
    wire: Wire,
    keys: Keys,
    hints: broadcast::Sender<Hint>,
}

impl Follower {
    /// Watches for ever. `first` is the revision to begin with; zero is the present.
    async fn follow(self, first: i64) {
        let (mut revision, mut pause) = (first, SHORTEST_PAUSE);
        loop {
            let ended = self.watch_once(revision, &mut pause).await;
            let why = ended.unwrap_or_else(|error| std::io::Error::other(error).to_string());
            tracing::debug!(why, "the watch on etcd has ended, and begins again");
            revision = 0;
            tokio::time::sleep(pause).await;
            pause = (pause * 2).min(LONGEST_PAUSE);
        }
    }

    /// Until the watch ends; says why it did.
    async fn watch_once(&self, start_revision: i64, pause: &mut Duration) -> Result<String, LeaseError> {
        let (key, range_end) = self.keys.everything();
        let (line, mut answers) =
            self.wire.watch(WatchCreateRequest { key, range_end, start_revision }).await?;
        let ended = loop {
            match answers.message().await {
                Ok(Some(answer)) if answer.canceled => break why_canceled(&answer),
                Ok(Some(answer)) => {
                    if answer.created {
                        *pause = SHORTEST_PAUSE;
                        self.tell(Hint::Resync);
                    }
                    self.pass_on(&answer);
                }
                Ok(None) => break "etcd closed the stream".into(),
                Err(status) => break status.to_string(),
            }
        };
        // A stale token, a dead connection, a member without a leader: the next one is made from the start.
        line.distrust();
        Ok(ended)
    }

    fn pass_on(&self, answer: &WatchResponse) {
        let keys = answer.events.iter().filter_map(|event| event.kv.as_ref());
        for scope in keys.filter_map(|kv| self.keys.scope_of_lease(&kv.key)) {
            self.tell(Hint::Changed(scope));
        }
    }

    fn tell(&self, hint: Hint) {
        // Nobody may be listening.
        let _ = self.hints.send(hint);
    }
}

fn why_canceled(answer: &WatchResponse) -> String {
    match answer.compact_revision {
        0 => answer.cancel_reason.clone(),
        revision => format!("everything before revision {revision} was compacted away"),
    }
}

#[cfg(test)]
mod tests {
    //! Goal: a watch that etcd ends comes back. The other ends of a watch are tested from outside.

    use tenure_lease::Scope;
    use tenure_testkit::Etcd;

    use super::*;

    #[tokio::test]
    async fn a_compacted_watch_begins_again_at_the_present() {
        let etcd = Etcd::start();
        for value in ["one", "two", "three"] {
            etcd.ctl(&["put", "/tenure/a", value]);
        }
        etcd.ctl(&["compaction", "3"]);
        let options: EtcdOptions = etcd.url().parse().expect("an address");
        let (hints, mut heard) = broadcast::channel(HINTS);
        let (wire, keys) = (Wire::new(&options).expect("good options"), Keys::under(&options.prefix));
        let follower = tokio::spawn(Follower { wire, keys, hints }.follow(1));
        let listening = async {
            // Once for the watch that is too old, once for the one that stands.
            for _ in 0..2 {
                assert_eq!(heard.recv().await.expect("a hint"), Hint::Resync);
            }
            etcd.ctl(&["put", "/tenure/b", "four"]);
            while heard.recv().await.expect("a hint") != Hint::Changed(Scope::new("b")) {}
        };
        tokio::time::timeout(Duration::from_secs(30), listening).await.expect("it begins again");
        follower.abort();
    }
}
