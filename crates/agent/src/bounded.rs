//! The output of a task on disk, kept within a bound however fast it prints and however slow its log can be stored.
//!
//! A task writes straight into its `output` file and is never held up. When the file takes more room than it may, its
//! supervisor cuts a piece out of the middle: the beginning and, above all, the end stay. A cut is a hole in the file, so
//! all offsets stay what they were; it is written down in `cuts` *before* it is made, so whoever reads the file and looks
//! at the cuts afterwards knows which bytes were really printed.
//!
//! Does not promise an exact bound: what is printed between two looks comes on top of it.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::ops::Range;
use std::os::fd::AsFd;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::fs::FallocateFlags;
use tenure_clock::BootTime;

/// A task that prints much is looked at this often, …
const QUICKEST_LOOK: Duration = Duration::from_millis(50);
/// … and one that prints little this seldom.
const SLOWEST_LOOK: Duration = Duration::from_secs(1);
/// Of the bound, so much stays at the beginning (what a task says about itself) …
const HEAD_SHARE: u64 = 16;
/// … and so much at the end.
const TAIL_SHARE: u64 = 2;
/// Holes are made of whole blocks; a part of one is written with zeros.
const BLOCK: u64 = 4096;

/// The supervisor's side.
#[derive(Debug)]
pub(crate) struct BoundedOutput {
    output: PathBuf,
    cuts: PathBuf,
    most: u64,
    cut_until: u64,
    last_length: u64,
    every: Duration,
    next_look: BootTime,
    /// The file system cannot make holes, or the disk is broken: there is nothing to be done.
    given_up: bool,
}

impl BoundedOutput {
    pub fn new(output: PathBuf, cuts: PathBuf, most: u64, now: BootTime) -> Self {
        let every = QUICKEST_LOOK;
        let next_look = now + every;
        Self { output, cuts, most, cut_until: 0, last_length: 0, every, next_look, given_up: false }
    }

    /// When to look again.
    pub fn next_look(&self) -> BootTime {
        self.next_look
    }

    /// Cuts if it is time, and if there is too much.
    pub fn look(&mut self, now: BootTime) {
        if now < self.next_look || self.given_up {
            return;
        }
        match self.cut_if_too_large() {
            Ok(grown) => {
                let much = grown > self.most / HEAD_SHARE;
                self.every = if much { QUICKEST_LOOK } else { (self.every * 2).min(SLOWEST_LOOK) };
            }
            Err(error) => {
                self.given_up = true;
                eprintln!("tenure: the output takes more room than it should: {error}");
            }
        }
        self.next_look = now + self.every;
        if self.given_up {
            self.next_look = now + SLOWEST_LOOK * 3600;
        }
    }

    fn cut_if_too_large(&mut self) -> io::Result<u64> {
        let metadata = fs::metadata(&self.output)?;
        let grown = metadata.len().saturating_sub(self.last_length);
        self.last_length = metadata.len();
        if metadata.blocks() * 512 <= self.most {
            return Ok(grown);
        }
        let head = (self.most / HEAD_SHARE).next_multiple_of(BLOCK);
        let tail = metadata.len().saturating_sub(self.most / TAIL_SHARE) / BLOCK * BLOCK;
        let cut = self.cut_until.max(head)..tail;
        if !cut.is_empty() {
            let mut cuts = OpenOptions::new().create(true).append(true).mode(0o600).open(&self.cuts)?;
            cuts.write_all(format!("{} {}\n", cut.start, cut.end).as_bytes())?;
            self.cut_until = cut.end;
            punch(&OpenOptions::new().write(true).open(&self.output)?, cut)?;
        }
        Ok(grown)
    }
}

/// Gives the room of these bytes back; they read as zeros from then on.
pub(crate) fn punch(file: &File, bytes: Range<u64>) -> io::Result<()> {
    let flags = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
    Ok(rustix::fs::fallocate(file.as_fd(), flags, bytes.start, bytes.end - bytes.start)?)
}

/// The cut in which this byte lies, or the next one after it. Cuts of one file grow and never overlap.
pub(crate) fn next_cut(cuts: &Path, from: u64) -> io::Result<Option<Range<u64>>> {
    let text = match fs::read_to_string(cuts) {
        Ok(text) => text,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(error),
    };
    let parse = |line: &str| {
        let (start, end) = line.strip_suffix('\n')?.split_once(' ')?;
        Some(start.parse().ok()?..end.parse().ok()?)
    };
    // Neighbours are one cut to whoever reads.
    let mut found: Option<Range<u64>> = None;
    for cut in text.split_inclusive('\n').filter_map(parse) {
        match &mut found {
            None if cut.end > from => found = Some(cut),
            Some(found) if cut.start <= found.end => found.end = found.end.max(cut.end),
            _ => {}
        }
    }
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn beginning_and_end_stay_and_the_room_is_bounded() {
        let folder = tempfile::tempdir().unwrap();
        let (output, cuts) = (folder.path().join("output"), folder.path().join("cuts"));
        let most = 1024 * 1024;
        let mut now = BootTime::since_boot(Duration::from_secs(1));
        let mut bounded = BoundedOutput::new(output.clone(), cuts.clone(), most, now);
        let mut file = OpenOptions::new().create(true).append(true).open(&output).unwrap();
        let line = |number: u64| format!("line {number:010}\n");
        for number in 0..400_000 {
            file.write_all(line(number).as_bytes()).unwrap();
            if number % 10_000 == 0 {
                now = now + Duration::from_secs(2);
                bounded.look(now);
                let room = fs::metadata(&output).unwrap().blocks() * 512;
                assert!(room <= most + 16 * 10_000, "{room} bytes are taken after {number} lines");
            }
        }
        let printed = fs::read(&output).unwrap();
        let cut = next_cut(&cuts, 0).unwrap().expect("something was cut out");
        let expected: String = (0..400_000).map(line).collect();
        assert_eq!(printed.len(), expected.len(), "every offset is what it was");
        let (start, end) = (cut.start as usize, cut.end as usize);
        assert!(printed[..start] == expected.as_bytes()[..start] && start >= 64 * 1024);
        assert!(printed[end..] == expected.as_bytes()[end..] && printed.len() - end >= 512 * 1024);
        assert!(printed[start..end].iter().all(|byte| *byte == 0), "all of the cut is a hole");
        assert_eq!(next_cut(&cuts, cut.end).unwrap(), None);
    }

    #[test]
    fn what_fits_is_not_touched() {
        let folder = tempfile::tempdir().unwrap();
        let (output, cuts) = (folder.path().join("output"), folder.path().join("cuts"));
        fs::write(&output, vec![b'x'; 100_000]).unwrap();
        let now = BootTime::since_boot(Duration::from_secs(1));
        let mut bounded = BoundedOutput::new(output, cuts.clone(), 1024 * 1024, now);
        bounded.look(now + Duration::from_secs(2));
        assert!(!cuts.exists());
    }

    #[test]
    fn a_cut_that_was_not_written_down_to_its_end_was_not_made() {
        let folder = tempfile::tempdir().unwrap();
        let cuts = folder.path().join("cuts");
        fs::write(&cuts, "10 20\n20 30\n50 60\n70 8").unwrap();
        assert_eq!(next_cut(&cuts, 0).unwrap(), Some(10..30));
        assert_eq!(next_cut(&cuts, 29).unwrap(), Some(20..30));
        assert_eq!(next_cut(&cuts, 30).unwrap(), Some(50..60));
        assert_eq!(next_cut(&cuts, 60).unwrap(), None);
    }
}
