//! What wakes a supervisor: signals, children, and the clock that counts suspend.

use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::pipe::PipeFlags;
use rustix::time::{Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags};
use signal_hook::consts::{SIGCHLD, SIGHUP, SIGINT, SIGTERM};
use tenure_clock::BootTime;

/// Signals as bytes in a pipe, so that one `poll` waits for them, for children and for time without a gap.
/// Handlers, unlike ignored signals, are not inherited by the task.
#[derive(Debug)]
pub(crate) struct Waking {
    wake: OwnedFd,
    /// Rings on time also when the machine has slept past it; the timeout of `poll` would sleep on.
    timer: OwnedFd,
    stop: Arc<AtomicBool>,
}

impl Waking {
    pub fn install() -> io::Result<Self> {
        let (wake, waker) = rustix::pipe::pipe_with(PipeFlags::CLOEXEC | PipeFlags::NONBLOCK)?;
        let stop = Arc::new(AtomicBool::new(false));
        // In this order: whoever is woken sees the flag.
        signal_hook::flag::register(SIGTERM, Arc::clone(&stop))?;
        signal_hook::low_level::pipe::register(SIGTERM, waker.try_clone()?)?;
        signal_hook::low_level::pipe::register(SIGCHLD, waker)?;
        for ignored in [SIGINT, SIGHUP] {
            signal_hook::flag::register(ignored, Arc::default())?;
        }
        let flags = TimerfdFlags::CLOEXEC | TimerfdFlags::NONBLOCK;
        let timer = rustix::time::timerfd_create(TimerfdClockId::Boottime, flags)?;
        Ok(Self { wake, timer, stop })
    }

    pub fn stop_requested(&self) -> bool {
        self.stop.load(Ordering::SeqCst)
    }

    /// Sleeps until a signal (true) or the deadline (false).
    pub fn wait_until(&self, deadline: Option<BootTime>) -> bool {
        self.ring_at(deadline);
        let mut fds = [PollFd::new(&self.wake, PollFlags::IN), PollFd::new(&self.timer, PollFlags::IN)];
        // An interrupted poll means that a handler has just written to the pipe.
        let woken = rustix::event::poll(&mut fds, None).is_err() || !fds[0].revents().is_empty();
        let mut bytes = [0; 64];
        if woken {
            // Emptied as far as it goes: what is left wakes again.
            let _ = rustix::io::read(&self.wake, &mut bytes);
        }
        woken
    }

    fn ring_at(&self, deadline: Option<BootTime>) {
        let zero = Timespec { tv_sec: 0, tv_nsec: 0 };
        let at = deadline.map_or(zero, |deadline| {
            let since_boot = deadline.saturating_since(BootTime::since_boot(Duration::ZERO));
            // Zero would mean «never».
            let nanos = i64::from(since_boot.subsec_nanos()).max(1);
            Timespec { tv_sec: since_boot.as_secs() as i64, tv_nsec: nanos }
        });
        let setting = Itimerspec { it_interval: zero, it_value: at };
        // Setting it anew also silences a ring that nobody has heard.
        rustix::time::timerfd_settime(&self.timer, TimerfdTimerFlags::ABSTIME, &setting)
            .expect("a timer takes any time");
    }
}
