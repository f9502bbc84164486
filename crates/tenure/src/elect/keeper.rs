//! The process between the wrapper and the command: the command never outlives its authority.
//!
//! The wrapper talks to a lease store and may be killed, frozen or starved while it does. The keeper talks to
//! nobody but the wrapper: it starts the command in a process group of its own and kills it with SIGKILL when the
//! wrapper says so, when the wrapper dies (the pipe ends), and when the latest deadline passes without a later
//! one, which is what a frozen wrapper looks like. It is the subreaper of all that the command starts, so
//! nothing escapes by leaving the group.
//!
//! Single-threaded and without a runtime. Deadlines are moments of CLOCK_BOOTTIME, on a timer that counts
//! suspend. It lives in a group of its own, where neither the terminal nor a signal to the wrapper's job
//! reaches it. Should it be killed itself, the command's first process dies with it, and the wrapper kills
//! the rest.
//!
//! Does not promise: anything about a process that has gained other rights (sudo, setuid), for nobody may
//! kill it; or what happens while the keeper itself is stopped.

use std::ffi::OsString;
use std::io::{self, Write};
use std::os::fd::OwnedFd;
use std::os::unix::process::CommandExt;
use std::process::{Command, ExitCode};
use std::sync::Arc;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags};
use rustix::pipe::PipeFlags;
use rustix::process::{Pid, Signal, WaitId, WaitIdOptions, WaitIdStatus};
use rustix::time::{Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, Timespec};
use signal_hook::consts::SIGCHLD;
use tenure_clock::{BootTime, Clock, SystemClock};

use super::link::{Cut, End, Order, Orders, Report, Reports};
use super::processes::Ties;
use super::terminal::Terminal;
use super::{CANNOT_EXECUTE, NOT_FOUND, processes, signals};

/// `<executable> __keep WRAPPER ORDERS REPORTS KILL_AFTER_MS PROGRAM NAME [ARGUMENT]…`
pub const KEEP: &str = "__keep";
/// `<executable> __become KEEPER PROGRAM NAME [ARGUMENT]…`: ties its life to the keeper's, then is the command.
const BECOME: &str = "__become";

/// Runs the hidden subcommand this process was started for, if it was. Before anything else in `main`.
pub fn run_hidden_subcommand() -> Option<ExitCode> {
    let mut arguments = std::env::args_os().skip(1);
    let body = match arguments.next()?.to_str()? {
        KEEP => keep,
        BECOME => become_command,
        _ => return None,
    };
    Some(body(&mut arguments).unwrap_or_else(|| {
        eprintln!("tenure: this is for the own use of tenure elect");
        ExitCode::from(2)
    }))
}

fn keep(arguments: &mut dyn Iterator<Item = OsString>) -> Option<ExitCode> {
    let mut number = || arguments.next()?.to_str()?.parse::<i32>().ok();
    let (wrapper, orders, reports, kill_after) = (number()?, number()?, number()?, number()?);
    let kill_after = Duration::from_millis(kill_after.try_into().ok()?);
    let command: Vec<OsString> = arguments.collect();
    Some(match try_keep(Pid::from_raw(wrapper)?, orders, reports, kill_after, &command) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            say(&format!("the keeper failed: {error}"));
            ExitCode::FAILURE
        }
    })
}

fn try_keep(
    wrapper: Pid,
    orders: i32,
    reports: i32,
    kill_after: Duration,
    command: &[OsString],
) -> io::Result<()> {
    let wake = Wake::install()?;
    let group = Ties::of(wrapper.as_raw_pid()).and_then(|ties| Pid::from_raw(ties.group));
    let terminal = group.and_then(Terminal::of);
    rustix::process::setpgid(None, None)?;
    rustix::process::set_child_subreaper(Some(rustix::process::getpid()))?;
    let mut orders = Orders::open(wrapper.as_raw_pid(), orders)?;
    let mut reports = Reports::open(wrapper.as_raw_pid(), reports)?;
    if rustix::process::getppid() != Some(wrapper) {
        return Ok(()); // it died before anything was started, and its number may be another's by now
    }
    let until = match first_deadline(&mut orders, &wake)? {
        Ok(until) => until,
        Err(cut) => {
            reports.send(&Report::Ended { end: End::Signal(Signal::KILL.as_raw()), cut: Some(cut) });
            return Ok(());
        }
    };
    let command = start(command)?;
    if let Some(terminal) = terminal {
        terminal.lend(command);
    }
    reports.send(&Report::Started(command.as_raw_pid()));
    let mut keeper = Keeper {
        command,
        until,
        kill_after,
        warned: false,
        asked_to_end: false,
        terminal,
        orders,
        reports,
        wake,
    };
    let cut = keeper.guard();
    keeper.bury(cut);
    Ok(())
}

/// Or why nothing is started.
fn first_deadline(orders: &mut Orders, wake: &Wake) -> io::Result<Result<BootTime, Cut>> {
    loop {
        for order in orders.take() {
            match order {
                Order::Until(nanos) => {
                    let until = BootTime::since_boot(Duration::from_nanos(nanos));
                    return Ok(if SystemClock.boottime() < until { Ok(until) } else { Err(Cut::Deadline) });
                }
                Order::Kill => return Ok(Err(Cut::Ordered)),
                Order::Signal(_) | Order::Resume => {}
            }
        }
        if orders.closed {
            return Ok(Err(Cut::WrapperDied));
        }
        wake.wait(orders, None)?;
    }
}

fn start(command: &[OsString]) -> io::Result<Pid> {
    let child = Command::new("/proc/self/exe")
        .arg0("tenure")
        .arg(BECOME)
        .arg(std::process::id().to_string())
        .args(command)
        .process_group(0)
        .spawn()?;
    Ok(Pid::from_child(&child)) // nobody but `bury` reaps it
}

fn become_command(arguments: &mut dyn Iterator<Item = OsString>) -> Option<ExitCode> {
    let keeper: i32 = arguments.next()?.to_str()?.parse().ok()?;
    let (program, name) = (arguments.next()?, arguments.next()?);
    if let Err(error) = rustix::process::set_parent_process_death_signal(Some(Signal::KILL)) {
        say(&format!("the command cannot be tied to its keeper: {error}"));
        return Some(ExitCode::from(CANNOT_EXECUTE));
    }
    if rustix::process::getppid().map(Pid::as_raw_pid) != Some(keeper) {
        return Some(ExitCode::FAILURE); // the keeper died before the tie held
    }
    let error = Command::new(&program).arg0(&name).args(arguments).exec();
    say(&format!("{} cannot be executed: {error}", program.display()));
    Some(ExitCode::from(match error.kind() {
        io::ErrorKind::NotFound => NOT_FOUND,
        _ => CANNOT_EXECUTE,
    }))
}

struct Keeper {
    command: Pid,
    until: BootTime,
    kill_after: Duration,
    /// SIGTERM was sent because this deadline came near.
    warned: bool,
    /// It was sent at any time: the command's end is not its own decision any more.
    asked_to_end: bool,
    terminal: Option<Terminal>,
    orders: Orders,
    reports: Reports,
    wake: Wake,
}

impl Keeper {
    /// Until the command has ended by itself, or must.
    fn guard(&mut self) -> Option<Cut> {
        loop {
            if self.obey() {
                return Some(Cut::Ordered);
            }
            if self.ended(WaitIdOptions::NOHANG | WaitIdOptions::NOWAIT).is_some() {
                return self.asked_to_end.then_some(Cut::Warned);
            }
            if self.orders.closed {
                return Some(Cut::WrapperDied);
            }
            let now = SystemClock.boottime();
            if now >= self.until {
                return Some(Cut::Deadline);
            }
            let warn_at = self
                .until
                .checked_sub(self.kill_after)
                .filter(|_| !self.kill_after.is_zero() && !self.warned);
            if warn_at.is_some_and(|at| now >= at) {
                say("the lease was not renewed in time: the command is asked to end");
                (self.warned, self.asked_to_end) = (true, true);
                self.signal(Signal::TERM);
                continue;
            }
            self.notice_stop();
            self.reap_adopted();
            if let Err(error) = self.wake.wait(&self.orders, Some(warn_at.unwrap_or(self.until))) {
                say(&format!("the keeper cannot wait: {error}"));
                return Some(Cut::Ordered);
            }
        }
    }

    /// True when the command must end.
    fn obey(&mut self) -> bool {
        for order in self.orders.take() {
            match order {
                Order::Until(nanos) => {
                    let later = BootTime::since_boot(Duration::from_nanos(nanos));
                    self.warned &= later <= self.until;
                    self.until = self.until.max(later);
                }
                Order::Signal(number) => {
                    if let Some(signal) = Signal::from_named_raw(number) {
                        self.signal(signal);
                    }
                }
                Order::Resume => {
                    if let Some(terminal) = self.terminal {
                        terminal.lend(self.command);
                    }
                    self.signal(Signal::CONT);
                }
                Order::Kill => return true,
            }
        }
        false
    }

    /// Ctrl-Z reaches the command's group alone; the wrapper's job has to hear of it. So has the shell when a
    /// command in the background reaches for the terminal.
    fn notice_stop(&mut self) {
        let Some(terminal) = self.terminal else { return };
        let by_terminal = [Signal::TSTP, Signal::TTIN, Signal::TTOU].map(|signal| Some(signal.as_raw()));
        let options = WaitIdOptions::STOPPED | WaitIdOptions::NOHANG;
        let stop = rustix::process::waitid(WaitId::Pid(self.command), options).ok().flatten();
        let Some(signal) =
            stop.map(|stop| stop.stopping_signal()).filter(|signal| by_terminal.contains(signal))
        else {
            return;
        };
        if signal != Some(Signal::TSTP.as_raw()) && terminal.lend(self.command) {
            self.signal(Signal::CONT); // it was a moment too early: the terminal is its own now
            return;
        }
        terminal.take_back(self.command);
        self.reports.send(&Report::Stopped);
    }

    /// Kills whatever is left, and says how the command ended.
    fn bury(&mut self, cut: Option<Cut>) {
        // Until it is reaped the command keeps its number, so the group that is killed is its own.
        self.signal(Signal::KILL);
        let status = self.wait_for_death();
        if let Some(terminal) = self.terminal {
            terminal.take_back(self.command);
        }
        let undying = processes::end_all_children();
        match cut {
            Some(Cut::WrapperDied) => say("tenure elect has died: the command was killed"),
            Some(Cut::Deadline) => say("the lease was not renewed in time: the command was killed"),
            Some(Cut::Ordered | Cut::Warned) | None => {}
        }
        if !undying.is_empty() {
            say(&format!("these processes of the command do not die: {undying:?}"));
        }
        let end = status.map_or(End::Signal(Signal::KILL.as_raw()), |status| end_of(&status));
        self.reports.send(&Report::Ended { end, cut });
    }

    /// `None` for a command that cannot be killed, because it has gained other rights.
    fn wait_for_death(&self) -> Option<WaitIdStatus> {
        let deadline = SystemClock.boottime() + processes::KILL_PATIENCE;
        loop {
            let status = self.ended(WaitIdOptions::NOHANG | WaitIdOptions::NOWAIT);
            if status.is_some() || SystemClock.boottime() >= deadline {
                return status;
            }
            std::thread::sleep(processes::KILL_AGAIN_EVERY);
        }
    }

    fn ended(&self, options: WaitIdOptions) -> Option<WaitIdStatus> {
        loop {
            match rustix::process::waitid(WaitId::Pid(self.command), WaitIdOptions::EXITED | options) {
                Err(rustix::io::Errno::INTR) => {}
                answer => return answer.expect("the command is our child until we reap it"),
            }
        }
    }

    /// Orphans of the command become children of the subreaper; the dead among them must not pile up.
    fn reap_adopted(&self) {
        let adopted = processes::own_children().into_iter().filter_map(Pid::from_raw);
        for pid in adopted.filter(|pid| *pid != self.command) {
            let _ = rustix::process::waitid(WaitId::Pid(pid), WaitIdOptions::EXITED | WaitIdOptions::NOHANG);
        }
    }

    fn signal(&self, signal: Signal) {
        // Fails only when the group is empty already.
        let _ = rustix::process::kill_process_group(self.command, signal);
    }
}

fn end_of(status: &WaitIdStatus) -> End {
    match (status.exit_status(), status.terminating_signal()) {
        (Some(code), _) => End::Code(code),
        (None, Some(signal)) => End::Signal(signal),
        (None, None) => unreachable!("only exits were waited for"),
    }
}

/// What ends a wait: an order, the end of a child, a moment.
struct Wake {
    signals: OwnedFd,
    timer: OwnedFd,
}

impl Wake {
    fn install() -> io::Result<Self> {
        let (signals, waker) = rustix::pipe::pipe_with(PipeFlags::CLOEXEC | PipeFlags::NONBLOCK)?;
        signal_hook::low_level::pipe::register(SIGCHLD, waker)?;
        // A signal to all processes of a service must not end the one that guards the command. Handlers,
        // unlike ignored signals, are not inherited.
        for signal in signals::not_ignored(&signals::PASSED_ON) {
            signal_hook::flag::register(signal.as_raw(), Arc::default())?;
        }
        let timer = rustix::time::timerfd_create(TimerfdClockId::Boottime, TimerfdFlags::CLOEXEC)?;
        Ok(Self { signals, timer })
    }

    fn wait(&self, orders: &Orders, until: Option<BootTime>) -> io::Result<()> {
        let nothing = Timespec { tv_sec: 0, tv_nsec: 0 };
        // A timer of zero is switched off; setting it anew forgets that it has fired.
        let at = until.map_or(nothing, |until| {
            let at =
                until.saturating_since(BootTime::since_boot(Duration::ZERO)).max(Duration::from_nanos(1));
            Timespec { tv_sec: at.as_secs() as i64, tv_nsec: i64::from(at.subsec_nanos()) }
        });
        let once = Itimerspec { it_interval: nothing, it_value: at };
        rustix::time::timerfd_settime(&self.timer, TimerfdTimerFlags::ABSTIME, &once)?;
        let mut fds = [
            PollFd::new(&self.signals, PollFlags::IN),
            PollFd::new(&self.timer, PollFlags::IN),
            PollFd::new(orders, PollFlags::IN),
        ];
        match rustix::event::poll(&mut fds, None) {
            // An interrupted poll means that a handler has just written to the pipe.
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
        let mut bytes = [0; 64];
        let _ = rustix::io::read(&self.signals, &mut bytes); // empty as often as not
        Ok(())
    }
}

/// Standard error is the command's, and may be gone.
fn say(text: &str) {
    let _ = writeln!(io::stderr(), "tenure: {text}");
}
