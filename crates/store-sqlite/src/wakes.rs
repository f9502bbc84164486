//! One bell for each shard.

use std::sync::Arc;

use tenure_model::ShardId;
use tokio::sync::watch;

#[derive(Clone, Debug)]
pub(crate) struct Wakes {
    bells: Arc<[watch::Sender<u64>]>,
}

impl Wakes {
    pub(crate) fn new(shards: u16) -> Self {
        Self { bells: (0..shards).map(|_| watch::Sender::new(0)).collect() }
    }

    pub(crate) fn ring(&self, shard: ShardId) {
        // A row for a shard that this database does not have concerns nobody.
        if let Some(bell) = self.bells.get(usize::from(shard.0)) {
            bell.send_modify(|count| *count += 1);
        }
    }

    pub(crate) fn of(&self, shard: ShardId) -> watch::Receiver<u64> {
        let bell = self.bells.get(usize::from(shard.0));
        let shards = self.bells.len();
        bell.unwrap_or_else(|| panic!("there are {shards} shards, and no {shard}")).subscribe()
    }
}
