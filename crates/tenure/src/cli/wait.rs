//! Waits for a run to end. The wait is only a view: whatever becomes of it, the run goes on.

use std::time::Duration;

use tenure_clock::{BootTime, Clock, SystemClock};

use super::Context;
use super::client::Client;
use super::failure::{FAILED, Failure};
use super::progress::{Display, Progress};
use super::screen::{self, Screen, elapsed};

/// How long the server may hold an answer back while nothing changes.
const POLL: Duration = Duration::from_secs(20);
/// A server that restarts, or fails over, is back well within this.
const SERVER_BACK_WITHIN: Duration = Duration::from_secs(60);
const RETRY_EVERY: Duration = Duration::from_millis(500);
/// As shells count it: 128 + SIGINT.
const INTERRUPTED: i32 = 130;

pub fn until_ended(
    client: &Client,
    dag: &str,
    run_id: &str,
    timeout: Option<Duration>,
    context: &Context,
) -> Result<(), Failure> {
    let mut display = Display::new(&context.screen, &format!("{dag} {run_id}"));
    say_goodbye_on_ctrl_c(&display, dag, run_id);
    let mut follower =
        Follower { client, dag, run_id, deadline: timeout.map(|timeout| SystemClock.boottime() + timeout) };
    let outcome = follower.follow(&mut display);
    display.finish();
    let progress = outcome?;
    report(&progress, dag, run_id, context)?;
    match progress.succeeded() {
        true => Ok(()),
        false => Err(Failure::Told(FAILED)),
    }
}

struct Follower<'a> {
    client: &'a Client,
    dag: &'a str,
    run_id: &'a str,
    deadline: Option<BootTime>,
}

impl Follower<'_> {
    /// The run as it was last seen: ended, or still on its way when time ran out.
    fn follow(&mut self, display: &mut Display) -> Result<Progress, Failure> {
        let mut last: Option<Progress> = None;
        loop {
            let now = SystemClock.boottime();
            let left = self.deadline.map_or(POLL, |deadline| deadline.saturating_since(now));
            if let (Some(progress), true) = (&last, left.is_zero()) {
                return Ok(progress.clone());
            }
            let revision = last.as_ref().map(|progress| progress.revision);
            let progress = self.patiently(revision, left.min(POLL), display)?;
            display.update(&progress);
            if progress.is_finished() {
                return Ok(progress);
            }
            last = Some(progress);
        }
    }

    /// A server that is away for a moment is no reason to leave a run alone.
    fn patiently(
        &self,
        revision: Option<i64>,
        wait: Duration,
        display: &Display,
    ) -> Result<Progress, Failure> {
        let away_since = SystemClock.boottime();
        let mut told = false;
        loop {
            let failure = match self.ask(revision, wait) {
                Ok(progress) => return Ok(progress),
                Err(failure) => failure,
            };
            let may_pass =
                matches!(failure, Failure::Unreachable(_) | Failure::Refused { status: 502..=504, .. });
            if !may_pass || SystemClock.boottime().saturating_since(away_since) > SERVER_BACK_WITHIN {
                return Err(failure);
            }
            if !told {
                display.remark(&format!("{failure}; trying again"));
                told = true;
            }
            std::thread::sleep(RETRY_EVERY);
        }
    }

    fn ask(&self, revision: Option<i64>, wait: Duration) -> Result<Progress, Failure> {
        match revision {
            None => Progress::of(self.client, self.dag, self.run_id),
            Some(revision) => Progress::after(self.client, self.dag, self.run_id, revision, wait),
        }
    }
}

fn report(progress: &Progress, dag: &str, run_id: &str, context: &Context) -> Result<(), Failure> {
    if !progress.is_finished() {
        eprintln!("stopped waiting; the run goes on: tenure run show {dag} {run_id}");
    }
    match context.screen.is_json() {
        true => screen::json(&progress.contract(dag, run_id)),
        false => screen::say(&summary(&context.screen, progress, dag, run_id)),
    }
}

fn summary(screen: &Screen, progress: &Progress, dag: &str, run_id: &str) -> String {
    let took = progress.started_at.map_or_else(String::new, |started| {
        let until = progress.ended_at.unwrap_or(screen.now);
        format!(" after {}", elapsed(started, until))
    });
    let reason = progress.reason.as_ref().map_or_else(String::new, |reason| format!(": {reason}"));
    let mut text = format!("run {run_id} of {dag}: {}{took}{reason}", screen.painted(&progress.state));
    for task in progress.of_state("failed") {
        let reason = task.reason.as_deref().unwrap_or("failed");
        text.push_str(&format!(
            "\n  {}: {reason}; its output: tenure task logs {dag} {run_id} {}",
            task.name(),
            task.id
        ));
    }
    text
}

/// The request in flight cannot be interrupted, so the message comes from a thread of its own.
fn say_goodbye_on_ctrl_c(display: &Display, dag: &str, run_id: &str) {
    let clean = display.cleaner();
    let goodbye = format!(
        "\nno longer waiting; the run goes on\n  look at it: tenure run show {dag} {run_id}\n  end it:     tenure run cancel {dag} {run_id}"
    );
    std::thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_io().build();
        // Without a handler Ctrl-C still ends the wait, only without the message.
        let Ok(runtime) = runtime else { return };
        if runtime.block_on(tokio::signal::ctrl_c()).is_ok() {
            clean();
            eprintln!("{goodbye}");
            std::process::exit(INTERRUPTED);
        }
    });
}
