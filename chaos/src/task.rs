//! What the workload's tasks run: a process that leaves signs of life in a file named after its attempt.
//!
//! Each sign is one short append, so a killed process leaves whole lines, and two processes under one attempt id
//! would both be seen. A sign carries the wall clock, which the database also reads, and the time since boot.

use std::fs::File;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context, Result};
use jiff::Timestamp;
use tenure_clock::{BootTime, Clock, SystemClock};

use tenure_judge::history::{Effect, End, RunName, Start};

/// How often a task shows that it lives.
pub const SIGN_EVERY: Duration = Duration::from_millis(50);

#[derive(Debug, clap::Args)]
pub struct Args {
    /// Where signs of life are left
    #[arg(long)]
    pub effects: PathBuf,
    /// How long it takes
    #[arg(long)]
    pub work_ms: u64,
    /// It fails in its first tries, so many of them
    #[arg(long, default_value_t = 0)]
    pub fail_tries: u32,
}

pub fn run(args: &Args) -> Result<ExitCode> {
    let env =
        |name: &str| std::env::var(name).with_context(|| format!("{name} is not set: no agent started this"));
    let path = args.effects.join(env("TENURE_ATTEMPT_ID")?);
    let mut file = File::options().create(true).append(true).open(&path)?;
    let (dag, run, task) = (env("TENURE_DAG_ID")?, env("TENURE_RUN_ID")?, env("TENURE_TASK_ID")?);
    let begun = SystemClock.boottime();
    sign(&mut file, "start", &format!(" {dag} {run} {task}"))?;
    let work = Duration::from_millis(args.work_ms);
    loop {
        let left = work.saturating_sub(SystemClock.boottime().saturating_since(begun));
        if left.is_zero() {
            break;
        }
        std::thread::sleep(left.min(SIGN_EVERY));
        sign(&mut file, "alive", "")?;
    }
    let code = u8::from(env("TENURE_TRY_NUMBER")?.parse::<u32>()? <= args.fail_tries);
    sign(&mut file, "end", &format!(" {code}"))?;
    Ok(ExitCode::from(code))
}

fn sign(file: &mut File, what: &str, more: &str) -> std::io::Result<()> {
    let (wall, boot) = (SystemClock.now(), SystemClock.boottime());
    let boot = boot.saturating_since(BootTime::since_boot(Duration::ZERO)).as_nanos();
    file.write_all(format!("{what} {} {boot}{more}\n", wall.as_nanosecond()).as_bytes())
}

/// Everything that tasks have left in a folder.
pub fn read_effects(folder: &Path) -> Result<Vec<Effect>> {
    let mut effects = vec![];
    for entry in std::fs::read_dir(folder).with_context(|| format!("reading {}", folder.display()))? {
        let path = entry?.path();
        let attempt = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        let text = std::fs::read_to_string(&path)?;
        let effect =
            read_effect(attempt, &text).with_context(|| format!("{} makes no sense", path.display()))?;
        effects.extend(effect);
    }
    effects.sort_by(|a, b| a.attempt.cmp(&b.attempt));
    Ok(effects)
}

/// `None`: it was killed before its first sign.
fn read_effect(attempt: String, text: &str) -> Result<Option<Effect>> {
    let mut effect = Effect { attempt, starts: vec![], seen_at: Timestamp::MIN, end: None };
    for line in text.lines() {
        let words: Vec<&str> = line.split(' ').collect();
        let [what, wall, _boot, more @ ..] = words.as_slice() else { anyhow::bail!("{line:?}") };
        let at = Timestamp::from_nanosecond(wall.parse()?)?;
        effect.seen_at = effect.seen_at.max(at);
        match (*what, more) {
            ("start", [dag, run, task]) => {
                effect.starts.push(Start { at, run: RunName::new(*dag, *run), task: (*task).to_owned() });
            }
            ("alive", []) => {}
            ("end", [code]) => effect.end = Some(End { at, code: code.parse()? }),
            _ => anyhow::bail!("{line:?}"),
        }
    }
    Ok((!effect.starts.is_empty()).then_some(effect))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn signs_are_read_back_and_a_second_start_is_seen() {
        let text = "start 1000 1 d r t\nalive 2000 2\nstart 3000 3 d r t\nend 4000 4 1\n";
        let effect = read_effect("a".into(), text).unwrap().unwrap();
        assert_eq!(effect.starts.len(), 2);
        assert_eq!(effect.seen_at.as_nanosecond(), 4000);
        assert_eq!(effect.end.unwrap().code, 1);
        assert_eq!(read_effect("a".into(), "").unwrap(), None);
        assert!(read_effect("a".into(), "start 1000").is_err());
    }
}
