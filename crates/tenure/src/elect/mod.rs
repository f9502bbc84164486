//! `tenure elect`: runs a program only while holding a lease.
//!
//! The wrapper campaigns and renews; a [`keeper`] process runs the command and kills it the moment its authority
//! ends. Promises: the command runs only between winning and the holder's own deadline; whatever happens to the
//! wrapper (SIGKILL, SIGSTOP, a starved machine), nothing of the command runs past that deadline; a lease is
//! given back only when nothing of the command is left. Not promised: that a write the command has sent earlier
//! does not arrive later. For that it has the epoch in its environment.
//!
//! Exit codes: the command's own; 73 when the lease was lost; 127 and 126 when the command cannot be found or
//! executed; 2 wrong usage; 3 the lease store cannot be reached at the start.

mod backend;
mod keeper;
mod link;
mod processes;
mod signals;
mod terminal;
mod voice;
mod ward;

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use clap::{Args, ValueEnum};
use rustix::process::Signal;
use tenure_clock::{Clock, Entropy, SystemClock};
use tenure_lease::{
    Campaign, Candidacy, Elector, ElectorConfig, ElectorParts, Failure as Problem, Holder, LeaseError,
    LeaseMetrics, LossReason, Scope, Session, Tenure, with_causes,
};
use tenure_model::duration;
use tracing_subscriber::EnvFilter;

use crate::cli::{Failure, Globals, NOT_THE_MASTER};
use crate::epochs::Epochs;
use backend::{Backend, Opened};
pub use keeper::run_hidden_subcommand;
use link::Cut;
use signals::{Signals, asks_to_end};
use voice::Voice;
use ward::{News, Program, Ward};

/// As shells have it.
const NOT_FOUND: u8 = 127;
const CANNOT_EXECUTE: u8 = 126;
/// How often the wait is looked at, for what is said about it. The elector itself is woken by changes.
const LOOK_EVERY: Duration = Duration::from_millis(200);
/// The keeper kills within milliseconds. One that has not answered by then is stopped itself.
const KEEPER_ANSWERS_WITHIN: Duration = Duration::from_millis(500);
/// Giving back a lease, or a place among the members, is a courtesy with a limit.
const FAREWELL: Duration = Duration::from_secs(2);

const HELP: &str = "\
Examples:
  tenure elect reports/leader --backend sqlite:leases.db -- ./reports.sh --daily
  tenure elect reports/leader --backend postgres://app@db/app -- ./reports.sh
  tenure elect reports/leader --backend etcd://10.0.0.1:2379,10.0.0.2:2379/lcm -- ./reports.sh
  tenure elect reports/leader -- ./reports.sh            leases of the Tenure server

The program finds TENURE_SCOPE, TENURE_EPOCH (a number), TENURE_TERM and TENURE_LEASE_DURATION_MS in its
environment. Let it pass the epoch with every write, and refuse a write whose epoch is below the highest seen:
a lease is permission to try, the epoch is what makes it safe.

Exit codes: the program's own (128 + N for signal N), 73 the lease was lost, 126 and 127 the program cannot be
executed or found, 2 wrong usage, 3 the lease store cannot be reached.";

#[derive(Clone, Debug, Args)]
#[command(after_help = HELP)]
pub struct ElectArgs {
    /// What to hold while the program runs, like reports/leader
    #[arg(value_parser = scope)]
    scope: Scope,
    /// How long the lease lasts without being renewed: a crash is noticed after that
    #[arg(long, env = "TENURE_LEASE_DURATION", default_value = "15s", value_name = "DURATION", value_parser = duration::parse)]
    lease_duration: Duration,
    /// Where the lease is kept [default: the Tenure server that all commands use]
    #[arg(long, env = "TENURE_BACKEND", hide_env_values = true, value_name = "URL", value_parser = Backend::parse)]
    backend: Option<Backend>,
    /// What others are told this holder is called [default: host:process]
    #[arg(long, value_name = "NAME", value_parser = name)]
    name: Option<String>,
    /// The component that this is a member of, for `tenure member list` [default: the scope]
    #[arg(long, value_name = "COMPONENT", value_parser = scope)]
    component: Option<Scope>,
    /// A remark that others can read
    #[arg(long, value_name = "TEXT", default_value = "")]
    note: String,
    /// Send SIGTERM this long before the lease runs out unrenewed, and SIGKILL then; by default SIGKILL alone
    #[arg(long, value_name = "DURATION", default_value = "0s", value_parser = duration::parse)]
    kill_after: Duration,
    /// Take over as soon as the holder's process is seen to die, instead of when its lease runs out; right when
    /// the program fences its writes with the epoch
    #[arg(long)]
    fast_failover: bool,
    /// How epochs are minted on Postgres; other backends have their own way
    #[arg(long, env = "TENURE_EPOCHS", value_enum, value_name = "HOW", default_value_t)]
    epochs: Epochs,
    /// When the lease is lost: end with exit code 73, or stand for it again
    #[arg(long, value_enum, value_name = "WHAT", default_value = "exit")]
    on_loss: OnLoss,
    /// The program and its arguments
    #[arg(last = true, required = true, value_name = "COMMAND")]
    command: Vec<OsString>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum OnLoss {
    /// End with exit code 73
    Exit,
    /// Wait until the lease can be had again
    Retry,
}

fn scope(text: &str) -> Result<Scope, String> {
    Scope::parse(text).map_err(|error| error.to_string())
}

/// A member's seat is a scope of its own, named after the holder.
fn name(text: &str) -> Result<String, String> {
    match Scope::parse(text) {
        Ok(_) if text.contains('/') => Err("a name holds no /".into()),
        Ok(_) => Ok(text.to_owned()),
        Err(error) => Err(error.to_string().replace("scope", "name")),
    }
}

pub fn host_name() -> String {
    let name = rustix::system::uname().nodename().to_string_lossy().into_owned();
    if name.is_empty() { "localhost".into() } else { name }
}

/// `host:process`.
pub fn own_name() -> String {
    format!("{}:{}", host_name(), std::process::id())
}

pub fn run(args: &ElectArgs, globals: &Globals) -> ExitCode {
    start_logging();
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build();
    let runtime = match runtime {
        Ok(runtime) => runtime,
        Err(error) => {
            eprintln!("error: the runtime cannot be started: {error}");
            return ExitCode::FAILURE;
        }
    };
    let exit = runtime.block_on(elect(args, globals));
    // A call to a store that does not answer must not keep the process.
    runtime.shutdown_background();
    exit.unwrap_or_else(|failure| {
        if !matches!(failure, Failure::Told(_)) {
            eprintln!("error: {failure}");
        }
        failure.exit_code()
    })
}

/// `TENURE_LOG` takes tracing's filter syntax, like `debug`.
fn start_logging() {
    let filter = EnvFilter::try_from_env("TENURE_LOG").unwrap_or_else(|_| EnvFilter::new("error"));
    tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr).with_target(false).init();
}

async fn elect(args: &ElectArgs, globals: &Globals) -> Result<ExitCode, Failure> {
    let program = Program {
        path: find_program(&args.command[0])?,
        words: args.command.clone(),
        kill_after: args.kill_after,
    };
    let clock: Arc<dyn Clock> = Arc::new(SystemClock);
    let entropy = Entropy::from_os();
    let config = config(args, &entropy)?;
    // From here on a signal ends the wait in order.
    let mut signals = Signals::install()?;
    let backend = args.backend.clone().unwrap_or(Backend::Server(None));
    let opening = async {
        let opened = backend.open(globals, args.epochs, &clock, &entropy).await?;
        // A wrong token or a store without tables shows now, not in a wait without end.
        opened.leases.find_lease(&args.scope).await.map_err(not_opened)?;
        Ok::<Opened, Failure>(opened)
    };
    let Opened { leases, fences, place } = tokio::select! {
        opened = opening => opened?,
        signal = ending(&mut signals) => return Ok(exit_by(signal)),
    };
    let parts = ElectorParts { leases, fences, clock, entropy, metrics: LeaseMetrics::default() };
    let elector = Elector::start(parts, config).map_err(|error| Failure::Usage(with_causes(&error)))?;
    let candidacy = elector.campaign(Campaign {
        component: args.component.as_ref().unwrap_or(&args.scope).to_string(),
        scopes: vec![args.scope.clone()],
        note: args.note.clone(),
        sole_instance: false,
    });
    let mut stand = Stand { args, program, candidacy: Some(candidacy), signals, voice: Voice::new(), place };
    let exit = stand.stand(&elector).await;
    // What was won but never worked under goes back too, and so does the place among the members.
    drop(stand);
    if tokio::time::timeout(FAREWELL, elector.stop()).await.is_err() {
        eprintln!("tenure: the lease store does not answer; what is held there runs out by itself");
    }
    exit
}

/// As the HTTP API has it.
const LONGEST_LEASE: Duration = Duration::from_secs(24 * 60 * 60);

fn config(args: &ElectArgs, entropy: &Entropy) -> Result<ElectorConfig, Failure> {
    let name = args.name.clone().unwrap_or_else(own_name);
    // Without the process id: restarts come back to the seat they had, and leave no new names behind.
    let instance = args.name.clone().unwrap_or_else(host_name);
    let holder = Holder { instance, name, session: Session(entropy.uuid(SystemClock.now())), address: None };
    if args.lease_duration > LONGEST_LEASE {
        return Err(Failure::Usage(format!(
            "--lease-duration {} is longer than {}: for that long a frozen holder would block the scope",
            duration::format(args.lease_duration),
            duration::format(LONGEST_LEASE)
        )));
    }
    if args.scope.as_member().is_some() {
        return Err(Failure::Usage(format!(
            "{} is a member's seat, which candidates take by themselves: choose another scope",
            args.scope
        )));
    }
    let mut config = ElectorConfig::new(holder, args.lease_duration);
    config.crash_hints = args.fast_failover;
    // A warning must not come while the first renewal may still be under way.
    let longest = (config.duration / 3).saturating_sub(config.margin);
    if args.kill_after > longest {
        let [kill_after, longest, lasts, margin] =
            [args.kill_after, longest, config.duration, config.margin].map(duration::format);
        return Err(Failure::Usage(format!(
            "--kill-after {kill_after} is too long for a lease of {lasts}: a renewal may take until two thirds of it \
             have passed, the program must be gone {margin} before its end, and that leaves {longest}"
        )));
    }
    Ok(config)
}

fn not_opened(error: LeaseError) -> Failure {
    match error {
        LeaseError::Refused(_) => Failure::Failed(with_causes(&error)),
        LeaseError::Unavailable(_) | LeaseError::Ambiguous(_) => Failure::Unreachable(with_causes(&error)),
    }
}

/// Looked up before anything is campaigned for: a program that is not there can never lead.
fn find_program(name: &OsString) -> Result<PathBuf, Failure> {
    let executable =
        |path: &Path| path.is_file() && rustix::fs::access(path, rustix::fs::Access::EXEC_OK).is_ok();
    let missing = |why: String, code| {
        eprintln!("error: {}: {why}", name.display());
        Err(Failure::Told(code))
    };
    let given = Path::new(name);
    if given.components().count() > 1 || name.is_empty() {
        return match (executable(given), given.exists()) {
            (true, _) => Ok(given.to_owned()),
            (false, true) => {
                missing("it may not be executed (chmod +x makes a script executable)".into(), CANNOT_EXECUTE)
            }
            (false, false) => missing("there is no such program".into(), NOT_FOUND),
        };
    }
    let search = std::env::var_os("PATH").unwrap_or_default();
    match std::env::split_paths(&search).map(|folder| folder.join(given)).find(|path| executable(path)) {
        Some(path) => Ok(path),
        None => missing(
            format!(
                "there is no such program in PATH ({}); one in this folder is written ./NAME",
                search.display()
            ),
            NOT_FOUND,
        ),
    }
}

fn exit_by(signal: Signal) -> ExitCode {
    ExitCode::from(128 + signal.as_raw() as u8)
}

/// Resolves with the first signal that asks to end. For as long as there is no command to pass signals on to.
async fn ending(signals: &mut Signals) -> Signal {
    loop {
        let signal = signals.next().await;
        match signal {
            Signal::TERM | Signal::INT | Signal::HUP | Signal::QUIT => return signal,
            Signal::TSTP if terminal::somebody_can_resume() => stop_self(),
            _ => {}
        }
    }
}

/// Stops this process as the signal would have, had nobody listened to it. A renewal is then nobody's business,
/// and the keeper ends the command at the deadline.
fn stop_self() {
    let _ = rustix::process::kill_process(rustix::process::getpid(), Signal::STOP);
}

/// How one term under the lease ended.
enum Outcome {
    /// By itself, or because it was asked to end.
    Ended(u8),
    Lost,
}

struct Stand<'a> {
    args: &'a ElectArgs,
    program: Program,
    /// Withdrawn as soon as there is no use for another term.
    candidacy: Option<Candidacy>,
    signals: Signals,
    voice: Voice,
    /// Where the lease is kept, for people.
    place: String,
}

/// Why a wait has ended without a term.
enum NoElection {
    Signal(Signal),
    Refused(String),
}

impl Stand<'_> {
    async fn stand(&mut self, elector: &Elector) -> Result<ExitCode, Failure> {
        loop {
            let tenure = match self.wait(elector).await {
                Ok(Some(tenure)) => tenure,
                Ok(None) => return Err(Failure::Failed("the elector has stopped".into())),
                Err(NoElection::Signal(signal)) => return Ok(exit_by(signal)),
                Err(NoElection::Refused(why)) => return Err(Failure::Failed(why)),
            };
            match self.lead(&tenure).await? {
                Outcome::Ended(code) => {
                    // Nothing of the command is left: now, and not before, somebody else may have it.
                    self.give_back(&tenure).await;
                    return Ok(ExitCode::from(code));
                }
                Outcome::Lost if self.args.on_loss == OnLoss::Exit => {
                    return Ok(ExitCode::from(NOT_THE_MASTER));
                }
                Outcome::Lost => {}
            }
        }
    }

    async fn give_back(&self, tenure: &Tenure) {
        if tokio::time::timeout(FAREWELL, tenure.resign()).await.is_err() {
            self.voice.say("the lease store does not answer; the lease runs out by itself");
        }
    }

    /// The term, or what ended the wait.
    async fn wait(&mut self, elector: &Elector) -> Result<Option<Tenure>, NoElection> {
        let scope = &self.args.scope;
        let Some(candidacy) = &mut self.candidacy else { return Ok(None) };
        let mut rhythm = tokio::time::interval(LOOK_EVERY);
        rhythm.tick().await; // most are elected before there is anything to say
        let elected = loop {
            tokio::select! {
                biased;
                signal = ending(&mut self.signals) => break Err(NoElection::Signal(signal)),
                tenure = candidacy.elected() => break Ok(tenure),
                _ = rhythm.tick() => {
                    let status = elector.scope_status(scope);
                    // What is refused once is refused again: a wrong token, a scope that belongs to the server.
                    if let Some(Problem::Refused(why)) = status.as_ref().and_then(|status| status.problem.clone()) {
                        break Err(NoElection::Refused(why));
                    }
                    self.voice.waiting(scope.as_str(), status.as_ref());
                }
            }
        };
        self.voice.waited();
        elected
    }

    /// Runs the command under this term. When it returns, nothing of the command is left.
    async fn lead(&mut self, tenure: &Tenure) -> Result<Outcome, Failure> {
        let (scope, epoch) = (tenure.scope(), tenure.epoch());
        let name = self.program.words[0].display();
        let how = voice::how(tenure.record().succession);
        let place = &self.place;
        self.voice.say(&format!("leading {scope} at {epoch} in {place} ({how}); starting {name}"));
        let environment = [
            ("TENURE_SCOPE", scope.to_string()),
            ("TENURE_EPOCH", epoch.0.to_string()),
            ("TENURE_TERM", tenure.term().to_string()),
            ("TENURE_LEASE_DURATION_MS", self.args.lease_duration.as_millis().to_string()),
        ];
        let mut renewals = tenure.renewals();
        renewals.mark_changed(); // one that came before this line counts
        let ward = Ward::start(&self.program, &environment, tenure.valid_until());
        let mut ward =
            ward.map_err(|error| Failure::Failed(format!("the keeper cannot be started: {error}")))?;
        let mut asked_to_end = false;
        let mut killed = false;
        loop {
            tokio::select! {
                biased;
                () = tenure.lost().cancelled(), if !killed => {
                    ward.kill();
                    killed = true;
                    if self.args.on_loss == OnLoss::Exit {
                        self.candidacy = None; // a term that nobody works under would only keep others waiting
                    }
                }
                news = ward.next() => match news {
                    News::Stopped if terminal::somebody_can_resume() => stop_job(),
                    News::Stopped => ward.resume(),
                    News::Ended { end, cut: None } => return Ok(Outcome::Ended(end.exit_code())),
                    News::Ended { cut: Some(Cut::Ordered), end } if !tenure.lost().is_cancelled() => {
                        return Ok(Outcome::Ended(end.exit_code()));
                    }
                    News::Ended { cut: Some(Cut::Warned), .. } if !tenure.lost().is_cancelled() => {
                        let scope = tenure.scope();
                        self.voice.say(&format!("giving {scope} up: the command has ended because it was asked to"));
                        self.give_back(tenure).await;
                        return Ok(Outcome::Lost);
                    }
                    News::Ended { .. } => {
                        self.voice.say(&lost_text(tenure));
                        return Ok(Outcome::Lost);
                    }
                    News::KeeperDied if tenure.lost().is_cancelled() => {
                        self.voice.say(&lost_text(tenure));
                        return Ok(Outcome::Lost);
                    }
                    News::KeeperDied => {
                        self.voice.say("the process that keeps the command has died, so the command was killed");
                        return Ok(Outcome::Ended(link::End::Signal(Signal::KILL.as_raw()).exit_code()));
                    }
                },
                signal = self.signals.next() => match signal {
                    Signal::TSTP if !terminal::somebody_can_resume() => {}
                    Signal::TSTP => {
                        ward.signal(signal);
                        stop_self();
                    }
                    Signal::CONT => ward.resume(),
                    _ if asks_to_end(signal) && asked_to_end => {
                        self.voice.say("asked to end for the second time: the command is killed");
                        ward.kill();
                        killed = true;
                    }
                    _ => {
                        ward.signal(signal);
                        asked_to_end |= asks_to_end(signal);
                    }
                },
                Ok(()) = renewals.changed() => {
                    let until = *renewals.borrow_and_update();
                    ward.extend(until);
                }
                () = tokio::time::sleep(KEEPER_ANSWERS_WITHIN), if killed => ward.kill_by_force(),
            }
        }
    }
}

fn lost_text(tenure: &Tenure) -> String {
    let why = tenure.why_lost().unwrap_or(&LossReason::DeadlinePassed);
    format!("lost {} at {}: {why}; the command was killed", tenure.scope(), tenure.epoch())
}

/// Ctrl-Z has stopped the command; the rest of the shell's job follows, and this process with it.
fn stop_job() {
    let _ = rustix::process::kill_current_process_group(Signal::TSTP);
}

#[cfg(test)]
mod tests;
