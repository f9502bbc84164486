//! Runs steps one after the other (or side by side), stops at the first that fails, and says what took how long.

use std::process::{Command, Stdio};
use std::time::Duration;

use anyhow::Context;

#[derive(Debug, Default)]
pub struct Steps {
    done: Vec<(&'static str, Duration)>,
}

impl Steps {
    /// Shows the command as a person would type it, then runs it with its output in the open.
    pub fn run(&mut self, name: &'static str, command: &mut Command) -> anyhow::Result<()> {
        println!("\n==> {name}: {}", shown(command));
        let started = stopwatch();
        let status =
            command.status().with_context(|| format!("{name}: {} could not be started", shown(command)))?;
        let took = started.elapsed();
        if !status.success() {
            self.failed(name, took);
            anyhow::bail!("step `{name}` failed ({status}); repeat it alone with: {}", shown(command));
        }
        self.done.push((name, took));
        Ok(())
    }

    /// Side by side, for those that leave each other room: each shows what it printed when it has ended.
    pub fn together(&mut self, name: &'static str, commands: &mut [Command]) -> anyhow::Result<()> {
        let started = stopwatch();
        let mut running = vec![];
        for command in commands {
            let what = shown(command);
            println!("\n==> {name}: {what}");
            let child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn();
            let child = child.with_context(|| format!("{name}: {what} could not be started"))?;
            running.push((what, std::thread::spawn(move || child.wait_with_output())));
        }
        let mut failed = vec![];
        for (what, waiting) in running {
            let output = waiting.join().expect("waiting does not panic")?;
            let printed = [output.stdout, output.stderr].concat();
            println!("\n--- {what}\n{}", String::from_utf8_lossy(&printed).trim_end());
            if !output.status.success() {
                failed.push(format!("`{what}` ({})", output.status));
            }
        }
        let took = started.elapsed();
        if !failed.is_empty() {
            self.failed(name, took);
            anyhow::bail!("step `{name}` failed: {}", failed.join(", "));
        }
        self.done.push((name, took));
        Ok(())
    }

    fn failed(&self, name: &str, took: Duration) {
        self.summary();
        println!("  FAILED  {name:<26} {}", seconds(took));
    }

    pub fn summary(&self) {
        println!();
        for (name, took) in &self.done {
            println!("  ok      {name:<26} {}", seconds(*took));
        }
    }

    pub fn total(&self) -> Duration {
        self.done.iter().map(|(_, took)| took).sum()
    }
}

pub fn seconds(duration: Duration) -> String {
    format!("{:>6.1} s", duration.as_secs_f64())
}

fn shown(command: &Command) -> String {
    let program = std::path::Path::new(command.get_program());
    let program = program.file_name().unwrap_or(command.get_program()).to_string_lossy();
    let arguments = command.get_args().map(|argument| argument.to_string_lossy());
    std::iter::once(program).chain(arguments).collect::<Vec<_>>().join(" ")
}

#[allow(
    clippy::disallowed_methods,
    reason = "a developer tool times real commands; nothing is decided by it"
)]
fn stopwatch() -> std::time::Instant {
    std::time::Instant::now()
}
