//! The terminal that the command reads from, when there is one.
//!
//! The command has a process group of its own, and only the foreground group may read from a terminal. So the
//! keeper lends it the place that the wrapper has, and takes it back at the end or when Ctrl-Z has stopped it.

use rustix::process::Pid;

use super::processes::Ties;

#[derive(Clone, Copy, Debug)]
pub struct Terminal {
    /// The group that the shell knows as its job.
    wrapper: Pid,
}

impl Terminal {
    /// `None` when standard input is no terminal of this session.
    pub fn of(wrapper: Pid) -> Option<Self> {
        rustix::termios::tcgetpgrp(std::io::stdin()).is_ok().then_some(Self { wrapper })
    }

    /// True if the command may read from it now.
    pub fn lend(self, command: Pid) -> bool {
        pass(self.wrapper, command);
        rustix::termios::tcgetpgrp(std::io::stdin()) == Ok(command)
    }

    pub fn take_back(self, command: Pid) {
        pass(command, self.wrapper);
    }
}

/// There is a shell above this process that minds its jobs. Without one (in a container, say) nobody would ever
/// continue what is stopped; the kernel, too, stops no process group of that kind.
pub fn somebody_can_resume() -> bool {
    let Some(own) = Ties::own() else { return false };
    let mut parent = own.parent;
    while let Some(above) = Ties::of(parent) {
        if above.session != own.session {
            return false;
        }
        if above.group != own.group {
            return true;
        }
        parent = above.parent;
    }
    false
}

/// A process outside the foreground is stopped when it reaches for the terminal, so this one joins the
/// foreground group for the moment that it takes. Does nothing unless `from` has the terminal.
fn pass(from: Pid, to: Pid) {
    let stdin = std::io::stdin();
    if rustix::termios::tcgetpgrp(&stdin) == Ok(from) && rustix::process::setpgid(None, Some(from)).is_ok() {
        // Refused when the other group is gone: then nobody needs the terminal.
        let _ = rustix::termios::tcsetpgrp(&stdin, to);
        rustix::process::setpgid(None, None).expect("a process may always found its own group");
    }
}
