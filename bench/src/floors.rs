//! What nobody can beat on this machine: forking processes, flushing to disk.

use std::fs::File;
use std::io::Write;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result};

/// `count` processes one after the other.
pub fn spawn_in_sequence(count: usize) -> Result<Duration> {
    let started = Instant::now();
    for _ in 0..count {
        Command::new("true").stdin(Stdio::null()).status().context("cannot start `true`")?;
    }
    Ok(started.elapsed())
}

/// `count` processes, started as fast as they can be and awaited together.
pub fn spawn_at_once(count: usize) -> Result<Duration> {
    let started = Instant::now();
    let start = |_| Command::new("true").stdin(Stdio::null()).spawn().context("cannot start `true`");
    let children: Vec<_> = (0..count).map(start).collect::<Result<_>>()?;
    for mut child in children {
        child.wait()?;
    }
    Ok(started.elapsed())
}

/// One small append, flushed to the disk: the least a durable commit can cost.
pub fn flush() -> Result<Duration> {
    let folder = tempfile::tempdir()?;
    let mut file = File::create(folder.path().join("flushed"))?;
    file.write_all(&[0; 4096])?;
    file.sync_data()?;
    let started = Instant::now();
    file.write_all(&[1; 4096])?;
    file.sync_data()?;
    Ok(started.elapsed())
}
