//! Hints that something was committed which an owner should look at: from this process at once, from others
//! by LISTEN/NOTIFY. A hint that is lost costs a tick of the scheduler, nothing else.

use std::collections::BTreeSet;
use std::sync::Arc;

use tenure_clock::Entropy;
use tenure_model::ShardId;
use tokio::sync::watch;
use tokio_postgres::Config;
use tokio_util::task::AbortOnDropHandle;

use crate::listen::{Heard, listen};

pub(crate) const CHANNEL: &str = "tenure_wake";

/// The server takes payloads of less than 8000 bytes; beyond this, everybody is woken.
const MOST_NAMED: usize = 1_000;

pub(crate) struct Wakes {
    shards: Arc<Shards>,
    /// Tells this process's own notifications apart: it has woken itself already.
    origin: String,
    _listener: AbortOnDropHandle<()>,
}

impl Wakes {
    pub(crate) fn start(config: Config, shards: u16, entropy: &Entropy) -> Self {
        let origin = u64::from_be_bytes(entropy.bytes()).to_string();
        let shards = Arc::new(Shards::new(shards));
        let (own, woken) = (origin.clone(), Arc::clone(&shards));
        let listener = listen(config, CHANNEL, entropy.clone(), move |heard| match heard {
            Heard::Note(note) => match note.split_once(' ') {
                Some((origin, _)) if origin == own => {}
                Some((_, named)) => woken.wake_named(named),
                None => woken.wake_all(),
            },
            // Whatever was said while nobody listened is lost: look once.
            Heard::Begun => woken.wake_all(),
        });
        Self { shards, origin, _listener: listener }
    }

    pub(crate) fn subscribe(&self, shard: ShardId) -> watch::Receiver<u64> {
        self.shards.of(shard).subscribe()
    }

    /// Those in this process.
    pub(crate) fn wake(&self, shards: &BTreeSet<ShardId>) {
        shards.iter().for_each(|shard| touch(self.shards.of(*shard)));
    }

    pub(crate) fn wake_all(&self) {
        self.shards.wake_all();
    }

    /// What to tell the other processes.
    pub(crate) fn note(&self, shards: &BTreeSet<ShardId>) -> String {
        note(&self.origin, shards)
    }

    /// What to tell them of that which concerns every shard.
    pub(crate) fn note_to_all(&self) -> String {
        note_to_all(&self.origin)
    }
}

/// `17 0,3`: who says it, and whom it concerns.
fn note(origin: &str, shards: &BTreeSet<ShardId>) -> String {
    if shards.len() > MOST_NAMED {
        return note_to_all(origin);
    }
    let numbers: Vec<String> = shards.iter().map(|shard| shard.0.to_string()).collect();
    format!("{origin} {}", numbers.join(","))
}

/// `17 *` concerns everybody.
fn note_to_all(origin: &str) -> String {
    format!("{origin} *")
}

struct Shards {
    each: Vec<watch::Sender<u64>>,
    /// For a number beyond the last: nothing is ever said of it.
    nobody: watch::Sender<u64>,
}

impl Shards {
    fn new(count: u16) -> Self {
        let each = (0..count).map(|_| watch::Sender::new(0)).collect();
        Self { each, nobody: watch::Sender::new(0) }
    }

    fn of(&self, shard: ShardId) -> &watch::Sender<u64> {
        self.each.get(usize::from(shard.0)).unwrap_or(&self.nobody)
    }

    fn wake_all(&self) {
        self.each.iter().for_each(touch);
    }

    /// Another release may say things that this one does not understand: then it looks everywhere.
    fn wake_named(&self, named: &str) {
        let numbers: Result<Vec<u16>, _> = named.split(',').map(str::parse).collect();
        match numbers {
            Ok(numbers) => numbers.into_iter().for_each(|number| touch(self.of(ShardId(number)))),
            Err(_) => self.wake_all(),
        }
    }
}

fn touch(sender: &watch::Sender<u64>) {
    sender.send_modify(|count| *count += 1);
}

#[cfg(test)]
mod tests {
    use super::*;

    fn counts_after(named: &str) -> Vec<u64> {
        let shards = Shards::new(4);
        shards.wake_named(named);
        shards.each.iter().map(|sender| *sender.borrow()).collect()
    }

    #[test]
    fn a_note_wakes_the_shards_it_names_and_no_others() {
        assert_eq!(counts_after("1,3"), [0, 1, 0, 1]);
        assert_eq!(counts_after("2,9"), [0, 0, 1, 0]);
    }

    #[test]
    fn a_note_that_makes_no_sense_wakes_everybody() {
        assert_eq!(counts_after("*"), [1, 1, 1, 1]);
        assert_eq!(counts_after("2,x"), [1, 1, 1, 1]);
    }

    #[test]
    fn a_note_about_very_many_shards_fits_into_a_notification() {
        let some: BTreeSet<ShardId> = [0, 3].map(ShardId).into();
        assert_eq!(note("17", &some), "17 0,3");
        let many: BTreeSet<ShardId> = (0..u16::MAX).map(ShardId).collect();
        assert_eq!(note("17", &many), "17 *");
        let just: BTreeSet<ShardId> = many.into_iter().rev().take(MOST_NAMED).collect();
        assert!(note("18446744073709551615", &just).len() < 8_000);
    }
}
