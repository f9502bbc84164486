//! Since when, and until when, this node has been in contact with the control plane: written by the agent into one small
//! file, read by the supervisors of tasks that must not run on without it (`on_disconnect: stop`). The supervisor
//! decides by itself, so a dead agent fences its tasks as surely as a cut link does.
//!
//! All times are on the clock that counts suspend, so a machine that wakes up knows how long it
//! was away.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::time::Duration;

use tenure_agent_life::Contact;
use tenure_clock::BootTime;

/// The agent's side.
#[derive(Debug)]
pub(crate) struct ContactBook {
    path: PathBuf,
    boot_id: String,
    allowed: Duration,
    known: Mutex<Option<Contact>>,
}

impl ContactBook {
    /// Goes on where an earlier agent of this boot has stopped.
    pub fn open(path: PathBuf, boot_id: String, allowed: Duration) -> Self {
        let known = read(&path, &boot_id);
        Self { path, boot_id, allowed, known: Mutex::new(known) }
    }

    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Writes down that the control plane has heard what was said at this time.
    pub fn note(&self, at: BootTime) -> io::Result<()> {
        let mut known = self.known.lock().expect("no panic while holding the contact");
        let contact = Contact::extended(*known, at, self.allowed);
        if *known == Some(contact) && self.path.exists() {
            return Ok(());
        }
        let [since, until] = [contact.since, contact.until].map(nanos);
        let unfinished = self.path.with_extension("new");
        fs::write(&unfinished, format!("{} {since} {until}\n", self.boot_id))?;
        fs::rename(unfinished, &self.path)?;
        *known = Some(contact);
        Ok(())
    }
}

/// What the file says, if it is of this boot.
pub(crate) fn read(path: &Path, boot_id: &str) -> Option<Contact> {
    let text = fs::read_to_string(path).ok()?;
    let mut words = text.strip_suffix('\n')?.split(' ');
    if words.next()? != boot_id {
        return None;
    }
    let mut time = || Some(BootTime::since_boot(Duration::from_nanos(words.next()?.parse().ok()?)));
    Some(Contact { since: time()?, until: time()? })
}

/// The supervisor's side: until when a task may run.
#[derive(Debug)]
pub(crate) struct Fence {
    path: PathBuf,
    boot_id: String,
    after: Duration,
    /// The contact under which the task runs; the agent wrote the first of it down before the task began.
    held: Option<Contact>,
}

impl Fence {
    pub fn new(path: PathBuf, boot_id: String, after: Duration) -> Self {
        let held = read(&path, &boot_id);
        Self { path, boot_id, after, held }
    }

    /// When to stop the task unless there is newer contact by then. A time that has passed means now.
    pub fn deadline(&mut self) -> BootTime {
        let Some(held) = &mut self.held else { return BootTime::since_boot(Duration::ZERO) };
        if let Some(latest) = read(&self.path, &self.boot_id) {
            held.follow(latest);
        }
        held.until + self.after
    }

    /// For how long nothing has been heard.
    pub fn silent(&self, now: BootTime) -> Duration {
        self.held.map_or(self.after, |held| now.saturating_since(held.until))
    }
}

fn nanos(at: BootTime) -> u64 {
    at.saturating_since(BootTime::since_boot(Duration::ZERO)).as_nanos() as u64
}

#[cfg(test)]
mod tests {
    //! Goal: a gap is never forgotten, whoever was away. Method: one book, one fence, times as numbers.
    use super::*;

    const ALLOWED: Duration = Duration::from_secs(60);

    fn at(seconds: u64) -> BootTime {
        BootTime::since_boot(Duration::from_secs(seconds))
    }

    struct Bench {
        folder: tempfile::TempDir,
    }

    impl Bench {
        fn new() -> Self {
            Self { folder: tempfile::tempdir().unwrap() }
        }

        fn book(&self) -> ContactBook {
            ContactBook::open(self.folder.path().join("contact"), "boot".into(), ALLOWED)
        }

        fn fence(&self) -> Fence {
            Fence::new(self.folder.path().join("contact"), "boot".into(), ALLOWED)
        }
    }

    #[test]
    fn contact_moves_the_deadline_and_silence_does_not() {
        let bench = Bench::new();
        let book = bench.book();
        book.note(at(100)).unwrap();
        let mut fence = bench.fence();
        assert_eq!(fence.deadline(), at(160));
        book.note(at(130)).unwrap();
        book.note(at(120)).unwrap();
        assert_eq!(fence.deadline(), at(190), "a late word of an earlier time changes nothing");
        assert_eq!(fence.silent(at(195)), Duration::from_secs(65));
    }

    #[test]
    fn contact_after_a_gap_does_not_save_what_was_begun_before_it() {
        let bench = Bench::new();
        let book = bench.book();
        book.note(at(100)).unwrap();
        let mut before = bench.fence();
        book.note(at(160)).unwrap();
        assert_eq!(
            before.deadline(),
            at(160),
            "the machine slept, and its links are back before this one looks"
        );
        let mut after = bench.fence();
        assert_eq!(after.deadline(), at(220), "what is begun under the new contact is in contact");
    }

    #[test]
    fn an_agent_that_restarts_in_time_goes_on_with_the_contact_of_the_one_before() {
        let bench = Bench::new();
        bench.book().note(at(100)).unwrap();
        let mut fence = bench.fence();
        bench.book().note(at(150)).unwrap();
        assert_eq!(fence.deadline(), at(210));
        bench.book().note(at(211)).unwrap();
        assert_eq!(fence.deadline(), at(210), "and one that was away for too long cannot mend it");
        assert_eq!(fence.silent(at(211)), Duration::from_secs(61));
    }

    #[test]
    fn without_any_contact_nothing_runs() {
        let bench = Bench::new();
        assert_eq!(bench.fence().deadline(), at(0));
        bench.book().note(at(5)).unwrap();
        let mut other_boot = Fence::new(bench.folder.path().join("contact"), "other".into(), ALLOWED);
        assert_eq!(other_boot.deadline(), at(0));
    }
}
