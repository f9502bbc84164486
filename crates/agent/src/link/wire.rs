//! One live stream to a replica: what waits for its answer there, and when it last gave a sign of life.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use tenure_agent_proto::wire::{NumberedReport, ToAgent};
use tenure_agent_proto::{AgentItem, AgentsClient};
use tenure_clock::{BootTime, Clock};
use tenure_model::{Ack, Report};
use tokio::sync::{mpsc, oneshot};
use tonic::transport::Channel;
use uuid::Uuid;

use super::lock;

/// With a report waiting, so long a silence makes the agent ask whether anybody is there, …
const ASK_AFTER: Duration = Duration::from_secs(1);
/// … and so long a silence makes it go elsewhere.
const LEAVE_AFTER: Duration = Duration::from_secs(3);
/// A replica that lives but does not answer a report may be cut off from its database.
const ANSWER_WITHIN: Duration = Duration::from_secs(10);
/// Three heartbeats without an echo.
const SILENT_FOR: Duration = Duration::from_secs(15);

pub(super) struct Wire {
    /// Which process of which replica is at the other end.
    pub replica: Uuid,
    /// For calls beside the stream.
    pub client: AgentsClient<Channel>,
    queue: mpsc::UnboundedSender<AgentItem>,
    waiting: Mutex<Waiting>,
    /// Nanoseconds since boot.
    heard: AtomicU64,
    pings: Mutex<Pings>,
    /// It has let a report wait in silence.
    suspect: AtomicBool,
    /// The other replicas that this one knows.
    pub peers: Mutex<Vec<super::Server>>,
}

#[derive(Default)]
struct Waiting {
    closed: bool,
    last: u64,
    /// In the order they were sent.
    reports: BTreeMap<u64, (BootTime, oneshot::Sender<Ack>)>,
}

/// Heartbeats that wait for their answer, in the order they were sent.
#[derive(Default)]
struct Pings {
    last: u64,
    sent: VecDeque<(u64, BootTime)>,
}

/// What the state of a link asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Look {
    Fine,
    /// Ask for a sign of life.
    Ask,
    /// Nothing has been heard for too long.
    Dead,
}

impl Wire {
    pub fn new(
        replica: Uuid,
        client: AgentsClient<Channel>,
        queue: mpsc::UnboundedSender<AgentItem>,
        now: BootTime,
    ) -> Self {
        Self {
            replica,
            client,
            queue,
            waiting: Mutex::default(),
            heard: AtomicU64::new(nanos(now)),
            pings: Mutex::default(),
            suspect: AtomicBool::new(false),
            peers: Mutex::default(),
        }
    }

    pub fn is_well(&self) -> bool {
        !self.suspect.load(Ordering::Acquire)
    }

    pub fn say(&self, item: AgentItem) {
        // A stream that has ended listens no more; its end is being dealt with.
        let _ = self.queue.send(item);
    }

    /// A heartbeat, and a question whether it is heard.
    pub fn ping(&self, now: BootTime) {
        let mut pings = lock(&self.pings);
        pings.last += 1;
        let number = pings.last;
        pings.sent.push_back((number, now));
        // Under the lock, so that numbers are in order on the wire too.
        self.say(AgentItem::Ping(number));
    }

    /// `None`: the link broke, or its silence became too long.
    pub async fn submit(&self, report: &Report, clock: &dyn Clock) -> Option<Ack> {
        let (answer, answered) = oneshot::channel();
        {
            let mut waiting = lock(&self.waiting);
            if waiting.closed {
                return None;
            }
            waiting.last += 1;
            let number = waiting.last;
            waiting.reports.insert(number, (clock.boottime(), answer));
            // Under the lock, so that numbers are in order on the wire too.
            self.say(AgentItem::Report(NumberedReport::new(number, report.clone())));
        }
        answered.await.ok()
    }

    /// Answers that come too late find nobody waiting. Says when the latest word was said that this message answers.
    pub fn take_acks(&self, message: &ToAgent) -> Option<BootTime> {
        let mut latest = self.take_pong(message.pong);
        let mut waiting = lock(&self.waiting);
        for (number, ack) in message.acks() {
            if let Some((said, answer)) = waiting.reports.remove(&number) {
                latest = latest.max(Some(said));
                let _ = answer.send(ack);
            }
        }
        latest
    }

    fn take_pong(&self, number: u64) -> Option<BootTime> {
        let mut pings = lock(&self.pings);
        let heard = pings.sent.partition_point(|(sent, _)| *sent <= number);
        pings.sent.drain(..heard).next_back().map(|(_, said)| said)
    }

    /// True if it had been silent for too long.
    pub fn hear(&self, now: BootTime) -> bool {
        self.heard.store(nanos(now), Ordering::Release);
        self.suspect.swap(false, Ordering::AcqRel)
    }

    /// Lets go of reports that have waited for too long.
    pub fn look(&self, now: BootTime) -> Look {
        let heard = BootTime::since_boot(Duration::from_nanos(self.heard.load(Ordering::Acquire)));
        let silent = now.saturating_since(heard);
        if silent >= SILENT_FOR {
            return Look::Dead;
        }
        let mut waiting = lock(&self.waiting);
        let Some((_, (since, _))) = waiting.reports.first_key_value() else { return Look::Fine };
        let waited = now.saturating_since(*since);
        // Silence counts while something waits: an idle link is silent between two heartbeats.
        if silent.min(waited) >= LEAVE_AFTER {
            self.suspect.store(true, Ordering::Release);
            waiting.reports.clear();
            return Look::Ask;
        }
        while let Some(oldest) = waiting.reports.first_entry() {
            if now.saturating_since(oldest.get().0) < ANSWER_WITHIN {
                break;
            }
            // It counts as an answer, so that others are asked first.
            let _ = oldest.remove().1.send(Ack::Retry);
        }
        if silent.min(waited) >= ASK_AFTER { Look::Ask } else { Look::Fine }
    }

    /// Nothing waits here any more, and nothing will.
    pub fn close(&self) {
        let mut waiting = lock(&self.waiting);
        waiting.closed = true;
        waiting.reports.clear();
    }
}

fn nanos(at: BootTime) -> u64 {
    at.saturating_since(BootTime::since_boot(Duration::ZERO)).as_nanos() as u64
}

#[cfg(test)]
mod tests {
    //! Goal: nothing waits longer than its bound, and nobody is suspected for being idle. Method: one wire, a clock that
    //! the test moves.
    use std::sync::Arc;

    use jiff::Timestamp;
    use tenure_clock::ManualClock;
    use tenure_model::{AttemptId, ReportBody, RunKey, TaskNo, TiKey};
    use tokio::task::JoinHandle;
    use tonic::transport::Endpoint;

    use super::*;

    struct Bench {
        wire: Arc<Wire>,
        clock: ManualClock,
        said: mpsc::UnboundedReceiver<AgentItem>,
    }

    impl Bench {
        fn new() -> Self {
            let clock = ManualClock::starting_at(Timestamp::UNIX_EPOCH);
            let (queue, said) = mpsc::unbounded_channel();
            let channel = Endpoint::from_static("http://127.0.0.1:1").connect_lazy();
            let wire = Wire::new(Uuid::nil(), AgentsClient::new(channel), queue, clock.boottime());
            Self { wire: Arc::new(wire), clock, said }
        }

        /// Submits, and gives the number under which it went out.
        async fn submit(&mut self) -> (u64, JoinHandle<Option<Ack>>) {
            let attempt = AttemptId(Uuid::from_u128(1));
            let body = ReportBody::Claim { attempt, ti: TiKey::unmapped(RunKey(1), TaskNo(1)) };
            let report = Report { node: "n".into(), scope: "s".into(), body };
            let (wire, clock) = (Arc::clone(&self.wire), self.clock.clone());
            let submitting = tokio::spawn(async move { wire.submit(&report, &clock).await });
            match self.said.recv().await {
                Some(AgentItem::Report(report)) => (report.number, submitting),
                other => panic!("{other:?}"),
            }
        }

        fn after(&self, seconds: u64) -> Look {
            self.clock.advance(Duration::from_secs(seconds));
            self.wire.look(self.clock.boottime())
        }

        fn hear(&self, message: &ToAgent) {
            self.wire.hear(self.clock.boottime());
            self.wire.take_acks(message);
        }
    }

    fn accepted(number: u64) -> ToAgent {
        ToAgent { accepted: vec![number], ..Default::default() }
    }

    #[tokio::test]
    async fn a_silent_replica_is_asked_and_then_left_and_its_late_answer_is_ignored() {
        let mut bench = Bench::new();
        let (number, submitting) = bench.submit().await;
        assert_eq!(bench.after(0), Look::Fine);
        assert_eq!(bench.after(1), Look::Ask);
        assert!(bench.wire.is_well() && !submitting.is_finished());
        assert_eq!(bench.after(2), Look::Ask);
        assert_eq!(submitting.await.unwrap(), None, "whoever waited goes elsewhere");
        assert!(!bench.wire.is_well());
        assert!(bench.wire.hear(bench.clock.boottime()), "a sign of life");
        bench.hear(&accepted(number));
        assert!(bench.wire.is_well());
        let (next, submitting) = bench.submit().await;
        bench.hear(&accepted(number));
        bench.hear(&accepted(next));
        assert_eq!(submitting.await.unwrap(), Some(Ack::Accepted));
    }

    #[tokio::test]
    async fn what_was_heard_counts_from_when_it_was_said() {
        let mut bench = Bench::new();
        let begin = bench.clock.boottime();
        let answer = |bench: &Bench, message: ToAgent| {
            bench.clock.advance(Duration::from_secs(2));
            bench.wire.take_acks(&message).map(|said| said.saturating_since(begin).as_secs())
        };
        bench.wire.ping(bench.clock.boottime());
        let ping = bench.said.recv().await;
        assert!(matches!(ping, Some(AgentItem::Ping(1))), "{ping:?}");
        assert_eq!(answer(&bench, ToAgent::default()), None, "words of its own answer nothing");
        bench.wire.ping(bench.clock.boottime());
        assert_eq!(answer(&bench, ToAgent { pong: 1, ..Default::default() }), Some(0));
        assert_eq!(answer(&bench, ToAgent { pong: 1, ..Default::default() }), None);
        bench.said.recv().await;
        let (number, _submitting) = bench.submit().await;
        assert_eq!(answer(&bench, ToAgent { pong: 2, ..accepted(number) }), Some(6));
    }

    #[tokio::test]
    async fn the_silence_before_a_report_does_not_count() {
        let mut bench = Bench::new();
        assert_eq!(bench.after(4), Look::Fine);
        let (number, submitting) = bench.submit().await;
        assert_eq!(bench.after(0), Look::Fine);
        assert!(bench.wire.is_well());
        bench.hear(&accepted(number));
        assert_eq!(submitting.await.unwrap(), Some(Ack::Accepted));
    }

    #[tokio::test]
    async fn a_replica_that_lives_but_does_not_answer_is_not_waited_for_without_end() {
        let mut bench = Bench::new();
        let (_, submitting) = bench.submit().await;
        for _ in 0..9 {
            bench.after(1);
            bench.hear(&ToAgent::default());
        }
        assert!(!submitting.is_finished() && bench.wire.is_well());
        bench.after(1);
        assert_eq!(submitting.await.unwrap(), Some(Ack::Retry));
    }

    #[tokio::test]
    async fn a_link_without_any_sign_of_life_is_dead_and_lets_go_of_everything() {
        let mut bench = Bench::new();
        assert_eq!(bench.after(14), Look::Fine);
        assert_eq!(bench.after(1), Look::Dead);
        let (_, submitting) = bench.submit().await;
        bench.wire.close();
        assert_eq!(submitting.await.unwrap(), None);
        let report = ReportBody::Claim {
            attempt: AttemptId(Uuid::from_u128(2)),
            ti: TiKey::unmapped(RunKey(1), TaskNo(1)),
        };
        let report = Report { node: "n".into(), scope: "s".into(), body: report };
        assert_eq!(bench.wire.submit(&report, &bench.clock).await, None, "nothing is begun on a closed link");
    }
}
