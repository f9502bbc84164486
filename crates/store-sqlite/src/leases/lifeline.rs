//! Crash hints between processes of one machine: a locked file for every session.
//!
//! The kernel lets go of a lock when its process ends, however it ends, so whoever can lock a peer's file knows
//! that the peer is gone. Peers lock in shared mode and do not meet each other; a session's file is locked before
//! it gets its name, so none is ever seen unlocked by mistake. A file that is missing says nothing: its session
//! may have no lifeline at all.

use std::collections::BTreeMap;
use std::fs::{DirBuilder, File, OpenOptions};
use std::io::Write;
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use rustix::fs::{FlockOperation, flock};
use tenure_clock::Clock;
use tenure_lease::{Hint, Lifeline, Session};
use tokio::sync::broadcast;
use tokio_util::sync::CancellationToken;

/// A crash is seen after half of this, on average.
const LOOK_EVERY: Duration = Duration::from_millis(50);
/// What a crash leaves behind stays for late watchers and is swept away later than any lease lasts.
const KEEP_FOR: SignedDuration = SignedDuration::from_hours(24);

#[derive(Debug)]
pub(super) struct FileLifeline {
    /// Locked for as long as this lives.
    file: File,
    path: PathBuf,
    peers: Peers,
    /// Nothing that happens to the file takes the lock away, so this never fires.
    cut: CancellationToken,
    stop: Option<mpsc::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

type Peers = Arc<Mutex<BTreeMap<Session, Peer>>>;

#[derive(Debug)]
enum Peer {
    /// Its file has not been seen yet.
    Unknown,
    /// Open, so that it can be tried even after its name is gone.
    Alive(File),
    Gone,
}

impl FileLifeline {
    pub(super) fn attach(
        database: &Path,
        session: Session,
        hints: broadcast::Sender<Hint>,
        clock: &dyn Clock,
    ) -> std::io::Result<Self> {
        let folder = sessions_of(database);
        DirBuilder::new().recursive(true).mode(0o700).create(&folder)?;
        sweep(&folder, clock.now())?;
        let (unnamed, path) = (folder.join(format!(".{session}")), folder.join(session.to_string()));
        let file = OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(&unnamed)?;
        flock(&file, FlockOperation::NonBlockingLockExclusive)?;
        std::fs::rename(&unnamed, &path)?;
        let (peers, (stop, stopped)) = (Peers::default(), mpsc::channel());
        let name = std::thread::Builder::new().name("sqlite-lifeline".into());
        let watched = Arc::clone(&peers);
        let thread = name.spawn(move || {
            while stopped.recv_timeout(LOOK_EVERY) == Err(RecvTimeoutError::Timeout) {
                for (session, peer) in watched.lock().expect("no panic while looking").iter_mut() {
                    if peer.has_crashed(&folder.join(session.to_string())) {
                        // Nobody may be listening.
                        let _ = hints.send(Hint::Crashed(*session));
                    }
                }
            }
        })?;
        let cut = CancellationToken::new();
        Ok(Self { file, path, peers, cut, stop: Some(stop), thread: Some(thread) })
    }
}

impl Lifeline for FileLifeline {
    fn watch_peers(&self, peers: &[Session]) {
        let mut watched = self.peers.lock().expect("no panic while looking");
        watched.retain(|session, _| peers.contains(session));
        for session in peers {
            watched.entry(*session).or_insert(Peer::Unknown);
        }
    }

    fn cut(&self) -> &CancellationToken {
        &self.cut
    }

    fn working(&self) -> Result<(), String> {
        match &self.thread {
            Some(thread) if !thread.is_finished() => Ok(()),
            _ => Err("the thread that looks at peers has stopped".into()),
        }
    }
}

impl Drop for FileLifeline {
    /// Says in the file that this end is in order, for peers that have it open.
    fn drop(&mut self) {
        drop(self.stop.take());
        if let Some(thread) = self.thread.take()
            && thread.join().is_err()
        {
            tracing::error!("the thread that looks at peers had panicked");
        }
        let ended = self.file.write_all(b"ended\n").and_then(|()| std::fs::remove_file(&self.path));
        if let Err(error) = ended {
            tracing::warn!(%error, path = %self.path.display(), "peers may take this process for crashed");
        }
    }
}

impl Peer {
    /// True once. A file that cannot be opened or asked says nothing.
    fn has_crashed(&mut self, path: &Path) -> bool {
        if matches!(self, Self::Unknown)
            && let Ok(file) = File::open(path)
        {
            *self = Self::Alive(file);
        }
        let Self::Alive(file) = self else { return false };
        if flock(&*file, FlockOperation::NonBlockingLockShared).is_err() {
            return false;
        }
        let crashed = file.metadata().is_ok_and(|about| about.len() == 0);
        *self = Self::Gone;
        crashed
    }
}

fn sweep(folder: &Path, now: Timestamp) -> std::io::Result<()> {
    for entry in std::fs::read_dir(folder)? {
        let path = entry?.path();
        // Another process may be sweeping too: what is gone is gone.
        let Ok(file) = File::open(&path) else { continue };
        let made_at = Timestamp::try_from(file.metadata()?.modified()?).unwrap_or(now);
        let old = now.duration_since(made_at) > KEEP_FOR;
        if old && flock(&file, FlockOperation::NonBlockingLockShared).is_ok() {
            match std::fs::remove_file(&path) {
                Err(error) if error.kind() != std::io::ErrorKind::NotFound => return Err(error),
                _ => {}
            }
        }
    }
    Ok(())
}

pub(super) fn sessions_of(database: &Path) -> PathBuf {
    let mut name = database.as_os_str().to_owned();
    name.push(".sessions");
    name.into()
}

#[cfg(test)]
mod tests {
    //! Goal: a crash is told, and nothing else is. Method: letting go of a lock is all that a crash does to a file.

    use std::time::SystemTime;

    use tenure_clock::{Entropy, SystemClock};
    use tenure_testkit::{temp_dir, wait_for};

    use super::*;

    const PATIENCE: Duration = Duration::from_secs(20);

    struct Machine {
        folder: tempfile::TempDir,
        hints: broadcast::Sender<Hint>,
        entropy: Entropy,
    }

    impl Machine {
        fn new() -> Self {
            Self { folder: temp_dir(), hints: broadcast::Sender::new(16), entropy: Entropy::from_os() }
        }

        fn database(&self) -> PathBuf {
            self.folder.path().join("leases.db")
        }

        fn session(&self) -> Session {
            Session(self.entropy.uuid(SystemClock.now()))
        }

        fn attach(&self) -> (Session, FileLifeline) {
            let session = self.session();
            let lifeline = FileLifeline::attach(&self.database(), session, self.hints.clone(), &SystemClock);
            (session, lifeline.expect("attached"))
        }

        fn names(&self) -> Vec<String> {
            let entries = std::fs::read_dir(sessions_of(&self.database())).expect("listed");
            let mut names: Vec<_> = entries
                .map(|entry| entry.expect("an entry").file_name().into_string().expect("text"))
                .collect();
            names.sort();
            names
        }
    }

    fn crash(lifeline: FileLifeline) {
        flock(&lifeline.file, FlockOperation::Unlock).expect("let go");
        std::mem::forget(lifeline);
    }

    async fn next(hints: &mut broadcast::Receiver<Hint>) -> Hint {
        tokio::time::timeout(PATIENCE, hints.recv()).await.expect("a hint in time").expect("open")
    }

    #[tokio::test]
    async fn crashes_are_told_once_and_orderly_ends_are_not() {
        let machine = Machine::new();
        let mut hints = machine.hints.subscribe();
        let (_, watcher) = machine.attach();
        let (never_attached, (orderly, ending)) = (machine.session(), machine.attach());
        let ((first, crashing), (second, crashing_later)) = (machine.attach(), machine.attach());
        let (living, _lives) = machine.attach();
        watcher.watch_peers(&[never_attached, orderly, first, second, living]);
        let open = || matches!(watcher.peers.lock().expect("no panic")[&orderly], Peer::Alive(_));
        wait_for("the peer to be looked at", PATIENCE, async || open().then_some(())).await;
        drop(ending);
        crash(crashing);
        assert_eq!(next(&mut hints).await, Hint::Crashed(first));
        // By the time the second crash is told, all the others have been looked at again.
        crash(crashing_later);
        assert_eq!(next(&mut hints).await, Hint::Crashed(second));
        assert_eq!((watcher.working(), watcher.cut().is_cancelled()), (Ok(()), false));
    }

    #[tokio::test]
    async fn a_crash_before_anybody_watched_is_told_as_well() {
        let machine = Machine::new();
        let mut hints = machine.hints.subscribe();
        let (dead, crashing) = machine.attach();
        crash(crashing);
        let (_, watcher) = machine.attach();
        watcher.watch_peers(&[dead]);
        assert_eq!(next(&mut hints).await, Hint::Crashed(dead));
    }

    #[tokio::test]
    async fn files_go_in_order_and_old_remains_are_swept() {
        let machine = Machine::new();
        let ((kept, recent), (_, old), (alive, long_running)) =
            (machine.attach(), machine.attach(), machine.attach());
        let long_ago = SystemTime::from(SystemClock.now() - SignedDuration::from_hours(48));
        for lifeline in [&old, &long_running] {
            lifeline.file.set_modified(long_ago).expect("set");
        }
        crash(recent);
        crash(old);
        let (_, ends) = machine.attach();
        drop(ends);
        let mut expected = vec![kept.to_string(), alive.to_string()];
        expected.sort();
        assert_eq!(machine.names(), expected);
    }
}
