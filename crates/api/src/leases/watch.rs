//! Leases as they change, as server-sent events: what there is, then every change.
//!
//! One feed looks at all leases for all watchers of this server: when the store hints at a change, when a lease is
//! about to run out, and once a second anyway, because hints get lost. Each watcher compares the newest look with
//! the one it has told, when its reader has room: a slow reader gets fewer, later events, ends with the truth, and
//! costs no memory. A reader that takes nothing at all is cut off by the accept loop. Nothing is replayed: who
//! reconnects gets what there is.
//!
//! Not promised: every change in between. Two changes of one lease may come as the latter.

use std::collections::VecDeque;
use std::convert::Infallible;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use axum::Extension;
use axum::extract::State;
use axum::response::sse::{Event, KeepAlive, Sse};
use futures::stream::{self, Stream};
use serde::Serialize;
use serde_json::json;
use tenure_lease::{Hint, LeaseRecord, LeaseStore};
use tokio::sync::{Notify, OwnedSemaphorePermit, Semaphore, broadcast, watch};
use tokio::time::MissedTickBehavior;
use tokio_util::sync::CancellationToken;

use super::LeaseApi;
use super::shapes::Lease;
use super::views::Under;
use crate::error::{ApiError, ApiResult, Refusals};
use crate::input::Query;
use crate::serve::Stopping;

/// A quarter of the connections that the accept loop keeps open.
const MOST_WATCHERS: usize = 256;
const LOOK_ANYWAY_AFTER: Duration = Duration::from_secs(1);
/// A burst of hints is worth one look: at most 10 a second, however busy the store.
const BETWEEN_LOOKS: Duration = Duration::from_millis(100);
/// A store that needs longer is told to be away, and asked again.
const LOOK_WITHIN: Duration = Duration::from_secs(5);
/// Readers may take three of them in a row for a dead connection.
const KEEP_ALIVE_EVERY: Duration = Duration::from_secs(5);

/// Watch leases: server-sent events.
///
/// First one `current` event for each lease there is, then `synced`; from then on `acquired`, `released` and
/// `expired` as they happen, and `removed` when a record is gone. The data is the lease. Renewals are no events.
/// `unavailable` says that the lease store cannot be read at the moment; what changed meanwhile is told when it is
/// back. Changes are hints to look, not a log: a slow reader gets the latest of several. After a break, connect
/// again and take the current ones for the truth; there is no `Last-Event-ID`.
#[utoipa::path(get, path = "/api/leases/watch", tag = "leases", params(Under), responses(
    (status = 200, description = "Events until you or the server end it", body = String,
        content_type = "text/event-stream"),
    Refusals,
))]
pub async fn watch(
    State(api): State<LeaseApi>,
    Query(query): Query<Under>,
    Extension(watchers): Extension<Watchers>,
    stopping: Option<Extension<Stopping>>,
) -> ApiResult<Sse<impl Stream<Item = Result<Event, Infallible>> + use<>>> {
    let place = Arc::clone(&watchers.places).try_acquire_owned().map_err(|_| {
        ApiError::Unavailable(format!(
            "{MOST_WATCHERS} watch this server already; try again, or another one."
        ))
    })?;
    let (looks, number) = watchers.join(&api.leases);
    let stopping = stopping.map_or_else(CancellationToken::new, |Extension(Stopping(token))| token);
    let watcher = Watcher::begin(query.under, looks, number, stopping, place).await?;
    let events = stream::unfold(watcher, |mut watcher| async move {
        let event = watcher.next().await?;
        Some((Ok(event), watcher))
    });
    Ok(Sse::new(events).keep_alive(KeepAlive::new().interval(KEEP_ALIVE_EVERY)))
}

/// All watchers of one server.
#[derive(Clone, Debug)]
pub struct Watchers {
    places: Arc<Semaphore>,
    /// Runs while somebody watches.
    feed: Arc<Mutex<Option<Feed>>>,
}

impl Default for Watchers {
    fn default() -> Self {
        Self { places: Arc::new(Semaphore::new(MOST_WATCHERS)), feed: Arc::default() }
    }
}

#[derive(Clone, Debug)]
struct Feed {
    looks: watch::Receiver<Look>,
    wanted: Arc<Notify>,
    /// The number of the latest look that has begun.
    begun: Arc<AtomicU64>,
}

/// All leases at one moment, in order of scope.
#[derive(Clone, Debug)]
struct Look {
    number: u64,
    records: Result<Arc<Vec<LeaseRecord>>, String>,
}

impl Watchers {
    /// The looks to come, and the number of the first one that begins after this call: older ones may lack what
    /// the caller knows to have happened.
    fn join(&self, leases: &Arc<dyn LeaseStore>) -> (watch::Receiver<Look>, u64) {
        let mut slot = self.slot();
        let feed = match slot.take() {
            // A feed that has panicked has dropped its end.
            Some(feed) if feed.looks.has_changed().is_ok() => feed,
            _ => self.start(Arc::clone(leases)),
        };
        let number = feed.begun.load(Ordering::Acquire) + 1;
        feed.wanted.notify_one();
        let looks = feed.looks.clone();
        *slot = Some(feed);
        (looks, number)
    }

    fn start(&self, leases: Arc<dyn LeaseStore>) -> Feed {
        let (sender, looks) = watch::channel(Look { number: 0, records: Ok(Arc::default()) });
        let feed = Feed { looks, wanted: Arc::default(), begun: Arc::default() };
        tokio::spawn(self.clone().run(leases, sender, feed.clone()));
        feed
    }

    async fn run(self, leases: Arc<dyn LeaseStore>, looks: watch::Sender<Look>, feed: Feed) {
        let Feed { looks: own, wanted, begun } = feed;
        drop(own);
        let mut hints = leases.watch();
        let mut rhythm = tokio::time::interval(BETWEEN_LOOKS);
        rhythm.set_missed_tick_behavior(MissedTickBehavior::Delay); // the first hint in a while is not kept waiting
        loop {
            rhythm.tick().await;
            // What is hinted at from here on is looked at in the next round.
            hints = hints.resubscribe();
            let number = begun.fetch_add(1, Ordering::AcqRel) + 1;
            let records = look(&*leases).await;
            let pause = records.as_ref().map_or(LOOK_ANYWAY_AFTER, |records| pause_after(records));
            looks.send_replace(Look { number, records });
            tokio::select! {
                () = hinted(&mut hints) => {}
                () = wanted.notified() => {}
                () = tokio::time::sleep(pause) => {}
            }
            if self.nobody_watches(&looks) {
                return;
            }
        }
    }

    /// Ends the feed under the lock that watchers join under, so that nobody joins a feed that is ending.
    fn nobody_watches(&self, looks: &watch::Sender<Look>) -> bool {
        let mut slot = self.slot();
        let nobody = looks.receiver_count() <= 1; // the slot's own
        if nobody {
            *slot = None;
        }
        nobody
    }

    fn slot(&self) -> MutexGuard<'_, Option<Feed>> {
        self.feed.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

async fn look(leases: &dyn LeaseStore) -> Result<Arc<Vec<LeaseRecord>>, String> {
    match tokio::time::timeout(LOOK_WITHIN, leases.list_leases("")).await {
        Ok(Ok(records)) => Ok(Arc::new(records)),
        Ok(Err(error)) => Err(error.to_string()),
        Err(_) => Err(format!("the lease store does not answer within {LOOK_WITHIN:?}")),
    }
}

/// Until the first lease runs out, but at most the usual second.
fn pause_after(records: &[LeaseRecord]) -> Duration {
    let first_to_expire =
        records.iter().filter(|record| record.is_held()).map(|record| record.remaining).min();
    first_to_expire.map_or(LOOK_ANYWAY_AFTER, |remaining| remaining.min(LOOK_ANYWAY_AFTER))
}

/// Until there is a hint. A receiver that lags has been hinted at often; one without a sender never is again.
async fn hinted(hints: &mut broadcast::Receiver<Hint>) {
    match hints.recv().await {
        Ok(_) | Err(broadcast::error::RecvError::Lagged(_)) => {}
        Err(broadcast::error::RecvError::Closed) => std::future::pending().await,
    }
}

/// One reader: what it has been told, and what it is about to be told.
struct Watcher {
    under: String,
    looks: watch::Receiver<Look>,
    told: Arc<Vec<LeaseRecord>>,
    /// At most one event for each lease: the next look is taken when it is empty.
    events: VecDeque<Event>,
    away: bool,
    stopping: CancellationToken,
    _place: OwnedSemaphorePermit,
}

impl Watcher {
    async fn begin(
        under: String,
        mut looks: watch::Receiver<Look>,
        number: u64,
        stopping: CancellationToken,
        place: OwnedSemaphorePermit,
    ) -> ApiResult<Self> {
        let first = looks.wait_for(|look| look.number >= number).await.map(|look| look.clone());
        let first = first.map_err(|_| ApiError::Internal("Nobody looks at the leases any more.".into()))?;
        let records = first.records.map_err(|error| {
            ApiError::Unavailable(format!("The leases cannot be read: {error}; nothing was changed."))
        })?;
        let current = records.iter().filter(|record| record.scope.as_str().starts_with(&under));
        let mut events: VecDeque<_> = current.map(|record| event("current", record)).collect();
        let count = events.len();
        events.push_back(data("synced", &json!({ "leases": count })));
        Ok(Self { under, looks, told: records, events, away: false, stopping, _place: place })
    }

    async fn next(&mut self) -> Option<Event> {
        loop {
            if let Some(event) = self.events.pop_front() {
                return Some(event);
            }
            tokio::select! {
                () = self.stopping.cancelled() => return None,
                changed = self.looks.changed() => changed.ok()?,
            }
            self.compare();
        }
    }

    fn compare(&mut self) {
        let look = self.looks.borrow_and_update().clone();
        match look.records {
            Ok(records) => {
                self.away = false;
                let changes = changes(&self.told, &records);
                let ours = changes.filter(|(_, record)| record.scope.as_str().starts_with(&self.under));
                let events: VecDeque<_> =
                    ours.map(|(change, record)| event(change.as_str(), record)).collect();
                self.events = events;
                self.told = records;
            }
            Err(error) if !self.away => {
                self.away = true;
                self.events.push_back(data("unavailable", &json!({ "detail": error })));
            }
            Err(_) => {} // told already
        }
    }
}

fn event(name: &str, record: &LeaseRecord) -> Event {
    data(name, &Lease::from(record.clone()))
}

fn data(name: &str, data: &impl Serialize) -> Event {
    Event::default().event(name).json_data(data).expect("plain data is JSON on one line")
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Change {
    Acquired,
    Released,
    Expired,
    Removed,
}

impl Change {
    fn as_str(self) -> &'static str {
        match self {
            Self::Acquired => "acquired",
            Self::Released => "released",
            Self::Expired => "expired",
            Self::Removed => "removed",
        }
    }
}

/// What is different, in order of scope: the record as it is now, or as it last was.
fn changes<'a>(
    before: &'a [LeaseRecord],
    now: &'a [LeaseRecord],
) -> impl Iterator<Item = (Change, &'a LeaseRecord)> {
    let (mut before, mut now) = (before.iter().peekable(), now.iter().peekable());
    let pairs = std::iter::from_fn(move || {
        let order = match (before.peek(), now.peek()) {
            (None, None) => return None,
            (Some(_), None) => std::cmp::Ordering::Less,
            (None, Some(_)) => std::cmp::Ordering::Greater,
            (Some(old), Some(new)) => old.scope.cmp(&new.scope),
        };
        let old = if order.is_le() { before.next() } else { None };
        let new = if order.is_ge() { now.next() } else { None };
        Some((old, new))
    });
    pairs.filter_map(|(old, new)| change(old, new))
}

fn change<'a>(
    old: Option<&'a LeaseRecord>,
    new: Option<&'a LeaseRecord>,
) -> Option<(Change, &'a LeaseRecord)> {
    let Some(new) = new else { return old.map(|old| (Change::Removed, old)) };
    let same = old.filter(|old| (old.term, old.epoch) == (new.term, new.epoch));
    if same.is_some_and(|old| old.is_held() == new.is_held()) {
        return None;
    }
    Some(match (new.is_held(), new.released) {
        (true, _) => (Change::Acquired, new),
        (false, true) => (Change::Released, new),
        (false, false) => (Change::Expired, new),
    })
}

#[cfg(test)]
mod tests {
    //! Goal: whatever happened between two looks, a reader is told what is true now, once. Method: leases as
    //! text, `scope=term` held, `scope-term` released, `scope~term` expired.

    use jiff::Timestamp;
    use tenure_lease::{Epoch, Holder, Scope, Session, Succession, Term};
    use uuid::Uuid;

    use super::*;

    fn records(text: &str) -> Vec<LeaseRecord> {
        let record = |word: &str| {
            let at = word.find(['=', '-', '~']).expect("scope, sign, term");
            let (scope, sign, term) = (&word[..at], &word[at..=at], word[at + 1..].parse().unwrap());
            LeaseRecord {
                scope: Scope::new(scope),
                holder: Holder {
                    name: "h:1".into(),
                    instance: String::new(),
                    session: Session(Uuid::nil()),
                    address: None,
                },
                term: Term(Uuid::from_u128(term)),
                epoch: Epoch(term as u64),
                duration: Duration::from_secs(15),
                acquired_at: Timestamp::UNIX_EPOCH,
                renewed_at: Timestamp::UNIX_EPOCH,
                released: sign == "-",
                remaining: if sign == "=" { Duration::from_secs(1) } else { Duration::ZERO },
                resource_version: 1,
                transitions: 0,
                succession: Succession::First,
                note: String::new(),
            }
        };
        text.split_whitespace().map(record).collect()
    }

    #[track_caller]
    fn check(before: &str, now: &str, told: &str) {
        let (before, now) = (records(before), records(now));
        let changes = changes(&before, &now);
        let text: Vec<_> = changes.map(|(change, of)| format!("{} {}", change.as_str(), of.scope)).collect();
        assert_eq!(text.join(", "), told);
    }

    #[test]
    fn each_turn_of_a_lease_is_told_once() {
        check("", "a=1", "acquired a");
        check("a=1", "a=1", "");
        check("a=1", "a-1", "released a");
        check("a-1", "a-1", "");
        check("a=1", "a~1", "expired a");
        check("a~1", "a=2", "acquired a");
        check("a=1", "a=2", "acquired a");
        check("a=1", "", "removed a");
    }

    #[test]
    fn what_came_and_went_between_two_looks_is_told_as_it_ended() {
        check("", "a-1", "released a");
        check("a=1", "a-2", "released a");
        check("a=1", "a~2", "expired a");
    }

    #[test]
    fn a_lease_that_was_released_and_then_ran_out_is_told_once() {
        check("a-1 b=1", "a~1 b=1", "");
    }

    #[test]
    fn changes_come_in_order_of_scope_beside_what_stays() {
        check(
            "a=1 c=1 d=1 f=1",
            "b=1 c=1 d-1 e=1",
            "removed a, acquired b, released d, acquired e, removed f",
        );
    }
}
