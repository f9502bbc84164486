//! Which signals the wrapper passes on, and how it hears of them.

use std::io;

use rustix::process::Signal;
use tokio::signal::unix::SignalKind;
use tokio::sync::mpsc;

/// All that a person, a shell or a service manager sends to a program it has started.
pub const PASSED_ON: [Signal; 9] = [
    Signal::TERM,
    Signal::INT,
    Signal::HUP,
    Signal::QUIT,
    Signal::USR1,
    Signal::USR2,
    Signal::WINCH,
    Signal::TSTP,
    Signal::CONT,
];

/// Who started us may have ignored some (`nohup`, a background job of a script): it stays that way, for us
/// and for the command, which inherits it.
pub fn not_ignored(signals: &[Signal]) -> Vec<Signal> {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let mask = ignored_mask(&status);
    signals.iter().copied().filter(|signal| mask & (1 << (signal.as_raw() - 1)) == 0).collect()
}

fn ignored_mask(status: &str) -> u64 {
    let line = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    line.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok()).unwrap_or(0)
}

/// True for the signals that ask a program to end.
pub fn asks_to_end(signal: Signal) -> bool {
    [Signal::TERM, Signal::INT].contains(&signal)
}

/// The signals that arrive from now on.
#[derive(Debug)]
pub struct Signals(mpsc::Receiver<Signal>);

impl Signals {
    /// Needs a runtime.
    pub fn install() -> io::Result<Self> {
        let (arrived, signals) = mpsc::channel(64);
        for signal in not_ignored(&PASSED_ON) {
            let mut stream = tokio::signal::unix::signal(SignalKind::from_raw(signal.as_raw()))?;
            let arrived = arrived.clone();
            tokio::spawn(async move {
                while stream.recv().await.is_some() && arrived.send(signal).await.is_ok() {}
            });
        }
        Ok(Self(signals))
    }

    pub async fn next(&mut self) -> Signal {
        match self.0.recv().await {
            Some(signal) => signal,
            None => std::future::pending().await, // all of them are ignored
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_mask_of_ignored_signals_is_read() {
        assert_eq!(ignored_mask("Name:\tx\nSigIgn:\t0000000000001006\nSigCgt:\t0\n"), 0x1006);
        assert_eq!(ignored_mask(""), 0);
    }
}
