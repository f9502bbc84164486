//! Carries what a task prints from its `output` file to the log store, redacted, while it runs and after.
//!
//! Promises: every byte that is still there is stored once, under its raw offsets; a part ends at the end of a line
//! (except in very long lines, and at the very end), so no secret is cut in two; a log store that is slow or down
//! delays nobody but the log. What was cut out of the middle meanwhile ([`crate::bounded`]) is marked where it was. What
//! is stored takes no more room here.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::PathBuf;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use object_store::path::Path;
use tenure_logs::Part;
use tenure_model::{Assignment, AttemptId};

use crate::bounded;
use crate::log_store::{BoxError, LogStore};
use crate::redact::Redactor;
use crate::verdict::kibibytes;

/// How much is read, and stored as one part, at most.
const PART: usize = 256 * 1024;
/// A line without an end is shipped in pieces once it is this long.
const LONG_LINE: usize = 64 * 1024;
/// The pause between two parts grows by its own length with every this many parts, up to `SLOWEST`: a task
/// that prints for a day leaves some thousands of objects, not a hundred thousand.
const PARTS_PER_STEP: u32 = 120;
const SLOWEST: Duration = Duration::from_secs(5);
/// The room of what is stored is given back in pieces of this size.
const GIVE_BACK: u64 = 1024 * 1024;

#[derive(Debug, thiserror::Error)]
pub(crate) enum ShipError {
    #[error("the task's output could not be read")]
    Read(#[from] io::Error),
    #[error("the log store does not say how much it has of {at}")]
    Find { at: Path, source: BoxError },
    #[error("the log store did not take {at}")]
    Put { at: Path, source: BoxError },
}

#[derive(Debug)]
pub(crate) struct Shipper {
    store: Arc<dyn LogStore>,
    prefix: Path,
    attempt: AttemptId,
    output: PathBuf,
    cuts: PathBuf,
    secrets: Vec<String>,
    /// Made when there is something to redact: most tasks print nothing.
    redactor: OnceLock<Redactor>,
    /// `None` until it is known where an earlier agent stopped.
    shipped: Option<u64>,
    /// Up to where the room on disk is given back.
    given_back: u64,
    /// What is stored ends with a whole line.
    at_line_start: bool,
    parts: u32,
}

impl Shipper {
    /// For an attempt of which nothing is stored yet.
    pub fn fresh(store: Arc<dyn LogStore>, assignment: &Assignment, output: PathBuf) -> Self {
        Self { shipped: Some(0), ..Self::resuming(store, assignment, output) }
    }

    /// For an attempt of which an earlier agent may have stored something.
    pub fn resuming(store: Arc<dyn LogStore>, assignment: &Assignment, output: PathBuf) -> Self {
        Self {
            store,
            prefix: tenure_logs::prefix(
                &assignment.tenant,
                &assignment.dag,
                &assignment.run_id,
                &assignment.task,
                assignment.ti.map_index,
                assignment.try_number,
            ),
            attempt: assignment.attempt,
            cuts: output.with_file_name("cuts"),
            output,
            secrets: assignment.secrets.clone(),
            redactor: OnceLock::new(),
            shipped: None,
            given_back: 0,
            at_line_start: true,
            parts: 0,
        }
    }

    pub fn pause(&self, shortest: Duration) -> Duration {
        (shortest + shortest * (self.parts / PARTS_PER_STEP)).min(SLOWEST.max(shortest))
    }

    /// Ships the lines that are whole.
    pub async fn ship_lines(&mut self) -> Result<(), ShipError> {
        self.ship(false).await
    }

    /// Ships everything; to be called when nobody writes any more.
    pub async fn ship_rest(&mut self) -> Result<(), ShipError> {
        self.ship(true).await
    }

    async fn ship(&mut self, to_the_end: bool) -> Result<(), ShipError> {
        let mut file = None;
        loop {
            let shipped = self.shipped().await?;
            let length = match std::fs::metadata(&self.output) {
                Ok(metadata) => metadata.len(),
                Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
                Err(error) => return Err(error.into()),
            };
            if length <= shipped {
                return Ok(());
            }
            let file = match &mut file {
                Some(file) => file,
                none => none.insert(File::open(&self.output)?),
            };
            let redactor = self.redactor.get_or_init(|| Redactor::new(&self.secrets));
            let next_cut = bounded::next_cut(&self.cuts, shipped)?;
            let until = next_cut.as_ref().map_or(length, |cut| cut.start.max(shipped));
            let waiting = usize::try_from(until - shipped).unwrap_or(usize::MAX);
            let mut raw = read_at(file, shipped, waiting.min(PART.max(redactor.longest() * 4)))?;
            // Whatever was cut out while it was read is no longer what was printed.
            let next_cut = bounded::next_cut(&self.cuts, shipped)?;
            if let Some(cut) = &next_cut {
                raw.truncate(usize::try_from(cut.start.saturating_sub(shipped)).unwrap_or(usize::MAX));
            }
            let read_until = shipped + raw.len() as u64;
            let at_end = to_the_end && read_until >= length;
            let cut = if at_end { raw.len() } else { cut(&raw, redactor) };
            if cut > 0 {
                let text = redactor.redact(&raw[..cut]).into_owned();
                let whole = raw[cut - 1] == b'\n';
                self.store_part(text, shipped, shipped + cut as u64).await?;
                self.at_line_start = whole;
                continue;
            }
            match next_cut {
                Some(cut) if read_until >= cut.start => {
                    let end = after_cut(file, cut.end, redactor)?;
                    self.store_part(self.mark(end - shipped), shipped, end).await?;
                    self.at_line_start = true;
                }
                _ => return Ok(()),
            }
        }
    }

    fn mark(&self, bytes: u64) -> Vec<u8> {
        let begin = if self.at_line_start { "" } else { "\n" };
        let size = kibibytes(bytes);
        let mark = "of output are left out here: the task printed faster than its log could be stored";
        format!("{begin}tenure: {size} {mark}\n").into_bytes()
    }

    async fn shipped(&mut self) -> Result<u64, ShipError> {
        let shipped = match self.shipped {
            Some(shipped) => shipped,
            None => {
                let found = self.store.stored_until(&self.prefix, self.attempt).await;
                found.map_err(|source| ShipError::Find { at: self.prefix.clone(), source })?
            }
        };
        self.shipped = Some(shipped);
        Ok(shipped)
    }

    /// Where the file system cannot do it, the room is taken until the task has ended.
    fn give_back(&mut self, until: u64) {
        if until - self.given_back < GIVE_BACK {
            return;
        }
        let file = File::options().write(true).open(&self.output);
        if let Err(error) = file.and_then(|file| bounded::punch(&file, self.given_back..until)) {
            tracing::debug!(attempt = %self.attempt, %error, "the room of what is stored cannot be given back");
        }
        self.given_back = until;
    }

    async fn store_part(&mut self, text: Vec<u8>, start: u64, end: u64) -> Result<(), ShipError> {
        let part = Part { attempt: self.attempt, start, end };
        match self.store.put_part(&self.prefix, part, text.into()).await {
            Ok(()) => {
                self.shipped = Some(end);
                self.parts += 1;
                self.give_back(end);
                Ok(())
            }
            Err(source) => Err(ShipError::Put { at: part.path(&self.prefix), source }),
        }
    }
}

/// Where whole lines begin again, so that no secret is half there. In a line without an end: where no secret can be that
/// began before.
fn after_cut(file: &File, end: u64, redactor: &Redactor) -> io::Result<u64> {
    let raw = read_at(file, end, LONG_LINE)?;
    let newline = raw.iter().position(|byte| *byte == b'\n').map(|newline| newline + 1);
    Ok(end + newline.unwrap_or_else(|| redactor.longest().min(raw.len())) as u64)
}

fn read_at(file: &File, offset: u64, at_most: usize) -> io::Result<Vec<u8>> {
    let mut buffer = vec![0; at_most];
    let mut filled = 0;
    while filled < at_most {
        match file.read_at(&mut buffer[filled..], offset + filled as u64) {
            Ok(0) => break,
            Ok(more) => filled += more,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    buffer.truncate(filled);
    Ok(buffer)
}

/// How much of `raw` may be shipped while more is to come.
fn cut(raw: &[u8], redactor: &Redactor) -> usize {
    if let Some(newline) = raw.iter().rposition(|byte| *byte == b'\n') {
        return newline + 1;
    }
    if raw.len() < LONG_LINE.max(redactor.longest() * 2) {
        return 0;
    }
    // What is held back could be the beginning of a secret.
    let cut = raw.len() - redactor.longest().saturating_sub(1);
    redactor.cut_outside_secrets(raw, before_split_character(raw, cut))
}

/// Never between the bytes of one UTF-8 character; text in another encoding is cut where it is.
fn before_split_character(raw: &[u8], cut: usize) -> usize {
    let is_continuation = |at: usize| raw.get(at).is_some_and(|byte| byte & 0b1100_0000 == 0b1000_0000);
    if cut == raw.len() {
        // The last character may be half there.
        let first = (cut.saturating_sub(4)..cut).rev().find(|at| !is_continuation(*at)).unwrap_or(cut);
        return match std::str::from_utf8(&raw[first..cut]) {
            Err(error) if error.error_len().is_none() => first,
            _ => cut,
        };
    }
    (cut.saturating_sub(3)..=cut).rev().find(|at| !is_continuation(*at)).unwrap_or(cut)
}

#[cfg(test)]
mod tests {
    //! Goal: whatever the boundaries of reads and flushes, the stored text is the printed text, redacted.
    use std::io::Write;

    use object_store::memory::InMemory;
    use tenure_logs::LogCursor;
    use uuid::Uuid;

    use super::*;

    struct Bench {
        folder: tempfile::TempDir,
        store: Arc<InMemory>,
        secrets: Vec<String>,
    }

    impl Bench {
        fn new(secrets: &[&str]) -> Self {
            let secrets = secrets.iter().map(|secret| secret.to_string()).collect();
            Self { folder: tempfile::tempdir().unwrap(), store: Arc::default(), secrets }
        }

        fn shipper(&self) -> Shipper {
            Shipper {
                store: self.store.clone(),
                prefix: Path::from("try"),
                attempt: AttemptId(Uuid::from_u128(1)),
                output: self.folder.path().join("output"),
                cuts: self.folder.path().join("cuts"),
                secrets: self.secrets.clone(),
                redactor: OnceLock::new(),
                shipped: Some(0),
                given_back: 0,
                at_line_start: true,
                parts: 0,
            }
        }

        fn print(&self, text: &[u8]) {
            let path = self.folder.path().join("output");
            let mut file = std::fs::OpenOptions::new().create(true).append(true).open(path).unwrap();
            file.write_all(text).unwrap();
        }

        async fn stored(&self) -> String {
            let (mut cursor, mut text) = (LogCursor::Start, String::new());
            loop {
                let chunk = tenure_logs::read(&*self.store, &Path::from("try"), cursor).await.unwrap();
                text.push_str(&chunk.text);
                cursor = chunk.next;
                if !chunk.more {
                    return text;
                }
            }
        }
    }

    #[tokio::test]
    async fn only_whole_lines_are_shipped_while_the_task_runs() {
        let bench = Bench::new(&[]);
        let mut shipper = bench.shipper();
        bench.print(b"one\ntw");
        shipper.ship_lines().await.unwrap();
        assert_eq!(bench.stored().await, "one\n");
        bench.print(b"o\nthree");
        shipper.ship_lines().await.unwrap();
        assert_eq!(bench.stored().await, "one\ntwo\n");
        shipper.ship_rest().await.unwrap();
        assert_eq!(bench.stored().await, "one\ntwo\nthree");
    }

    #[tokio::test]
    async fn a_secret_that_is_printed_in_two_halves_is_redacted() {
        let bench = Bench::new(&["hunter22"]);
        let mut shipper = bench.shipper();
        bench.print(b"password: hunt");
        shipper.ship_lines().await.unwrap();
        bench.print(b"er22\n");
        shipper.ship_lines().await.unwrap();
        assert_eq!(bench.stored().await, "password: ***\n");
    }

    #[tokio::test]
    async fn a_secret_at_any_place_of_an_endless_line_is_redacted() {
        // The boundary of the first piece lies at LONG_LINE, so the secret is moved across it.
        for shift in 0..20 {
            let bench = Bench::new(&["hunter22"]);
            let mut shipper = bench.shipper();
            let line =
                [vec![b'x'; LONG_LINE - 10 + shift], b"hunter22".to_vec(), vec![b'y'; LONG_LINE]].concat();
            for piece in line.chunks(LONG_LINE) {
                bench.print(piece);
                shipper.ship_lines().await.unwrap();
            }
            assert!(!bench.stored().await.is_empty(), "a long line is shipped before it ends");
            shipper.ship_rest().await.unwrap();
            let expected = format!("{}***{}", "x".repeat(LONG_LINE - 10 + shift), "y".repeat(LONG_LINE));
            assert!(bench.stored().await == expected, "shift {shift}");
        }
    }

    #[tokio::test]
    async fn characters_of_an_endless_line_stay_whole() {
        let bench = Bench::new(&["hunter22"]);
        let line = "€".repeat(400_000);
        let mut shipper = bench.shipper();
        bench.print(line.as_bytes());
        shipper.ship_lines().await.unwrap();
        shipper.ship_rest().await.unwrap();
        assert!(bench.stored().await == line);
    }

    #[tokio::test]
    async fn a_restarted_agent_goes_on_without_loss_or_doubles() {
        let bench = Bench::new(&["hunter22"]);
        bench.print(b"hunter22 one\ntwo\nthr");
        bench.shipper().ship_lines().await.unwrap();
        let follower = tenure_logs::read(&*bench.store, &Path::from("try"), LogCursor::Start).await.unwrap();
        bench.print(b"ee\nfour");
        let mut next = Shipper { shipped: None, ..bench.shipper() };
        next.ship_rest().await.unwrap();
        assert_eq!(bench.stored().await, "*** one\ntwo\nthree\nfour");
        let rest = tenure_logs::read(&*bench.store, &Path::from("try"), follower.next).await.unwrap();
        assert_eq!(rest.text, "three\nfour", "who follows the log sees no line twice");
    }

    #[tokio::test]
    async fn what_was_cut_out_is_marked_and_no_secret_is_half_there_around_it() {
        for (first, second) in [(30, 60), (27, 62), (0, 90)] {
            let bench = Bench::new(&["hunter22"]);
            let mut shipper = bench.shipper();
            let text = b"one\npassword: hunter22\ntwo\nsecond: hunter22 and so on\nlast: hunter22 fine\ntail";
            bench.print(text);
            std::fs::write(bench.folder.path().join("cuts"), format!("{first} {second}\n")).unwrap();
            let file = File::options().write(true).open(bench.folder.path().join("output")).unwrap();
            bounded::punch(&file, first..second.min(text.len() as u64)).unwrap();
            shipper.ship_lines().await.unwrap();
            shipper.ship_rest().await.unwrap();
            let stored = bench.stored().await;
            assert!(
                !stored.contains("hunter") && !stored.contains("ter22") && !stored.contains('\0'),
                "{stored:?}"
            );
            assert!(stored.contains("bytes of output are left out here"), "{stored:?}");
            if second < 80 {
                assert!(
                    stored.starts_with("one\npassword: ***\n") && stored.ends_with("\ntail"),
                    "{stored:?}"
                );
            }
        }
    }

    #[tokio::test]
    async fn what_is_stored_takes_no_room_any_more_and_is_stored_once() {
        use std::os::unix::fs::MetadataExt;
        let bench = Bench::new(&[]);
        let mut shipper = bench.shipper();
        let mut all = String::new();
        for round in 0..8 {
            let text = format!("{round} {}\n", "x".repeat(99)).repeat(10_000);
            bench.print(text.as_bytes());
            all.push_str(&text);
            shipper.ship_lines().await.unwrap();
        }
        let room = std::fs::metadata(bench.folder.path().join("output")).unwrap().blocks() * 512;
        assert!(room < 3 * GIVE_BACK, "{room} bytes are taken by {} that are stored", all.len());
        assert!(bench.stored().await == all);
    }

    #[tokio::test]
    async fn silence_costs_no_object() {
        let bench = Bench::new(&[]);
        bench.print(b"");
        let mut shipper = bench.shipper();
        shipper.ship_rest().await.unwrap();
        assert_eq!(shipper.parts, 0);
    }

    #[test]
    fn flushes_slow_down_with_the_number_of_parts_up_to_a_bound() {
        let mut shipper = Bench::new(&[]).shipper();
        let half = Duration::from_millis(500);
        assert_eq!(shipper.pause(half), half);
        shipper.parts = PARTS_PER_STEP * 2;
        assert_eq!(shipper.pause(half), half * 3);
        shipper.parts = 1_000_000;
        assert_eq!(shipper.pause(half), SLOWEST);
    }
}
