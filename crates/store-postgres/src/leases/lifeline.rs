//! Early word of a crash. Each process holds a session lock of its own, on a connection that does nothing else:
//! the kernel closes the socket of a process that dies, the server ends the session, and the lock is free.
//!
//! Every process waits for the lock of one peer only, the next in the ring of sessions, and tells everybody when
//! it gets it: N processes cost N waits. A peer is waited for once its lock has been *seen* held, so whoever has
//! no lifeline (yet, or because of a pooler) is not taken for dead, and a restart of the server, which ends every
//! session, is nobody's death. A lifeline that is dropped in order looks the same as a crash: its holder has given
//! its leases back before, so there is nothing for a successor to take.
//!
//! The wait is cut into slices. A statement that waits for hours would keep a snapshot for as long, and vacuum
//! could clean nothing in the whole database meanwhile. The lock is a state and not an event, so nothing is
//! missed between two slices.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tenure_lease::{Hint, Lifeline, Session, with_causes};
use tokio::sync::{broadcast, watch};
use tokio::time::{sleep, timeout};
use tokio_postgres::{Client, Config, NoTls, SimpleQueryMessage};
use tokio_util::sync::CancellationToken;
use tokio_util::task::AbortOnDropHandle;

use super::hints::{CHANNEL, payload};

/// For opening a connection, and for any answer that nothing should hold up.
const PATIENCE: Duration = Duration::from_secs(5);
const PING_EVERY: Duration = Duration::from_secs(3);
/// How often two connections are compared before each is believed to have a server process of its own.
const ROUNDS: usize = 4;
/// A pooler with a single connection to give makes the second client wait.
const POOLER_PATIENCE: Duration = Duration::from_secs(2);
/// How old the snapshot of a wait may become.
const LONGEST_SLICE: Duration = Duration::from_secs(5);
/// Soon after a change, for peers that are listed already and attached in a moment.
const FIRST_SLICE: Duration = Duration::from_millis(250);
const FIRST_PAUSE: Duration = Duration::from_millis(100);
const LONGEST_PAUSE: Duration = Duration::from_secs(5);

/// Neither connection may be ended for waiting or for doing nothing. Only what the server knows is set.
const WITHOUT_TIMEOUTS: &str = "SELECT set_config(name, '0', false) FROM pg_settings WHERE name IN \
     ('statement_timeout', 'lock_timeout', 'idle_session_timeout', 'idle_in_transaction_session_timeout', \
      'transaction_timeout')";
/// The server's side of finding out that a machine is gone: after 5 + 3 × 2 s, or a tenth of a second where it
/// can look at the socket while a statement waits. A notification need not reach the disk to be heard.
const WATCHFUL: &str = "SELECT set_config(s.name, v.value, false) FROM pg_settings s JOIN (VALUES \
     ('tcp_keepalives_idle', '5'), ('tcp_keepalives_interval', '2'), ('tcp_keepalives_count', '3'), \
     ('synchronous_commit', 'off'), ('client_connection_check_interval', '100')) \
     AS v(name, value) ON v.name = s.name";

#[derive(Debug)]
pub(super) struct PostgresLifeline {
    cut: CancellationToken,
    working: Arc<Mutex<Result<(), String>>>,
    peers: watch::Sender<BTreeSet<Session>>,
    /// One keeps our lock, one waits for a peer's. Ending them closes their connections.
    _tasks: Vec<AbortOnDropHandle<()>>,
}

#[derive(Debug, thiserror::Error)]
pub(super) enum AttachError {
    #[error("the connection for crash hints failed")]
    Database(#[from] tokio_postgres::Error),
    #[error("the connection for crash hints got no answer in time")]
    Silent(#[from] tokio::time::error::Elapsed),
    #[error("the server gave an answer that makes no sense: {0:?}")]
    Strange(Option<String>),
}

/// Takes the lock of this session, after making sure that it is a session.
pub(super) async fn attach(
    config: &Config,
    session: Session,
    hints: broadcast::Sender<Hint>,
) -> Result<PostgresLifeline, AttachError> {
    let (holder, watcher) = (Line::open(config).await?, Line::open(config).await?);
    let pid = match real_session(&holder, &watcher, key(session)).await? {
        Ok(pid) => pid,
        Err(why) => return Ok(PostgresLifeline::without(why)),
    };
    let (peers, watched) = watch::channel(BTreeSet::new());
    let (cut, working) = (CancellationToken::new(), Arc::new(Mutex::new(Ok(()))));
    let keeping = {
        let (cut, working) = (cut.clone(), Arc::clone(&working));
        tokio::spawn(async move {
            let why = until_cut(holder, pid).await;
            tracing::debug!(why, "the lifeline was cut");
            *working.lock().expect("no panic while holding it") = Err(why);
            cut.cancel();
        })
    };
    let waiting = tokio::spawn(
        Ring { me: session, peers: watched, seen: BTreeSet::new(), hints }
            .watch_for_ever(config.clone(), watcher),
    );
    let tasks = [keeping, waiting].map(AbortOnDropHandle::new).into();
    Ok(PostgresLifeline { cut, working, peers, _tasks: tasks })
}

impl PostgresLifeline {
    /// Tells nothing, and says why.
    fn without(why: String) -> Self {
        Self {
            cut: CancellationToken::new(),
            working: Arc::new(Mutex::new(Err(why))),
            peers: watch::Sender::new(BTreeSet::new()),
            _tasks: vec![],
        }
    }
}

impl Lifeline for PostgresLifeline {
    fn watch_peers(&self, peers: &[Session]) {
        let peers: BTreeSet<Session> = peers.iter().copied().collect();
        self.peers.send_if_modified(|known| {
            let changed = *known != peers;
            *known = peers;
            changed
        });
    }

    fn cut(&self) -> &CancellationToken {
        &self.cut
    }

    fn working(&self) -> Result<(), String> {
        self.working.lock().expect("no panic while holding it").clone()
    }
}

/// One connection that is nobody else's. It speaks simple queries only, which every pooler passes on.
struct Line {
    client: Client,
    /// Ends with the connection; dropping it closes the socket at once.
    driver: AbortOnDropHandle<Result<(), tokio_postgres::Error>>,
}

impl Line {
    async fn open(config: &Config) -> Result<Self, AttachError> {
        let (client, connection) = timeout(PATIENCE, config.connect(NoTls)).await??;
        Ok(Self { client, driver: AbortOnDropHandle::new(tokio::spawn(connection)) })
    }

    async fn open_to_stay(config: &Config) -> Result<Self, AttachError> {
        let line = Self::open(config).await?;
        line.settle().await?;
        Ok(line)
    }

    /// The last cell that is answered.
    async fn ask(&self, sql: &str) -> Result<Option<String>, AttachError> {
        Ok(self.column(sql).await?.pop())
    }

    /// The first cell of every row.
    async fn column(&self, sql: &str) -> Result<Vec<String>, AttachError> {
        let answered = timeout(PATIENCE, self.client.simple_query(sql)).await??;
        Ok(first_cells(answered))
    }

    async fn pid(&self) -> Result<i32, AttachError> {
        let answer = self.ask("SELECT pg_backend_pid()").await?;
        answer.as_deref().and_then(|pid| pid.parse().ok()).ok_or(AttachError::Strange(answer))
    }

    /// Makes an idle or waiting session last.
    async fn settle(&self) -> Result<(), AttachError> {
        self.ask(WITHOUT_TIMEOUTS).await?;
        // Not every platform can look at a socket or set its keepalives.
        if let Err(error) = self.ask(WATCHFUL).await {
            tracing::debug!(%error, "a machine that vanishes is noticed later");
        }
        Ok(())
    }
}

fn first_cells(messages: Vec<SimpleQueryMessage>) -> Vec<String> {
    let cell = |message| match message {
        SimpleQueryMessage::Row(row) => row.get(0).map(str::to_owned),
        _ => None,
    };
    messages.into_iter().filter_map(cell).collect()
}

/// The lock of a session, in one of the database's 2⁶⁴ numbers for such locks.
fn key(session: Session) -> i64 {
    let (high, low) = session.0.as_u64_pair();
    (high ^ low) as i64
}

/// Takes the lock, and answers with the server process that holds it; or says why a lock would mean nothing
/// here. A pooler in transaction mode lends another server process to each transaction: while a second client
/// sits in one, the first is found elsewhere.
async fn real_session(holder: &Line, other: &Line, key: i64) -> Result<Result<i32, String>, AttachError> {
    let pid = holder.pid().await?;
    for round in 0..ROUNDS {
        if round > 0 {
            other.ask("ROLLBACK").await?;
            // A pooler lends what was given back last, unless somebody else came in between.
            if holder.pid().await? != pid {
                return Ok(Err(pooled(ELSEWHERE)));
            }
        }
        other.ask("BEGIN").await?;
        let elsewhere = other.pid().await?;
        let Ok(again) = timeout(POOLER_PATIENCE, holder.pid()).await else {
            // Does it answer once the other is out of the way? Then there was only one for both.
            other.ask("ROLLBACK").await?;
            holder.pid().await?;
            return Ok(Err(pooled("two connections share one server process")));
        };
        if again? != pid || elsewhere == pid {
            return Ok(Err(pooled(ELSEWHERE)));
        }
    }
    // Set no earlier: in a session that is shared it would be set for everybody.
    holder.settle().await?;
    holder.ask(&format!("SELECT pg_advisory_lock({key})")).await?;
    let shared = other.ask(&format!("SELECT pg_try_advisory_lock_shared({key})")).await?;
    if shared.as_deref() != Some("f") {
        other.ask(&format!("SELECT pg_advisory_unlock_shared({key})")).await?;
        holder.ask(&format!("SELECT pg_advisory_unlock({key})")).await?;
        return Ok(Err(pooled("a session lock keeps nobody out")));
    }
    other.ask("ROLLBACK").await?;
    other.settle().await?;
    Ok(Ok(pid))
}

const ELSEWHERE: &str = "two transactions of one connection ran in different server processes";

fn pooled(evidence: &str) -> String {
    format!(
        "the way to Postgres goes through a pooler that shares sessions (PgBouncer in transaction mode, for \
         instance): {evidence}, so a crash is noticed only when its lease runs out; \
         give leases a URL that leads to Postgres directly"
    )
}

/// Says what cut it.
async fn until_cut(mut holder: Line, pid: i32) -> String {
    loop {
        tokio::select! {
            ended = &mut holder.driver => return match ended {
                Ok(Ok(())) => "the connection for crash hints was closed".into(),
                Ok(Err(error)) => format!("the connection for crash hints was lost: {}", with_causes(&error)),
                Err(error) => format!("the connection for crash hints ended: {error}"),
            },
            () = sleep(PING_EVERY) => {}
        }
        match holder.pid().await {
            Ok(same) if same == pid => {}
            Ok(_) => return pooled("the session moved to another server process"),
            Err(error) => return with_causes(&error),
        }
    }
}

/// Whom this process watches.
struct Ring {
    me: Session,
    peers: watch::Receiver<BTreeSet<Session>>,
    /// Peers whose lock was held at some time since this connection was opened, and was not yet found free.
    seen: BTreeSet<Session>,
    hints: broadcast::Sender<Hint>,
}

impl Ring {
    /// A watcher that loses its connection opens another. What ended it may have ended everybody's, so it has to
    /// see a peer's lock held again before a free one means anything.
    async fn watch_for_ever(mut self, config: Config, line: Line) {
        let (mut line, mut pause) = (Ok(line), FIRST_PAUSE);
        loop {
            let ended = match line {
                Ok(line) => self.watch(line, &mut pause).await,
                Err(error) => Err(error),
            };
            if let Err(error) = ended {
                self.seen.clear();
                tracing::debug!(error = with_causes(&error), ?pause, "not watching peers for a moment");
                sleep(pause).await;
                pause = (pause * 2).min(LONGEST_PAUSE);
            }
            line = Line::open_to_stay(&config).await;
        }
    }

    /// Until the connection fails, or waits for one peer when another may be next.
    async fn watch(&mut self, line: Line, pause: &mut Duration) -> Result<(), AttachError> {
        let mut slice = FIRST_SLICE;
        loop {
            let peers = self.peers.borrow_and_update().clone();
            self.look(&line, &peers).await?;
            *pause = FIRST_PAUSE;
            slice = (slice * 2).min(LONGEST_SLICE);
            let Some(next) = next_in_ring(self.me, &self.seen) else {
                tokio::select! {
                    () = sleep(slice) => {}
                    () = changed(&mut self.peers) => slice = FIRST_SLICE,
                }
                continue;
            };
            tokio::select! {
                gone = wait(&line, next, slice) => {
                    if gone? {
                        self.seen.remove(&next);
                        tracing::info!(session = %next, "a peer's session has ended");
                        let _nobody_watches = self.hints.send(Hint::Crashed(next));
                    }
                }
                () = changed(&mut self.peers) => return Ok(()),
            }
        }
    }

    /// Notes whose lock is held now.
    async fn look(&mut self, line: &Line, peers: &BTreeSet<Session>) -> Result<(), AttachError> {
        self.seen.retain(|session| peers.contains(session));
        let unseen: Vec<Session> =
            peers.iter().copied().filter(|peer| *peer != self.me && !self.seen.contains(peer)).collect();
        if unseen.is_empty() {
            return Ok(());
        }
        let keys = unseen.iter().map(|peer| key(*peer).to_string()).collect::<Vec<_>>().join(", ");
        let held = line.column(&held_among(&keys)).await?;
        self.seen.extend(unseen.into_iter().filter(|peer| held.contains(&key(*peer).to_string())));
        Ok(())
    }
}

/// Fires when somebody else is to be watched. The lifeline that would say so ends this task when it goes.
async fn changed(peers: &mut watch::Receiver<BTreeSet<Session>>) {
    if peers.changed().await.is_err() {
        std::future::pending().await
    }
}

/// A lock with one number of 64 bits is shown as two of 32.
fn held_among(keys: &str) -> String {
    format!(
        "SELECT held FROM (SELECT (classid::bigint << 32) | objid::bigint AS held FROM pg_locks \
             WHERE locktype = 'advisory' AND objsubid = 1 AND granted AND mode = 'ExclusiveLock' \
             AND database = (SELECT oid FROM pg_database WHERE datname = current_database())) locks \
         WHERE held IN ({keys})"
    )
}

/// Waits for this peer's lock for one slice of time. Whoever gets it gives it back at once and tells everybody,
/// in the same breath. A slice that ends without the lock is no error that the server would log.
async fn wait(line: &Line, peer: Session, slice: Duration) -> Result<bool, AttachError> {
    let (key, slice_ms) = (key(peer), slice.as_millis());
    let crashed = payload(&Hint::Crashed(peer));
    let sql = format!(
        "DO $wait$ BEGIN
            PERFORM set_config('lock_timeout', '{slice_ms}', true);
            PERFORM pg_advisory_lock_shared({key});
            PERFORM pg_advisory_unlock_shared({key});
            PERFORM pg_notify('{CHANNEL}', '{crashed}');
            PERFORM set_config('tenure.peer', 'gone', false);
        EXCEPTION WHEN lock_not_available THEN
            PERFORM set_config('tenure.peer', 'there', false);
        END $wait$;
        SELECT current_setting('tenure.peer')"
    );
    let answered = timeout(slice + PATIENCE, line.client.simple_query(&sql)).await??;
    match first_cells(answered).pop().as_deref() {
        Some("gone") => Ok(true),
        Some("there") => Ok(false),
        other => Err(AttachError::Strange(other.map(str::to_owned))),
    }
}

/// The first after oneself, round the corner if need be.
fn next_in_ring(me: Session, others: &BTreeSet<Session>) -> Option<Session> {
    let after = others.range((std::ops::Bound::Excluded(me), std::ops::Bound::Unbounded)).next();
    after.or_else(|| others.first()).copied().filter(|next| *next != me)
}
