//! From an order to a process: directly, or by way of a process of ours that first becomes another user.

use std::io::{self, Write};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};

use rustix::process::Pid;
use tenure_model::Program;

use crate::folder::{AttemptFolder, Order};
use crate::{AS_USER, http, work};

/// The running binary, also after its file was replaced by an upgrade.
const SELF: &str = "/proc/self/exe";

/// Starts the task in a group of its own; standard output and error are the supervisor's own, `output`.
pub(crate) fn spawn(order: &Order, folder: &AttemptFolder) -> Result<Pid, String> {
    let mut command = match &order.user {
        None => {
            enter(&order.run_dir)?;
            program(order)?
        }
        Some(_) => {
            let mut command = Command::new(SELF);
            command.arg0("tenure").arg(AS_USER).arg(folder.path());
            command
        }
    };
    let name = order.argv.first().map_or("", String::as_str);
    let child = command
        .env_clear()
        .envs(&order.env)
        .stdin(Stdio::null())
        .process_group(0)
        .spawn()
        .map_err(|error| why_not(name, Path::new(command.get_program()), &error))?;
    Ok(Pid::from_child(&child))
}

/// The process of a task that runs as another user, before it becomes the task's program. Everything in the run folder
/// is done as that user: what it has put there, a link to elsewhere say, is no way to anything that is not its own.
pub(crate) fn as_user(folder: &Path) -> ExitCode {
    let folder = AttemptFolder::at(folder);
    let (order, mut refusal) = match folder.order().map(|order| (order, folder.open_refusal())) {
        Ok((Some(order), Ok(refusal))) => (order, refusal),
        other => {
            eprintln!("tenure: the order of this task cannot be read: {other:?}");
            return ExitCode::FAILURE;
        }
    };
    let error = match become_task(&order, &folder) {
        Ok(ended) => return ended,
        Err(error) => error,
    };
    if let Err(unheard) = refusal.write_all(error.as_bytes()) {
        eprintln!("tenure: {error} ({unheard})");
    }
    ExitCode::FAILURE
}

/// Returns only if there is no program to become.
fn become_task(order: &Order, folder: &AttemptFolder) -> Result<ExitCode, String> {
    let user = order.user.as_ref().ok_or("the task names no user")?;
    user.take_on().map_err(|error| format!("the task cannot run as {:?}: {error}", user.name))?;
    enter(&order.run_dir)?;
    work::write_files(&order.run_dir, &order.assignment.files, order.assignment.attempt)
        .map_err(|error| error.to_string())?;
    if let Program::Http { .. } = &order.assignment.program {
        return Ok(http::perform(order, folder));
    }
    let mut command = program(order)?;
    let error = command.exec();
    Err(why_not(&order.argv[0], Path::new(command.get_program()), &error))
}

fn enter(run_dir: &Path) -> Result<(), String> {
    std::env::set_current_dir(run_dir)
        .map_err(|error| format!("the run folder {} cannot be entered: {error}", run_dir.display()))
}

fn program(order: &Order) -> Result<Command, String> {
    let name = order.argv.first().map(String::as_str).filter(|name| !name.is_empty());
    let name = name.ok_or("the command is empty: name a program to run")?;
    let program = find_program(name, order.env.get("PATH").map_or("", String::as_str))?;
    let mut command = Command::new(program);
    command.arg0(name).args(&order.argv[1..]);
    Ok(command)
}

/// Looks the program up itself: it can say where it looked, and a known path lets the standard library use
/// posix_spawn, which does not copy the page tables.
fn find_program(name: &str, search: &str) -> Result<PathBuf, String> {
    if name.contains('/') {
        return Ok(name.into());
    }
    let candidates = std::env::split_paths(search).map(|folder| folder.join(name));
    let mut files = candidates.filter(|path| path.is_file());
    let executable = |path: &PathBuf| rustix::fs::access(path, rustix::fs::Access::EXEC_OK).is_ok();
    files.find(executable).ok_or_else(|| {
        format!("the program {name:?} was not found in PATH ({search}): install it there or name it with its full path")
    })
}

fn why_not(name: &str, program: &Path, error: &io::Error) -> String {
    let exists = program.exists();
    match error.raw_os_error() {
        Some(code) if code == rustix::io::Errno::NOENT.raw_os_error() && exists => {
            format!(
                "{name:?} exists, but the interpreter in its first line does not: check what follows its #!"
            )
        }
        Some(code) if code == rustix::io::Errno::NOENT.raw_os_error() => {
            format!(
                "the program {name:?} does not exist (a relative path counts from the run folder): check its spelling and that the task has brought it along"
            )
        }
        Some(code) if code == rustix::io::Errno::ACCESS.raw_os_error() => {
            format!("{name:?} may not be executed: check that it is a file with the execute bit (chmod +x)")
        }
        Some(code) if code == rustix::io::Errno::NOEXEC.raw_os_error() => {
            format!(
                "{name:?} is not a program this machine can run: a script needs a first line like #!/bin/sh"
            )
        }
        Some(code) if code == rustix::io::Errno::TOOBIG.raw_os_error() => {
            format!(
                "the arguments and environment of {name:?} are too large for the system: pass large values in a file"
            )
        }
        _ => format!("{name:?} could not be started: {error}"),
    }
}
